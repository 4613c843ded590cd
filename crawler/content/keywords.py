"""Ranks a page's words by position (title, headings) and frequency, without a dictionary.

Skips stop words and removes Korean particles; in Chinese characters, repeated strings of 2 to 4 count. No keywords
for Thai, Khmer and Lao.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from math import log
from typing import Any

# Characters of text that are read: later ones rarely name a page's subject.
LOOKED_AT = 20_000
_HEADINGS = ("h1", "h2", "h3")
_MOST_HEADINGS = 50
_HEADING_LENGTH = 200
_TITLE_WEIGHT = 3.0
_HEADING_WEIGHT = 2.0
_SHORTEST, _LONGEST = 3, 30
_LONGEST_HAN = 4
# A Chinese string is part of a longer one if that is nearly as frequent.
_NEARLY = 0.8

_WORD = re.compile(r"[^\W\d_]+")
_HAN = "\u3005\u3400-\u4dbf\u4e00-\u9fff"
_KANA = "\u3041-\u30ff\u31f0-\u31ff"
_HANGUL = "\uac00-\ud7a3"
_NO_BLANKS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
# Split where the script changes: a Korean particle after an English name.
_RUN = re.compile(
    f"(?P<han>[{_HAN}]+)|(?P<katakana>[\u30a1-\u30fa\u30fc]+)|(?P<hangul>[{_HANGUL}]+)|[{_KANA}{_NO_BLANKS}]+"
    f"|(?P<other>[^{_HAN}{_KANA}{_HANGUL}{_NO_BLANKS}]+)"
)
_PARTICLES = (
    "은 는 이 가 을 를 의 에 와 과 도 만 로 들 으로 에서 에게 에는 에도 부터 까지 처럼 보다 이나 이다 라고 하고 "
    "이며 이고 에서는 에서도 으로는 으로써 으로서 입니다 합니다 됩니다 했다 한다 된다 됐다 하는 되는 하여 되어 하며 "
    "들은 들이 들을 들의 했습니다 되었습니다 하였다 이라고 이라는 라는 하기 했던 하지"
)
# Longest match first.
_PARTICLE = re.compile(f"(?:{'|'.join(sorted(_PARTICLES.split(), key=len, reverse=True))})$")

# Stop words in every language.
_ANYWHERE = "home menu login logout search copyright rights reserved click page website cookies http https www com html"
_SILENT = {
    "en": "the and for are was were but not you your all any can had her him his how its may new now our out she that "
    "they them then there these this those too use used using via very was way who why will with would could should "
    "about after again also been before being between both did does doing don down during each few from further has "
    "have having here into just more most much must only other over own same some such than their through under until "
    "what when where which while whom one two get got make made many well back even first like said see still",
    "de": "der die das den dem des ein eine einer eines einem einen und oder aber nicht auch auf aus bei bis durch für "
    "gegen ist sind war waren wird werden wurde wurden hat haben hatte ich sie wir ihr ihre ihren ihrer sein seine mit "
    "nach noch nur ohne über unter vor von vom zum zur wie was wer wenn dann dass daß als man mehr hier sich so um im "
    "kann können sehr schon alle diese dieser dieses diesem diesen kein keine unser unsere uns euch dort ab",
    "fr": "les des une dans pour par pas que qui est sont sur avec plus ses son leur leurs nous vous ils elle elles "
    "mais ont été être avoir fait cette ces cet aux comme tout tous toute toutes sans entre aussi dont même après "
    "avant sous notre nos votre vos peut très bien chez donc ainsi encore quand quel quelle",
    "es": "los las una unos unas del que por para con como más pero sus este esta estos estas ese esa son ser está "
    "han hay muy sin sobre entre también hasta desde todo todos toda todas cuando donde nos nuestro nuestra usted "
    "fue era puede otro otra otros otras porque ya sí",
    "it": "gli che per con una del della delle dei degli dal dalla nel nella nelle sul sulla alla alle agli non più "
    "come anche sono essere stato questo questa questi queste suo sua loro tra fra dopo prima ogni tutto tutti tutte "
    "può dove quando nostro nostra vostro ancora molto",
    "pt": "dos das uma uns umas que por para com como mais mas seu sua seus suas este esta esse essa são ser está "
    "foi tem muito sem sobre entre também até desde todo todos toda todas quando onde nos nosso nossa você pelo pela "
    "não aos num numa pode outro outra",
    "nl": "het een van voor met dat die deze dit niet ook aan uit bij naar over door onder tot maar zijn was waren "
    "wordt worden heeft hebben kan kunnen meer veel wel nog dan als wat wie waar hoe wij ons onze uw zij hun haar",
    "ru": "что как это все они его она или для при был была было были быть так уже еще ещё только если когда где чем "
    "нет мне вас вам нас нам наш наши ваш ваши над под про без между после перед также более может который которая "
    "которые которых этот эта эти того чтобы очень",
    "ko": "그리고 그러나 하지만 또는 있는 있다 있습니다 없는 없다 하는 위해 위한 대한 대해 통해 관련 따라 때문 모든 "
    "우리 저희 여러 이번 지난 오늘 경우 가장 다른 같은 이런 그런 것 수 등 및 더 안내 바로가기",
    "ja": "これ それ ため こと もの よう ログイン メニュー ホーム ページ サイト",
    "zh": "我们 你们 他们 我們 你們 他們 这个 那个 這個 那個 一个 一個 可以 没有 沒有 因为 因為 所以 如果 但是 以及 "
    "或者 什么 什麼 自己 已经 已經 进行 進行 这些 這些 版权 版權 所有 首页 首頁 登录 登錄 注册",
}
_SILENT_WORDS = {code: frozenset(f"{words} {_ANYWHERE}".split()) for code, words in _SILENT.items()}
_SILENT_IN_ANY = frozenset().union(*_SILENT_WORDS.values())


def headings(root: Any) -> str:
    """The text of a parsed page's headings."""
    elements = islice(root.iter(*_HEADINGS), _MOST_HEADINGS)
    return "\n".join(" ".join(element.itertext())[:_HEADING_LENGTH] for element in elements)


def keywords(title: str, headings: str, text: str, language: str, most: int) -> list[str]:
    """The `most` best words in lower case, best first; ties in page order."""
    counts = _counted("\n".join((title, headings, text[:LOOKED_AT])), least=2)
    in_title, in_headings = _counted(title, least=1), _counted(headings, least=1)
    silent = _SILENT_WORDS.get(language, _SILENT_IN_ANY)

    def weight(word: str) -> float:
        place = (_TITLE_WEIGHT if word in in_title else 1.0) * (
            _HEADING_WEIGHT if word in in_headings else 1.0
        )
        return place * (1.0 + log(counts[word]))

    best = sorted((word for word in counts if word not in silent), key=weight, reverse=True)
    return list(islice(_without_shifted(best), most))


def _counted(text: str, least: int) -> Counter[str]:
    """Word frequencies; Chinese strings only from `least` times."""
    words: Counter[str] = Counter()
    strings: Counter[str] = Counter()
    for word, times in Counter(_WORD.findall(text.lower())).items():
        if word.isascii():
            words[word] += times
            continue
        for run in _RUN.finditer(word):
            if run.lastgroup == "han":
                for string in _strings(run[0]):
                    strings[string] += times
            elif run.lastgroup == "hangul":
                words[_bare(run[0])] += times
            elif run.lastgroup:
                words[run[0]] += times
    found = Counter({word: times for word, times in words.items() if _may_tell(word)})
    found.update(_whole(Counter({string: times for string, times in strings.items() if times >= least})))
    return found


def _may_tell(word: str) -> bool:
    return (_SHORTEST if word[0] < "\u3000" else 2) <= len(word) <= _LONGEST


def _bare(word: str) -> str:
    """Without its particle, if two syllables remain."""
    found = _PARTICLE.search(word, 2)
    return word[: found.start()] if found else word


def _strings(run: str) -> Iterator[str]:
    for length in range(2, _LONGEST_HAN + 1):
        for start in range(len(run) - length + 1):
            yield run[start : start + length]


def _whole(strings: Counter[str]) -> dict[str, int]:
    """Drop parts of longer strings."""
    parts = {
        part
        for string, times in strings.items()
        for part in (string[1:], string[:-1])
        if times >= _NEARLY * strings[part]
    }
    return {string: times for string, times in strings.items() if string not in parts}


def _without_shifted(words: list[str]) -> Iterator[str]:
    """Drop Chinese strings that overlap a better one."""
    starts: set[str] = set()
    ends: set[str] = set()
    for word in words:
        if re.match(f"[{_HAN}]", word):
            if word[1:] in starts or word[:-1] in ends:
                continue
            starts.add(word[:-1])
            ends.add(word[1:])
        yield word
