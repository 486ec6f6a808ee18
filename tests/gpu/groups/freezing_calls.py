"""A program of the driver API that is frozen once for each family of the driver's calls, on the backends `remap` and `native`. The
call thaws it, its result is right, and the program has its memory.

The calls are those of the tests on the simulated card. Nobody kills a program that the driver has restored (freezing.py).
"""

import operator
import statistics
import time
from pathlib import Path

from groups.freezing import ENVIRONMENT, frozen_in_the_end

NEEDS = 220

CALLS = Path(__file__).resolve().parents[2] / "tests" / "e2e" / "freezing_calls.txt"
SIGNS = {"=": operator.eq, ">": operator.gt, ">=": operator.ge}


def run(stand):
    with stand.daemon(environment=ENVIRONMENT) as daemon, stand.programs(daemon) as programs:
        for backend in ("remap", "native"):
            of_calls(stand, daemon, programs, backend)


def of_calls(stand, daemon, programs, backend):
    name, figures = f"freezing-calls-{backend}", stand.figures
    command = stand.workload("hold")
    program = programs.start(name, command, shared=True, memory="1GiB", backend=backend, paranoid=False)
    program.hear()
    with frozen_in_the_end(daemon, program, name):
        card = program.ask("facts")["total_bytes"]
        known = families()
        for _, before, _ in (family for family in known if not family[0]):
            figures.check(f"{name}: {before}", all(map(went, tell(program, before))))
        program.ask("stay")
        freezes = []
        for call, effect, wanted in (family for family in known if family[0]):
            had = daemon.allocated(name)
            freezes.append(daemon.freeze(name))
            was_frozen = daemon.frost(name)["stage"] == "frozen"
            answers = tell(program, call)
            is_thawed = daemon.frost(name)["stage"] != "frozen"
            answers += tell(program, effect)
            is_right = waited_for(lambda: says(answers[-1] | {"freed": had - daemon.allocated(name)}, wanted, card))
            answers += tell(program, "check x 7")
            right = was_frozen and is_thawed and is_right and all(map(went, answers))
            figures.check(f"{name}: `{call}` thaws it, and is right", right, (was_frozen, is_thawed, answers))
        figures.row(f"{name}: calls, each of a frozen program; freeze, median and longest", f"{len(freezes)}; {statistics.median(freezes):.2f} s, {max(freezes):.2f} s")
        program.finish()


def families():
    """Call, lines that show its effect, and what the last answer says, for each line of the file."""
    lines = [line for line in CALLS.read_text().splitlines() if line and not line.startswith("#")]
    return [tuple(column.strip() for column in line.split("|")) for line in lines]


def tell(program, lines):
    """The answers to some lines."""
    return [program.ask(line.strip()) for line in lines.split(";") if line.strip()]


def waited_for(holds):
    """Whether something comes to hold within a second."""
    end = time.monotonic() + 1
    while not (does := holds()) and time.monotonic() < end:
        time.sleep(0.05)
    return does


def went(answer):
    """Whether a line was done, and found what it names."""
    return answer["ok"] and answer.get("matches", True)


def says(answer, wanted, card):
    """Whether an answer says what a family wants: names with their values or bounds, by commas."""
    known = {"true": 1, "card": card} | answer
    value = lambda word: float(known[word] if word in known else word)
    parts = (part.split() for part in wanted.split(",") if part)
    return all(SIGNS[sign](value(one), value(other)) for one, sign, other in parts)
