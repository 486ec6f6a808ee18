"""The suite for a machine with a real NVIDIA GPU. docs/gpu-suite.md says what each group asserts.

    python3 tests/gpu/suite.py --stage target/stage --out results [--groups smoke,training]

`--stage` holds the release builds (`cargo xtask gpu stage`). All programs together may allocate an eighth of what
the card has free; the daemon refuses the rest. Ends with a table and `N passed, N failed`; figures.json and
logs.tar.gz hold everything.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import card
from daemon import DaemonFailed
from deadline import Deadline
from figures import Figures
from groups import (
    at_once,
    bursts,
    capped,
    compatibility,
    contention,
    cost,
    deaths,
    density,
    fairness,
    first_handoff,
    freezing,
    freezing_calls,
    gangs,
    graph_limits,
    graphs,
    handles,
    handoff,
    ipc,
    large_bursts,
    larger,
    limits,
    memory,
    neighbours,
    notebooks,
    oversubscribed,
    paging,
    paranoid,
    pytorch_tests,
    quotas,
    serving,
    sessions,
    shared_copies,
    smoke,
    switches,
    training,
    unchanged,
    urgent,
    witness,
)
from programs import ProgramFailed
from stand import Stand

GROUPS = {
    "smoke": smoke,
    "training": training,
    "graphs": graphs,
    "contention": contention,
    "limits": limits,
    "graph_limits": graph_limits,
    "fairness": fairness,
    "bursts": bursts,
    "urgent": urgent,
    "serving": serving,
    "switches": switches,
    "gangs": gangs,
    "handoff": handoff,
    "first_handoff": first_handoff,
    "handles": handles,
    "unchanged": unchanged,
    "shared_copies": shared_copies,
    "oversubscribed": oversubscribed,
    "larger": larger,
    "capped": capped,
    "large_bursts": large_bursts,
    "neighbours": neighbours,
    "paranoid": paranoid,
    "paging": paging,
    "memory": memory,
    "quotas": quotas,
    "sessions": sessions,
    "notebooks": notebooks,
    "freezing": freezing,
    "freezing_calls": freezing_calls,
    "density": density,
    "deaths": deaths,
    "witness": witness,
    "compatibility": compatibility,
    "ipc": ipc,
    "pytorch_tests": pytorch_tests,
    "cost": cost,
    "at_once": at_once,
}
# Parts of groups by the names that people use for them.
ALIASES = {"alone": "training", "parallel": "contention", "turns": "contention"}
# What is kept for the table and the archive at the end.
RESERVE = 5


def group_names(text):
    """The groups named, each once, in the suite's order."""
    wanted = {ALIASES.get(name, name) for name in text.split(",") if name}
    unknown = wanted - set(GROUPS)
    if unknown:
        raise argparse.ArgumentTypeError(f"no group {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    return [name for name in GROUPS if name in wanted]


def run_group(stand, name):
    module, figures = GROUPS[name], stand.figures
    figures.group(name)
    if not stand.deadline.allows(module.NEEDS):
        left = stand.deadline.left()
        figures.check(f"{name}: there is time for it", False, f"it needs {module.NEEDS} s, {left:.0f} s are left")
        return
    begin = time.monotonic()
    try:
        module.run(stand)
    except (ProgramFailed, DaemonFailed) as error:
        figures.check(f"{name}: ran to its end", False, error)
    except Exception:
        # A mistake of the suite's own is a failure too, and the groups after it still run.
        figures.check(f"{name}: ran to its end", False, traceback.format_exc())
    figures.sample("group seconds", {name: round(time.monotonic() - begin, 1)})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", type=Path, default=Path("target/stage"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--groups", type=group_names, default=list(GROUPS), help=f"of {','.join(GROUPS)}")
    parser.add_argument("--rounds", type=int, default=20, help="alternations of the training comparison")
    parser.add_argument("--backend", choices=("managed", "remap"), default="managed", help="memory of the programs")
    parser.add_argument("--pytorch-tests", type=Path, help="folder that holds test_multiprocessing.py (PyTorch's test/)")
    parser.add_argument("--seconds-left", type=float, default=570, help="what the whole suite may take")
    arguments = parser.parse_args()
    if not (arguments.stage / "gpushare-ctl").exists():
        parser.error(f"no gpushare-ctl in {arguments.stage}; `cargo xtask gpu stage` puts the release builds there")
    arguments.out.mkdir(parents=True, exist_ok=True)
    # Whoever ends the suite ends what it started, by the blocks that hold it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="gpushare-suite-") as logs:
        code = run(arguments, Path(logs))
    # Listeners of programs that were given up may still block; nothing is left to wait for.
    sys.stdout.flush()
    os._exit(code)


def run(arguments, logs):
    """Runs the groups; the exit code."""
    found = card.find()
    print(
        f"{found.name}, driver {found.driver}, {found.free_mib} of {found.total_mib} MiB free; "
        f"all programs together may allocate {found.managed_limit_mib} MiB",
        flush=True,
    )
    figures = Figures(arguments.out, logs, found, sys.argv[1:])
    deadline = Deadline(arguments.seconds_left - RESERVE)
    tests = arguments.pytorch_tests and arguments.pytorch_tests.resolve()
    stand = Stand(arguments.stage.resolve(), logs, found, figures, deadline, arguments.rounds, arguments.backend, tests)
    for name in arguments.groups:
        run_group(stand, name)
        figures.save(deadline.passed())
    return figures.finish(deadline.passed())


if __name__ == "__main__":
    main()
