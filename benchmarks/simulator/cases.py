"""Where a policy may hold or fail: the reference instance with one thing changed, or many at once.

Each case has the number of seeds at which its figures settle or, where one takes seconds, that can be waited for. With
outages they settle late: one long outage near the end adds half a day to a crawl.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.simulator.instances import FLAT, PACE_OF_SHARED_NIGHT, REFERENCE, SHARED_NIGHT, SWINGING, Case

# Sites fail now and then; a slot leaves one that has been out for three minutes.
OUTAGES = {"outages_per_hour": 0.01, "patience_hours": 0.05}
COMBINED = replace(REFERENCE, error=0.1, sizes_known=False, assumed_exponent=1.0, **OUTAGES)
COMBINED_TAILED = replace(COMBINED, sizes="lognormal", phase_hours=3.0, pace=PACE_OF_SHARED_NIGHT)

# Name -> case, most seeds.
CASES: dict[str, tuple[Case, int]] = {
    "sites share a night (spread 3 h)": (SHARED_NIGHT, 200),
    "phases spread 6 h": (replace(REFERENCE, phase_hours=6.0), 60),
    "20 sites, 4 slots": (replace(REFERENCE, sites=20), 60),
    "50 sites, 4 slots": (replace(REFERENCE, sites=50), 60),
    "100 sites, 16 slots": (replace(REFERENCE, slots=16), 60),
    "100 sites, 1 slot": (replace(REFERENCE, slots=1), 15),
    "400 sites, 16 slots": (replace(REFERENCE, sites=400, slots=16), 20),
    "2000 sites, 80 slots": (replace(REFERENCE, sites=2000, slots=80), 2),
    "sizes equal": (replace(REFERENCE, sizes="equal"), 60),
    "sizes exponential": (replace(REFERENCE, sizes="exponential"), 60),
    "sizes lognormal": (replace(REFERENCE, sizes="lognormal"), 60),
    "sizes Pareto 1.5": (replace(REFERENCE, sizes="pareto"), 60),
    "sizes unknown": (replace(REFERENCE, sizes_known=False), 60),
    "hours differ by 0.1, known": (replace(REFERENCE, noise=0.1), 60),
    "forecast error 0.05": (replace(REFERENCE, error=0.05), 60),
    "forecast error 0.10": (replace(REFERENCE, error=0.1), 60),
    "forecast error 0.10, smoothed": (replace(REFERENCE, error=0.1, harmonics=2), 60),
    "forecast error 0.20": (replace(REFERENCE, error=0.2), 60),
    "forecast error 0.20, smoothed": (replace(REFERENCE, error=0.2, harmonics=2), 60),
    "phase error 2 h": (replace(REFERENCE, phase_error_hours=2.0), 60),
    "phase error 4 h": (replace(REFERENCE, phase_error_hours=4.0), 60),
    "law taken for 1 - load": (replace(REFERENCE, assumed_exponent=1.0), 60),
    "law taken for (1 - load)^2": (replace(REFERENCE, assumed_exponent=2.0), 60),
    "only flat sites": (replace(REFERENCE, kinds=FLAT), 60),
    "only swinging sites": (replace(REFERENCE, kinds=SWINGING), 60),
    "half the swing": (replace(REFERENCE, swing=0.5), 60),
    "outages, waited for": (replace(REFERENCE, outages_per_hour=0.01), 60),
    "outages, left after 3 min": (replace(REFERENCE, **OUTAGES), 60),
    "combined I": (COMBINED, 200),
    "combined I, smoothed": (replace(COMBINED, harmonics=2), 200),
    "combined II": (COMBINED_TAILED, 200),
    "combined II, smoothed": (replace(COMBINED_TAILED, harmonics=2), 200),
    "pace capped at 0.5": (replace(REFERENCE, cap=0.5), 40),
    "pace capped at 0.25": (replace(REFERENCE, cap=0.25), 40),
    "pace capped at 0.1": (replace(REFERENCE, cap=0.1), 40),
}
