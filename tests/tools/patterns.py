"""Every regular expression of the crawler, tried with texts made to slow it down.

    python -m tests.tools.patterns [--size BYTES]

Texts are built from the pattern itself: for each of its letters and classes one character that fits and one that does
not, repeated alone and in pairs, behind the beginning of a match and without it. A pattern whose time grows with the
square of the text shows at a few kilobytes. Prints each pattern with its worst time, worst first.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import pkgutil
import re
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

import crawler

# Ways to apply a pattern; those that look at one place alone come first.
CALLS = ("match", "fullmatch", "search", "finditer", "findall", "sub", "subn", "split")
# Characters of one pattern that texts are made of: their pairs are tried too; behind a match, of those in the pattern.
MOST_CHARACTERS = 14
MOST_OWN = 8
# What is common in text that servers send, whatever the pattern says.
COMMON = " \n\t<>\"'=/&;a0-"
# A text is tried at this length first.
SHORT = 8_192
# Beginnings of a match that are repeated, or stand before what is.
MOST_BEGINNINGS = 12
# Times longer for a text four times as long: 4 is linear, 16 quadratic.
STEEP = 9.0
# Seconds for a short text that are worth a closer look: a thousand times what a linear search takes.
SUSPICIOUS = 0.02


class Use(NamedTuple):
    """One pattern and how the code applies it."""

    place: str  # module and name, or module and line
    pattern: re.Pattern[Any]
    calls: tuple[str, ...]


class Worst(NamedTuple):
    """The worst text that was found for a pattern."""

    use: Use
    call: str
    text: str  # beginning and what is repeated, for people
    seconds: float  # of processor time


def uses() -> list[Use]:
    """All patterns of the package that are compiled once, and those that calls of `re` name in place."""
    found: list[Use] = []
    for module in _modules():
        source = Path(module.__file__).read_text(encoding="utf-8")
        for name, value in vars(module).items():
            for pattern in _patterns_in(value):
                calls = tuple(call for call in CALLS if re.search(rf"\b{re.escape(name)}\.{call}\b", source))
                if calls or f"{name} = " in source or f"{name}: " in source:
                    found.append(Use(f"{module.__name__}.{name}", pattern, calls or CALLS[:4]))
        found += _in_place(module.__name__, source)
    return list({(use.pattern.pattern, use.calls): use for use in reversed(found)}.values())


def _modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(crawler.__path__, "crawler."):
        if ".migrations" not in found.name:
            yield importlib.import_module(found.name)


def _patterns_in(value: Any, depth: int = 0) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, (tuple, list, set, frozenset)) and depth < 3:
        for one in value:
            yield from _patterns_in(one, depth + 1)
    elif isinstance(value, dict) and depth < 3:
        for one in value.values():
            yield from _patterns_in(one, depth + 1)


def _in_place(module: str, source: str) -> Iterator[Use]:
    """Patterns that stand in a call, as in `re.split("[:/]", text)`."""
    if not re.search(rf"\bre\.({'|'.join(CALLS)})\(", source):
        return
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        owner, first = node.func.value, node.args[0]
        is_re = isinstance(owner, ast.Name) and owner.id == "re" and node.func.attr in CALLS
        if is_re and isinstance(first, ast.Constant):
            yield Use(f"{module}:{node.lineno}", re.compile(first.value), (node.func.attr,))


def worst(use: Use, size: int) -> Worst:
    """The text of `size` characters that takes longest, of those that take longest when they are short.

    Of a pattern that is slow already then, the time is what it would be if it grew with the square of the size.
    """
    short = [
        (_seconds(use.pattern, call, _text(use.pattern, beginning, piece, SHORT)), call, beginning, piece)
        for (beginning, piece), call in product(_texts(use.pattern), use.calls)
    ]
    short.sort(reverse=True)
    return max((_longer(use, size, *one) for one in short[:3]), key=lambda one: one.seconds)


def _longer(use: Use, size: int, seconds: float, call: str, beginning: str, piece: str) -> Worst:
    if seconds > SUSPICIOUS:
        seconds *= (size / SHORT) ** 2
    else:
        seconds = _seconds(use.pattern, call, _text(use.pattern, beginning, piece, size))
    return Worst(use, call, f"{beginning!r} and {piece!r} repeated", seconds)


def growth(use: Use) -> tuple[float, str]:
    """How many times longer a text takes when it is four times as long: the first that is STEEP, or the steepest.

    1.0 where even the longer one takes no time that can be measured.
    """
    steepest, words = 1.0, ""
    for (beginning, piece), call in product(_texts(use.pattern), use.calls):
        long = _text(use.pattern, beginning, piece, 4 * SHORT)
        if _seconds(use.pattern, call, long) > SUSPICIOUS:
            times = [
                min(_seconds(use.pattern, call, text) for _ in range(3)) for text in (long[:SHORT], long)
            ]
            if times[1] > SUSPICIOUS and times[1] > steepest * times[0]:
                steepest = times[1] / max(times[0], 1e-6)
                words = f"{call} of {beginning!r} and {piece!r} repeated"
            if steepest > STEEP:
                break
    return steepest, words


def _texts(pattern: re.Pattern[Any]) -> Iterator[tuple[str, str]]:
    """Beginnings, and what is repeated behind them."""
    tree = _parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)
    own = list(dict.fromkeys(_characters(tree)))[:MOST_OWN]
    characters = list(dict.fromkeys([*own, *COMMON]))[:MOST_CHARACTERS]
    sample = _sample(tree)
    beginnings = dict.fromkeys(
        ["", *(sample[:length] for length in range(1, min(len(sample), 6) + 1)), sample]
    )
    pieces = [*characters, *("".join(pair) for pair in product(characters, repeat=2) if pair[0] != pair[1])]
    pieces.append(sample)
    # A match may read on through all others: the quotes of `<x>\\"` are escaped for all but the first.
    pieces += [sample + "".join(pair) for pair in product(own, repeat=2) if pair[0] != pair[1]]
    for piece in pieces:
        yield "", piece
    for beginning in beginnings:
        for piece in characters if beginning else ():
            yield beginning, piece


def _text(pattern: re.Pattern[Any], beginning: str, piece: str, size: int) -> Any:
    text = (beginning + piece * (size // max(len(piece), 1)))[:size]
    return text.encode("utf-8", "surrogatepass") if isinstance(pattern.pattern, bytes) else text


def _seconds(pattern: re.Pattern[Any], call: str, text: Any) -> float:
    arguments: tuple[Any, ...] = (text,)
    if call in ("sub", "subn"):
        arguments = (text[:0], text)
    begun = time.process_time()
    result = getattr(pattern, call)(*arguments)
    if call == "finditer":
        for _ in result:
            pass
    return time.process_time() - begun


def _characters(tree: Any) -> Iterator[str]:
    """For each letter and class of a parsed pattern a character that fits it, and for classes one that does not."""
    for kind, value in tree:
        if kind is _constants.LITERAL:
            yield chr(value)
        elif kind is _constants.NOT_LITERAL:
            yield chr(value)
            yield _other({chr(value)})
        elif kind is _constants.IN:
            yield _of_class(value)
        else:
            for part in _parts(value):
                yield from _characters(part)


def _parts(value: Any) -> Iterator[Any]:
    """The parsed patterns within one node."""
    if isinstance(value, _parser.SubPattern):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _parts(one)


def _sample(tree: Any) -> str:
    """A short text that the pattern fits, or nearly: what it looks for ahead and behind is left out."""
    text = ""
    for kind, value in tree:
        if kind is _constants.LITERAL:
            text += chr(value)
        elif kind is _constants.NOT_LITERAL:
            text += _other({chr(value)})
        elif kind is _constants.ANY:
            text += "x"
        elif kind is _constants.IN:
            text += _of_class(value)
        elif kind is _constants.BRANCH:
            text += _sample(value[1][0])
        elif kind is _constants.SUBPATTERN:
            text += _sample(value[-1])
        elif kind is _constants.ATOMIC_GROUP:
            text += _sample(value)
        elif kind in (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT):
            text += _sample(value[2]) * max(1, min(value[0], 8))
    return text


def _of_class(members: Any) -> str:
    """A character of a class."""
    refused: set[str] = set()
    negated = False
    for kind, value in members:
        if kind is _constants.NEGATE:
            negated = True
        elif kind is _constants.LITERAL:
            refused.add(chr(value))
        elif kind is _constants.RANGE:
            refused.add(chr(value[0]))
        elif kind is _constants.CATEGORY:
            refused.add(_CATEGORIES.get(str(value), "x"))
    return _other(refused) if negated else min(refused, default="x")


_CATEGORIES = {
    "CATEGORY_SPACE": " ",
    "CATEGORY_DIGIT": "0",
    "CATEGORY_WORD": "w",
    "CATEGORY_NOT_SPACE": "x",
    "CATEGORY_NOT_DIGIT": "x",
    "CATEGORY_NOT_WORD": "-",
}


def _other(refused: set[str]) -> str:
    """A character that is none of these."""
    return next(one for one in "x0 -\"'<>=/:;" if one not in refused)


def main() -> None:
    """Print a table, worst first."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument(
        "--size", type=int, default=1_000_000, help="characters of the longest text (1,000,000)"
    )
    size = arguments.parse_args().size
    found = sorted((worst(use, size) for use in uses()), key=lambda one: one.seconds, reverse=True)
    print(f"{'ms':>8}  {'pattern':<58} call       text")
    for one in found:
        print(f"{one.seconds * 1000:8.1f}  {one.use.place:<58} {one.call:<10} {one.text[:70]}")


if __name__ == "__main__":
    main()
