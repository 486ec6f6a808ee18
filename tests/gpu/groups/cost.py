"""What a call through gpushare costs more than the driver's own, measured in paired batches in one process, so that the
machine's noise meets both alike: an empty launch, cuMemGetInfo, an allocation of 4 MiB with its free, a synchronous copy of
4 KiB to the card, and the first context."""

import re
import shutil
import statistics
import subprocess

from programs import CLIENTS

NEEDS = 40
BATCHES = 300
# The promise: a launch is slower by at most the larger of these two.
SLOWER_NS, SLOWER_SHARE = 100, 0.02
# A question that we answer ourselves is no slower than the driver's answer, as far as the clock can tell.
QUESTION_NS = 50
# The promises for remapped memory: an allocation is no slower than the driver's, but for what the clock tells, and a copy is
# slower by a microsecond at most.
ALLOCATION_SHARE, COPY_NS = 0.02, 1000
FIRST_CONTEXT_MS = 5


def run(stand):
    figures = stand.figures
    program = stand.logs / "paired"
    compiler = shutil.which("cc") or "gcc"
    command = [compiler, "-O2", "-o", str(program), str(CLIENTS / "paired.c"), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    figures.command("paired build", command)
    with stand.daemon() as daemon, stand.programs(daemon) as programs:
        native = programs.start("cost-native", [program, BATCHES], shared=False).result()
        shared = programs.start("cost-shared", [program, BATCHES], shared=True)
        said = shared.result()
    figures.sample("cost", {"native": native, "shared": said})
    figures.equal("cost: alone, both ways lead to the driver", distinct(native), False)
    figures.equal("cost: shared, the two ways differ", distinct(said), True)
    launch, question = quartiles(said, "launch"), quartiles(said, "get_info")
    allowed = max(SLOWER_NS, SLOWER_SHARE * launch[1])
    figures.check("cost: an empty launch is slower by at most 100 ns or 2%", launch[0] - launch[1] <= allowed, launch)
    figures.check("cost: cuMemGetInfo is no slower", question[0] - question[1] <= QUESTION_NS, question)
    allocation, copy = quartiles(said, "allocation"), quartiles(said, "copy")
    if stand.backend == "remap":
        slower = allocation[0] - allocation[1]
        figures.check("cost: cuMemAlloc and cuMemFree of 4 MiB are no slower", slower <= ALLOCATION_SHARE * allocation[1], allocation)
        figures.check("cost: a copy of 4 KiB is slower by at most 1 µs", copy[0] - copy[1] <= COPY_NS, copy)
    calls = {"empty launch": launch, "cuMemGetInfo": question, "cuMemAlloc and cuMemFree of 4 MiB": allocation, "copy of 4 KiB": copy}
    for name, (given, own) in calls.items():
        figures.row(f"cost: {name}, lower quartile: gpushare, driver, difference", f"{given:.0f}, {own:.0f}, {given - own:+.0f} ns")
    figures.row(
        "cost: control without gpushare, empty launch, the same function twice",
        f"{quartiles(native, 'launch')[0] - quartiles(native, 'launch')[1]:+.0f} ns",
    )
    first_context(figures, shared, native, said)


def distinct(said):
    return said["launch"]["distinct"]


def quartiles(said, name):
    """The lower quartile of what was given and of the driver's own."""
    return [statistics.quantiles(said[name][side], n=4)[0] for side in ("given_ns", "own_ns")]


def first_context(figures, shared, native, said):
    """Our own time during the first context, as the summary line at exit tells it."""
    found = re.search(r"first context ([0-9.]+) ms", shared.log.read_text())
    if not figures.check("cost: the summary tells our time in the first context", found, shared.log):
        return
    ours = float(found[1])
    figures.check(f"cost: our own time in the first context is at most {FIRST_CONTEXT_MS} ms", ours <= FIRST_CONTEXT_MS, ours)
    figures.row("cost: first context, our own time", f"{ours:.2f} ms")
    totals = ", ".join(f"{run['first_context_ns'] / 1e6:.0f}" for run in (native, said))
    figures.row("cost: first context in all, native, shared", f"{totals} ms")
