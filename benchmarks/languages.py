"""How well is the language of a text told, and what does it cost? Ours beside CLD2, which it took the place of.

    python benchmarks/languages.py                     # half a minute
    pip install pycld2                                 # the other; left out where it is not installed

Both stand behind the same letters step (crawler/content/language.py): Korean, Japanese and Chinese are told by
their letters, so what is compared is the rest. Texts and pages are those of tests/languages.py: short ones of all
languages, without a declaration, with their own, and with English in each; and pages of 2 kB. CPU-time is the least of
some rounds over all pages.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from crawler.content import language  # noqa: E402
from tests.languages import TEXTS, pages  # noqa: E402

Likeliest = Callable[[str, str], str]


def ours() -> Likeliest:
    """What a crawl uses."""
    return language._likeliest


def by_pycld2() -> Likeliest:
    """CLD2, which takes what the page declares as a hint."""
    import pycld2

    def likeliest(text: str, said: str) -> str:
        hint = {"hintLanguage": said} if said else {}
        try:
            _, _, found = pycld2.detect(
                language._REFUSED.sub(" ", text), isPlainText=True, bestEffort=True, **hint
            )
        except pycld2.error:
            return ""
        code = found[0][1].partition("-")[0]
        code = language._MEANT.get(code, code)
        return code if len(code) == 2 and code not in ("un", "ko", "ja", "zh") else ""

    return likeliest


DETECTORS: dict[str, Callable[[], Likeliest]] = {"ours": ours, "pycld2": by_pycld2}


@contextmanager
def behind_the_letters(likeliest: Likeliest) -> Iterator[None]:
    """Has `language` ask this detector where letters do not tell."""
    before = language._likeliest
    language._likeliest = likeliest
    try:
        yield
    finally:
        language._likeliest = before


def right(said: Callable[[str], str]) -> int:
    """Short texts that are told rightly; `said`: what a text of a language declares."""
    return sum(language.language(text, said(code)) == code for code, texts in TEXTS.items() for text in texts)


def measure(rounds: int) -> dict[str, float]:
    """The figures of the detector that `language` asks."""
    made = {code: list(pages(code)) for code in TEXTS}
    everything = [page for some in made.values() for page in some]
    least = min(_seconds(everything) for _ in range(rounds))
    return {
        "texts": right(lambda _: ""),
        "texts, each declares its own": right(lambda code: code),
        "texts, all declare English": right(lambda _: "en"),
        "texts, all declare Spanish": right(lambda _: "es"),
        "pages": sum(language.language(page) == code for code, some in made.items() for page in some),
        "CPU-ms a page": least / len(everything) * 1000,
    }


def _seconds(texts: list[str]) -> float:
    began = time.process_time()
    for text in texts:
        language.language(text)
    return time.process_time() - began


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10, help="over all pages (default 10)")
    parser.add_argument("--json", action="store_true", help="every figure, as JSON")
    given = parser.parse_args(arguments)
    found: dict[str, dict[str, float]] = {}
    for name, made in DETECTORS.items():
        try:
            likeliest = made()
        except ImportError as error:
            print(f"{name} left out: {error}", file=sys.stderr)
            continue
        with behind_the_letters(likeliest):
            found[name] = measure(given.rounds)
    if given.json:
        print(json.dumps(found))
        return 0
    print(f"{'':32}" + "".join(f"{name:>12}" for name in found))
    for figure in found["ours"]:
        print(f"{figure:32}" + "".join(f"{one[figure]:>12.4g}" for one in found.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
