"""crawler.local.supervisor in a process of its own: what a signal does while the loop works, and while it closes."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from crawler.local.supervisor import SIGNALS
from tests import warm
from tests.crawling import ROOT

PROCESS = """
import asyncio, os, sys
from crawler.local.supervisor import told_to_end

number = int(sys.argv[1])

class Loop(asyncio.SelectorEventLoop):
    def _close_self_pipe(self):
        super()._close_self_pipe()
        if sys.argv[2] == "late":
            os.kill(os.getpid(), number)

async def main():
    stop = asyncio.Event()
    with told_to_end(stop.set):
        os.kill(os.getpid(), number)
        await stop.wait()

with asyncio.Runner(loop_factory=Loop) as runner:
    runner.run(main())
"""


def ended(number: int, when: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROCESS, str(int(number)), when]
    return warm.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_heard(number: signal.Signals) -> None:
    process = ended(number, "never")
    assert (process.returncode, process.stderr) == (0, "")


def test_a_signal_to_a_loop_that_closes_does_what_it_does_by_default() -> None:
    process = ended(signal.SIGTERM, "late")
    assert (process.returncode, process.stderr) == (-signal.SIGTERM, "")
