"""What pages of the docs tell one to type, and what it prints; `tests/docs` runs it.

A fenced block of these kinds is run, in the order of its page:

    ```console   lines that begin with `$ ` are run by bash (`> `: the same command goes on) and must end with
                 code 0. Other lines are what they print to standard output: `…` stands for any text, alone on a
                 line for any number of lines. A command that ends with ` &` runs until the end of its block and
                 must then end with code 0; while it runs, the others are tried again until they do what the page
                 says.
    ```python    is run as a script.

A comment right before a block changes that: `<!-- file: PATH -->` writes it there instead of running it,
`<!-- line: PATH NAME -->` puts it at the end of the dictionary NAME of that file, `<!-- run: skip REASON -->` only
shows it. Blocks of other kinds (```text, ```ini …) are only shown.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]


class Block(NamedTuple):
    """One fenced block; `line` is that of its fence."""

    line: int
    kind: str
    text: str
    file: str = ""  # written there
    registry: str = ""  # put at the end of the dictionary of this name in `file`
    skip: str = ""  # why it is not run

    @property
    def runs(self) -> bool:
        return self.kind in ("console", "python") and not self.skip and not self.file


class Step(NamedTuple):
    """One command and what it prints."""

    command: str
    expected: list[str]


def register(file: Path, name: str, lines: str) -> None:
    """Put the lines at the end of this dictionary of the file."""
    before = file.read_text(encoding="utf-8")
    after, found = re.subn(
        rf"^({re.escape(name)}\b[^\n]*\{{\n.*?)^\}}$",
        lambda match: f"{match[1]}{lines}}}",
        before,
        count=1,
        flags=re.MULTILINE | re.DOTALL,
    )
    assert found, f"{file} has no dictionary {name}"
    file.write_text(after, encoding="utf-8")


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a page, with the comments right before them."""
    found: list[Block] = []
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        fence = re.fullmatch(r"```(\w+)", lines[number])
        if not fence:
            number += 1
            continue
        end = lines.index("```", number + 1)
        above = lines[number - 1] if number else ""
        file = re.fullmatch(r"<!-- (?:file|line): (\S+)(?: (\S+))? -->", above)
        skip = re.fullmatch(r"<!-- run: skip (.*) -->", above)
        body = "\n".join(lines[number + 1 : end]) + "\n"
        path, registry = (file[1], file[2] or "") if file else ("", "")
        found.append(Block(number + 1, fence[1], body, path, registry, skip[1] if skip else ""))
        number = end + 1
    return found


def steps_of(text: str) -> list[Step]:
    """The commands of a console block; one goes on behind a backslash, or in a line that begins with `> `."""
    steps: list[Step] = []
    for line in text.splitlines():
        last = steps[-1] if steps and not steps[-1].expected else None
        if last and last.command.endswith("\\"):
            steps[-1] = Step(f"{last.command[:-1]}{line.strip()}", [])
        elif last and line.startswith("> "):
            steps[-1] = Step(f"{last.command}\n{line[2:]}", [])
        elif line.startswith("$ "):
            steps.append(Step(line[2:].rstrip(), []))
        elif steps:
            steps[-1].expected.append(line.rstrip())
    return steps


def matches(expected: list[str], printed: str) -> bool:
    """Whether what was printed is what the page shows; `…` is any text, alone on a line any lines."""
    pattern = ""
    for line in expected:
        if line.strip() == "…":
            pattern += r"(?:.*\n)*"
        else:
            pattern += re.escape(line).replace("…", ".*") + r"[ ]*\n"
    return (
        re.fullmatch(pattern.rstrip("\n"), "".join(f"{x.rstrip()}\n" for x in printed.splitlines()))
        is not None
    )
