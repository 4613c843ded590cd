"""Texts as pages have them, by language: menus, headlines, a sentence or two. Written for these tests.

python -m tests.languages      how many pages of 2 kB are told rightly, a line for each language
"""

from __future__ import annotations

import random
from collections.abc import Iterator

TEXTS: dict[str, list[str]] = {
    "en": [
        "Home About us Contact Products",
        "Opening hours and directions to our shop",
        "The council will meet on Thursday to discuss the new harbour wall.",
        "We use cookies to give you the best experience on our website. Read more about how we use them "
        "and how you can change your settings.",
        "Local news: the ferry between the two islands will not run this weekend because of strong "
        "winds. Passengers with tickets can get their money back at the office.",
        "Sign in Register Search Shopping cart",
        "How to bake bread at home without a machine",
    ],
    "de": [
        "Startseite Über uns Kontakt Produkte",
        "Öffnungszeiten und Anfahrt zu unserem Laden",
        "Der Gemeinderat berät am Donnerstag über die neue Hafenmauer.",
        "Wir verwenden Cookies, um Ihnen die bestmögliche Nutzung unserer Website zu ermöglichen. Mehr "
        "dazu in unserer Datenschutzerklärung.",
        "Die Fähre zwischen den beiden Inseln fährt an diesem Wochenende wegen starken Windes nicht. "
        "Fahrgäste erhalten ihr Geld im Büro zurück.",
        "Anmelden Registrieren Suche Warenkorb",
        "Wie man zu Hause Brot ohne Maschine backt",
    ],
    "fr": [
        "Accueil À propos Contact Produits",
        "Horaires d'ouverture et accès à notre magasin",
        "Le conseil municipal se réunira jeudi pour parler du nouveau mur du port.",
        "Nous utilisons des cookies pour vous offrir la meilleure expérience sur notre site. En savoir "
        "plus sur leur utilisation.",
        "Le ferry entre les deux îles ne circulera pas ce week-end en raison de vents forts. Les "
        "passagers peuvent se faire rembourser au guichet.",
        "Se connecter S'inscrire Rechercher Panier",
        "Comment faire du pain à la maison sans machine",
    ],
    "es": [
        "Inicio Quiénes somos Contacto Productos",
        "Horario de apertura y cómo llegar a nuestra tienda",
        "El ayuntamiento se reunirá el jueves para hablar del nuevo muro del puerto.",
        "Utilizamos cookies para ofrecerle la mejor experiencia en nuestro sitio web. Más información "
        "sobre su uso.",
        "El ferry entre las dos islas no funcionará este fin de semana debido a los fuertes vientos. Los "
        "pasajeros pueden recuperar su dinero en la oficina.",
        "Iniciar sesión Registrarse Buscar Carrito",
        "Cómo hacer pan en casa sin máquina",
    ],
    "it": [
        "Home Chi siamo Contatti Prodotti",
        "Orari di apertura e come raggiungere il nostro negozio",
        "Il consiglio comunale si riunirà giovedì per discutere del nuovo muro del porto.",
        "Utilizziamo i cookie per offrirti la migliore esperienza sul nostro sito. Scopri di più su come "
        "li usiamo.",
        "Il traghetto tra le due isole non viaggerà questo fine settimana a causa del forte vento. I "
        "passeggeri possono chiedere il rimborso in ufficio.",
        "Accedi Registrati Cerca Carrello",
        "Come fare il pane in casa senza macchina",
    ],
    "pt": [
        "Início Quem somos Contato Produtos",
        "Horário de funcionamento e como chegar à nossa loja",
        "A câmara municipal reúne-se na quinta-feira para discutir o novo muro do porto.",
        "Utilizamos cookies para lhe oferecer a melhor experiência no nosso site. Saiba mais sobre como "
        "os usamos.",
        "A balsa entre as duas ilhas não vai funcionar neste fim de semana por causa dos ventos fortes. "
        "Os passageiros podem receber o dinheiro de volta no escritório.",
        "Entrar Cadastre-se Pesquisar Carrinho",
        "Como fazer pão em casa sem máquina",
    ],
    "nl": [
        "Startpagina Over ons Contact Producten",
        "Openingstijden en route naar onze winkel",
        "De gemeenteraad vergadert donderdag over de nieuwe havenmuur.",
        "Wij gebruiken cookies om u de beste ervaring op onze website te bieden. Lees meer over hoe wij "
        "ze gebruiken.",
        "De veerboot tussen de twee eilanden vaart dit weekend niet vanwege de harde wind. Passagiers "
        "kunnen hun geld terugkrijgen op kantoor.",
        "Inloggen Registreren Zoeken Winkelwagen",
        "Hoe je thuis brood bakt zonder machine",
    ],
    "sv": [
        "Hem Om oss Kontakt Produkter",
        "Öppettider och vägbeskrivning till vår butik",
        "Kommunfullmäktige sammanträder på torsdag för att diskutera den nya hamnmuren.",
        "Vi använder kakor för att ge dig den bästa upplevelsen på vår webbplats. Läs mer om hur vi "
        "använder dem.",
        "Färjan mellan de två öarna går inte i helgen på grund av hårda vindar. Passagerare kan få "
        "pengarna tillbaka på kontoret.",
        "Logga in Registrera dig Sök Varukorg",
        "Så bakar du bröd hemma utan maskin",
    ],
    "pl": [
        "Strona główna O nas Kontakt Produkty",
        "Godziny otwarcia i dojazd do naszego sklepu",
        "Rada miasta zbierze się w czwartek, aby omówić nowy mur portowy.",
        "Używamy plików cookie, aby zapewnić najlepsze wrażenia na naszej stronie. Dowiedz się więcej o "
        "ich używaniu.",
        "Prom między dwiema wyspami nie będzie kursował w ten weekend z powodu silnych wiatrów. "
        "Pasażerowie mogą odzyskać pieniądze w biurze.",
        "Zaloguj się Zarejestruj Szukaj Koszyk",
        "Jak upiec chleb w domu bez maszyny",
    ],
    "tr": [
        "Ana sayfa Hakkımızda İletişim Ürünler",
        "Çalışma saatleri ve mağazamıza ulaşım",
        "Belediye meclisi perşembe günü yeni liman duvarını görüşmek için toplanacak.",
        "Web sitemizde size en iyi deneyimi sunmak için çerezler kullanıyoruz. Nasıl kullandığımız "
        "hakkında daha fazla bilgi edinin.",
        "İki ada arasındaki feribot kuvvetli rüzgar nedeniyle bu hafta sonu çalışmayacak. Yolcular "
        "paralarını ofisten geri alabilir.",
        "Giriş yap Kayıt ol Ara Sepet",
        "Evde makinesiz ekmek nasıl yapılır",
    ],
    "vi": [
        "Trang chủ Giới thiệu Liên hệ Sản phẩm",
        "Giờ mở cửa và đường đến cửa hàng của chúng tôi",
        "Hội đồng thành phố sẽ họp vào thứ năm để thảo luận về bức tường cảng mới.",
        "Chúng tôi sử dụng cookie để mang lại cho bạn trải nghiệm tốt nhất trên trang web. Tìm hiểu thêm "
        "về cách chúng tôi sử dụng.",
        "Phà giữa hai hòn đảo sẽ không chạy vào cuối tuần này vì gió mạnh. Hành khách có thể nhận lại "
        "tiền tại văn phòng.",
        "Đăng nhập Đăng ký Tìm kiếm Giỏ hàng",
        "Cách làm bánh mì tại nhà không cần máy",
    ],
    "id": [
        "Beranda Tentang kami Kontak Produk",
        "Jam buka dan petunjuk arah ke toko kami",
        "Dewan kota akan bertemu pada hari Kamis untuk membahas tembok pelabuhan yang baru.",
        "Kami menggunakan cookie untuk memberi Anda pengalaman terbaik di situs web kami. Baca lebih "
        "lanjut tentang cara kami menggunakannya.",
        "Feri antara kedua pulau tidak akan beroperasi akhir pekan ini karena angin kencang. Penumpang "
        "dapat meminta uang mereka kembali di kantor.",
        "Masuk Daftar Cari Keranjang belanja",
        "Cara membuat roti di rumah tanpa mesin",
    ],
    "cs": [
        "Domů O nás Kontakt Produkty",
        "Otevírací doba a cesta do naší prodejny",
        "Zastupitelstvo se sejde ve čtvrtek, aby projednalo novou přístavní zeď.",
        "Používáme soubory cookie, abychom vám zajistili co nejlepší zážitek z našeho webu. Přečtěte si "
        "více o jejich použití.",
        "Trajekt mezi dvěma ostrovy tento víkend kvůli silnému větru nepojede. Cestující mohou dostat "
        "peníze zpět v kanceláři.",
        "Přihlásit se Registrovat Hledat Košík",
        "Jak upéct chleba doma bez pekárny",
    ],
    "ru": [
        "Главная О нас Контакты Товары",
        "Часы работы и как добраться до нашего магазина",
        "Городской совет соберётся в четверг, чтобы обсудить новую стену порта.",
        "Мы используем файлы cookie, чтобы сделать наш сайт удобнее для вас. Узнайте больше о том, как "
        "мы их используем.",
        "Паром между двумя островами в эти выходные не будет ходить из-за сильного ветра. Пассажиры "
        "могут вернуть деньги в кассе.",
        "Войти Регистрация Поиск Корзина",
        "Как испечь хлеб дома без машины",
    ],
    "uk": [
        "Головна Про нас Контакти Товари",
        "Години роботи та як дістатися до нашого магазину",
        "Міська рада збереться в четвер, щоб обговорити нову стіну порту.",
        "Ми використовуємо файли cookie, щоб зробити наш сайт зручнішим для вас. Дізнайтеся більше про "
        "те, як ми їх використовуємо.",
        "Пором між двома островами цими вихідними не ходитиме через сильний вітер. Пасажири можуть "
        "повернути гроші в касі.",
        "Увійти Реєстрація Пошук Кошик",
        "Як спекти хліб вдома без машини",
    ],
    "ar": [
        "الرئيسية من نحن اتصل بنا المنتجات",
        "ساعات العمل والطريق إلى متجرنا",
        "يجتمع مجلس المدينة يوم الخميس لمناقشة جدار الميناء الجديد.",
        "لن تعمل العبارة بين الجزيرتين في نهاية هذا الأسبوع بسبب الرياح القوية. يمكن للركاب استرداد "
        "أموالهم من المكتب.",
    ],
    "he": [
        "דף הבית אודות צור קשר מוצרים",
        "מועצת העיר תתכנס ביום חמישי כדי לדון בקיר הנמל החדש.",
    ],
    "el": [
        "Αρχική Σχετικά Επικοινωνία Προϊόντα",
        "Το δημοτικό συμβούλιο θα συνεδριάσει την Πέμπτη για το νέο τείχος του λιμανιού.",
    ],
    "th": [
        "หน้าแรก เกี่ยวกับเรา ติดต่อ สินค้า",
        "สภาเมืองจะประชุมในวันพฤหัสบดีเพื่อหารือเรื่องกำแพงท่าเรือใหม่",
    ],
    "hi": [
        "मुख्य पृष्ठ हमारे बारे में संपर्क उत्पाद",
        "नगर परिषद गुरुवार को नई बंदरगाह दीवार पर चर्चा करने के लिए बैठक करेगी।",
    ],
    "ko": [
        "홈 회사소개 연락처 제품",
        "영업 시간과 매장 오시는 길",
        "시의회는 목요일에 새 항구 방벽을 논의하기 위해 모인다.",
        "저희는 더 나은 서비스를 제공하기 위해 쿠키를 사용합니다. 자세한 내용은 개인정보처리방침을 "
        "확인하세요.",
        "이번 주말에는 강풍으로 두 섬 사이의 여객선이 운항하지 않습니다. 표를 산 승객은 사무소에서 "
        "환불받을 수 있습니다.",
        "로그인 회원가입 검색 장바구니",
        "기계 없이 집에서 빵 굽는 법",
        "Home About Contact 공지사항 Copyright 2001 Example Corp. All rights reserved.",
        "한국전산원 Copyright © 1999-2001 National Computerization Agency. All rights reserved. Best "
        "viewed with Internet Explorer 5.0",
        "漢字를 섞어 쓴 新聞 記事의 例示 文章이다 大韓民國 政府는",
    ],
    "ja": [
        "ホーム 会社概要 お問い合わせ 製品",
        "営業時間とアクセス",
        "市議会は木曜日に新しい防波堤について話し合う。",
        "当サイトでは、より良いサービスを提供するためにクッキーを使用しています。詳しくは"
        "プライバシーポリシーをご覧ください。",
        "今週末は強風のため、二つの島を結ぶフェリーは運航しません。切符をお持ちのお客様は"
        "事務所で払い戻しを受けられます。",
        "ログイン 新規登録 検索 カート",
        "自宅で機械を使わずにパンを焼く方法",
        "東京都千代田区霞が関一丁目 電話番号のご案内",
        "Copyright 2001 株式会社見本 All Rights Reserved. お知らせ",
    ],
    "zh": [
        "首页 关于我们 联系方式 产品",
        "营业时间和到店路线",
        "市议会将于星期四开会讨论新的港口围墙。",
        "我们使用 Cookie 为您提供最佳的网站体验。了解更多关于我们如何使用它们的信息。",
        "由于强风，本周末两岛之间的渡轮停航。持票乘客可在办事处退款。",
        "登录 注册 搜索 购物车",
        "在家不用机器做面包的方法",
        "首頁 關於我們 聯絡方式 產品",
        "由於強風，本週末兩島之間的渡輪停航。持票乘客可在辦事處退款。",
        "Copyright 2001 北京示例公司 版权所有 All Rights Reserved.",
    ],
}

# Longer ones for languages of which the above has little: a page is made of several sentences.
MORE: dict[str, list[str]] = {
    "ar": [
        "أعلنت المدرسة أن الدروس ستبدأ في الأسبوع المقبل وأن الكتب متوفرة في المكتبة.",
        "كيف تصنع الخبز في البيت من دون آلة",
        "نستخدم ملفات تعريف الارتباط لنقدم لك أفضل تجربة على موقعنا.",
    ],
    "he": [
        "המעבורת בין שני האיים לא תפעל בסוף השבוע בגלל רוחות חזקות. הנוסעים יכולים לקבל את כספם במשרד.",
        "שעות פתיחה ודרכי הגעה לחנות שלנו",
        "אנו משתמשים בעוגיות כדי לתת לכם את החוויה הטובה ביותר באתר שלנו.",
        "איך אופים לחם בבית בלי מכונה",
    ],
    "el": [
        "Το πλοίο ανάμεσα στα δύο νησιά δεν θα ταξιδέψει αυτό το σαββατοκύριακο λόγω ισχυρών ανέμων.",
        "Ώρες λειτουργίας και πώς θα έρθετε στο κατάστημά μας",
        "Χρησιμοποιούμε cookies για να σας δώσουμε την καλύτερη εμπειρία στον ιστότοπό μας.",
        "Πώς να φτιάξετε ψωμί στο σπίτι χωρίς μηχανή",
    ],
    "th": [
        "เรือข้ามฟากระหว่างสองเกาะจะไม่วิ่งในสุดสัปดาห์นี้เพราะลมแรง ผู้โดยสารขอเงินคืนได้ที่สำนักงาน",
        "เวลาเปิดทำการและเส้นทางมาร้านของเรา",
        "เราใช้คุกกี้เพื่อให้คุณได้รับประสบการณ์ที่ดีที่สุดบนเว็บไซต์ของเรา",
    ],
    "hi": [
        "तेज़ हवाओं के कारण दोनों द्वीपों के बीच नौका इस सप्ताहांत नहीं चलेगी। यात्री कार्यालय से पैसे वापस ले सकते हैं।",
        "हमारी दुकान के खुलने का समय और आने का रास्ता",
        "हम आपको अपनी वेबसाइट पर सबसे अच्छा अनुभव देने के लिए कुकीज़ का उपयोग करते हैं।",
    ],
    "ko": [
        "학교는 다음 주부터 수업을 시작하며 교과서는 도서관에서 빌릴 수 있다고 밝혔다. "
        "똠방각하와 펲시도 그대로 읽힌다.",
    ],
}
# What stands on pages in any language.
STRANGE = (
    *(
        "Copyright © 2026 Example Ltd. All rights reserved.",
        "Powered by WordPress",
        "Facebook Twitter YouTube",
    ),
    *(
        "+82 2 555 0100",
        "2026-11-19 14:05",
        "1,250.00",
        "https://www.example.org/a/b",
        "PDF 2.4 MB",
        "English",
    ),
)
PAGE_BYTES, PAGES_EACH = 2_000, 20
# Of a page's parts, those that are of no language or of English.
STRANGE_SHARE = 0.2


def pages(code: str) -> Iterator[str]:
    """PAGES_EACH pages of 2 kB (UTF-8): the language's texts in another order each, with strange parts between them."""
    chosen = random.Random(f"pages in {code}")
    texts = TEXTS[code] + MORE.get(code, [])
    for _ in range(PAGES_EACH):
        parts: list[str] = []
        while sum(len(part.encode()) + 1 for part in parts) <= PAGE_BYTES:
            parts.append(chosen.choice(STRANGE if chosen.random() < STRANGE_SHARE else texts))
        yield "\n".join(parts)


def told() -> dict[str, int]:
    """How many of PAGES_EACH pages are told rightly, by language."""
    from crawler.content.language import language

    return {code: sum(language(page) == code for page in pages(code)) for code in TEXTS}


if __name__ == "__main__":
    found = told()
    for code, right in found.items():
        print(f"{code}  {right:3} of {PAGES_EACH}")
    print(f"all {sum(found.values())} of {len(found) * PAGES_EACH}")
