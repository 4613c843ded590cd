"""What `.github/workflows` run is what anybody can run: targets of the Makefile, by actions that are pinned."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
# An action by the full hash of a commit, with the version that it is in a comment.
PINNED = re.compile(r"uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


def steps(text: str) -> Iterator[dict[str, Any]]:
    for job in yaml.safe_load(text)["jobs"].values():
        yield from job["steps"]


def targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def unknown_commands(text: str) -> list[str]:
    """Commands that are no `make TARGET NAME=VALUE …`."""
    commands = [line for step in steps(text) for line in step.get("run", "").splitlines()]
    return [command for command in commands if not is_make(shlex.split(command))]


def is_make(words: list[str]) -> bool:
    asked = [word for word in words[1:] if "=" not in word]
    return words[:1] == ["make"] and bool(asked) and set(asked) <= targets()


def unpinned(text: str) -> list[str]:
    """Uses of an action by less than a commit; YAML has no comments, so by lines."""
    lines = [line.strip().removeprefix("- ") for line in text.splitlines()]
    return [line for line in lines if line.startswith("uses:") and not PINNED.fullmatch(line)]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_targets_of_the_makefile_by_pinned_actions(workflow: Path) -> None:
    text = workflow.read_text()
    assert unknown_commands(text) == []
    assert unpinned(text) == []
    assert sum("uses" in step for step in steps(text)) == text.count("uses:")
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in yaml.safe_load(text)["jobs"].values())


def test_lint_tests_drills_and_packages_are_run_on_every_python() -> None:
    ran = {step["run"].split()[1] for path in WORKFLOWS for step in steps(path.read_text()) if "run" in step}
    assert {"check", "test", "drills", "fuzz", "demo", "build", "lock"} <= ran
    check = yaml.safe_load((ROOT / ".github/workflows/check.yml").read_text())
    assert check["jobs"]["tests"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]


def test_the_same_action_is_pinned_alike_everywhere() -> None:
    uses = {step["uses"] for path in WORKFLOWS for step in steps(path.read_text()) if "uses" in step}
    assert len({one.partition("@")[0] for one in uses}) == len(uses)


def test_what_is_not_pinned_or_no_target_is_seen() -> None:
    text = (
        "jobs:\n  one:\n    steps:\n"
        "      - uses: actions/checkout@v6\n"
        "      - uses: actions/cache@0123456789 # v4.0.0\n"
        "      - run: make nothing-of-the-kind\n"
        "      - run: |\n          make check\n          pip install x\n"
    )
    assert len(unpinned(text)) == 2
    assert unknown_commands(text) == ["make nothing-of-the-kind", "pip install x"]


def test_dependabot_looks_after_actions() -> None:
    config = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text())
    assert [one["package-ecosystem"] for one in config["updates"]] == ["github-actions"]
