"""Recheck's scores without a compiler: what is chosen is the same, and every mode keeps its promises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crawler.recheck.law_arrays import PROMISED

ROOT = Path(__file__).resolve().parent.parent
# An import of it fails as if it were not installed.
WITHOUT_NUMBA = "import sys; sys.modules['numba'] = None\n"
# A life of each mode: choices, visits, signals, dead pages; then one site's pages as an agent's coordinator asks.
LIFE = """
import json
import numpy as np
from crawler import recrawl
from crawler.recheck import compiling
from tests.contracts.test_recrawl import MODES, made

def life(mode, longest):
    policy = made(mode, 500, **longest)
    random = np.random.default_rng(1)
    chosen = []
    for call in range(30):
        now = call * 60.0
        policy.signalled(random.integers(0, 250, 20), now)
        found = policy.choose(now, 1e-5, budget=2.0)
        chosen.append(found.tolist())
        answered = random.random(len(found)) < 0.9
        policy.failed(found[~answered], now)
        policy.visited(found[answered], now, random.random(answered.sum()) < 0.4)
    policy.price = policy.price or 1e-3
    sites = [policy.candidates(host, 2000.0, 2300.0, 1e-5) for host in range(7)]
    # What lies between the price and what is worth it differs in its last digits.
    score = policy.mode.score(policy.view(np.arange(500), 5000.0, 1e-5)).astype(float)
    return {
        "chosen": chosen, "price": policy.price, "sites": [pages.tolist() for pages, _ in sites],
        "wake": [wake for _, wake in sites], "score": np.where(score > 0, score, 0).tolist(),
    }

options = ({}, {"longest_seconds": 3600.0}, {"conditional": 0.5})
lives = {f"{mode} {some}": life(mode, some) for mode in MODES for some in options}
print(json.dumps({"compiled": compiling.COMPILED, "lives": lives}))
"""


def printed(script: str) -> Any:
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout)


def test_the_same_pages_are_chosen_with_and_without_a_compiler() -> None:
    compiled, plain = printed(LIFE), printed(WITHOUT_NUMBA + LIFE)
    assert compiled["compiled"] and not plain["compiled"]
    assert compiled["lives"].keys() == plain["lives"].keys()
    for name, one in compiled["lives"].items():
        other = plain["lives"][name]
        assert other["chosen"] == one["chosen"], name
        assert other["sites"] == one["sites"], name
        assert other["price"] == pytest.approx(one["price"], rel=1e-6), name
        assert other["wake"] == pytest.approx(one["wake"], rel=1e-6), name
        score = np.array(one["score"])
        # What is hardly worth its price is the difference of nearly equal numbers.
        noise = 1e-6 * score[score < PROMISED / 2].max(initial=0)
        assert np.allclose(other["score"], score, rtol=1e-6, atol=noise), name
    assert any(one["chosen"][-1] for one in compiled["lives"].values())


@pytest.mark.drill
def test_every_mode_keeps_its_promises_without_a_compiler() -> None:
    script = WITHOUT_NUMBA + (
        "import pytest; sys.exit(pytest.main(['-p', 'no:xdist', '-p', 'no:cacheprovider', "
        "'tests/contracts/test_recrawl.py', '-W', 'error']))"
    )
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert ended.returncode == 0, ended.stdout[-3000:]
    assert "[100%]" in ended.stdout
