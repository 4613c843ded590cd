"""`python -m settings.document` prints docs/settings.md, made from settings/base.py (`make docs` keeps it).

Reads the source and never imports it, so that neither the environment nor a local change shows in the page. A
setting's reason is the comment above it; settings that follow without one of their own share it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("base.py")

HEAD = """\
# Settings

Made from `settings/base.py` by `make docs`; a test says when it is stale. Do not edit it here.

Each setting can be given for one call (`-s NAME=value`), to scrapyd (`setting=NAME=value`), in the environment
(`LOWTIDE_NAME=value`), in a spider's `custom_settings`, or for good in `settings/base.py`. A name that looks like
a misspelt one of ours is refused at start, and so is a value of the wrong kind.

`settings.local` is what `scrapy.cfg` names: one machine, the bundled server. `settings.cluster` is the same for
many machines: it starts nothing by itself and wants `REDIS_URL`, and for coordinators `DATABASE_URL`.
"""


class Setting(NamedTuple):
    """One name; `default` as it is written in the source."""

    name: str
    default: str


class Entry(NamedTuple):
    """Settings that share a reason, which is empty where no comment stands above them."""

    section: str
    reason: str
    settings: tuple[Setting, ...]


def entries(source: str) -> list[Entry]:
    """Everything that base.py sets, in its order."""
    found: list[Entry] = []
    lines = source.splitlines()
    section = ""
    for line, setting in _assignments(source):
        comment, title = _above(lines, line - 1)
        section = title or section
        if comment or title or not found:
            found.append(Entry(section, comment, (setting,)))
        else:
            found[-1] = found[-1]._replace(settings=(*found[-1].settings, setting))
    return found


def page(source: str) -> str:
    """The whole page."""
    parts = [HEAD]
    section = ""
    for entry in entries(source):
        if entry.section != section:
            section = entry.section
            parts.append(f"## {section}\n")
        parts.append("\n".join(map(_told, entry.settings)) + "\n")
        parts.append(_indented(entry.reason) + "\n")
    return "\n".join(parts)


def _assignments(source: str) -> Iterator[tuple[int, Setting]]:
    """Every name that gets a value, with its line; counted from 1."""
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Name) and node.value:
            default = ast.get_source_segment(source, node.value) or ""
            yield node.lineno, Setting(target.id, default)


def _above(lines: list[str], number: int) -> tuple[str, str]:
    """The comment that ends right above this line (counted from 0), and the section that begins before it."""
    start = number
    while start and lines[start - 1].startswith("# ") and not lines[start - 1].startswith("# ---"):
        start -= 1
    comment = "\n".join(line.removeprefix("# ") for line in lines[start:number])
    while start and not lines[start - 1]:
        start -= 1
    before = lines[start - 1] if start else ""
    return comment, before.strip("# -") if before.startswith("# ---") else ""


def _told(setting: Setting) -> str:
    """The name with its default; one of several lines as code of its own."""
    if "\n" not in setting.default:
        return f"- **`{setting.name}`** = `{setting.default}`"
    code = _indented(f"```python\n{setting.default}\n```")
    return f"- **`{setting.name}`** =\n\n{code}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


if __name__ == "__main__":
    sys.stdout.write(page(SOURCE.read_text(encoding="utf-8")))
