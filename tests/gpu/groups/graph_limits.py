"""Compute limits of programs whose whole step is a CUDA graph: one that waits for every step, one that runs ahead of the
card, and one whose step is many small graphs. Each as percent of its own rate without a limit.
"""

from groups.limits import Limits
from programs import client

NEEDS = 190

PERCENTS = (25, 50)
# All have steps of some 30 ms, so that a rate is known after a hundred.
FORMS = {
    "a graph a step, awaited": [],
    "a graph a step, four ahead": ["--ahead", "4"],
    "many small graphs a step": ["--replays", "30", "--width", "256", "--layers", "4", "--batch", "4", "--ahead", "1"],
}


def run(stand):
    with stand.daemon() as daemon, stand.programs(daemon) as programs:
        running = [
            programs.start(f"graph-limits-{number}", client("graphed.py", *arguments), shared=True)
            for number, arguments in enumerate(FORMS.values())
        ]
        for program in running:
            program.hear()
        limits = Limits(stand, daemon)
        for form, program in zip(FORMS, running):
            for percent in PERCENTS:
                limits.hold(f"{form}, {percent}%", [(program, percent)])
