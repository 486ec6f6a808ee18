"""Many notebooks with PyTorch on one card, all frozen but the one that works. Each holds 1 GiB. Then each is asked for a cell,
which thaws it, and is frozen again, round and round.

As many as the host's memory allows, which holds what is not on the card. Nobody kills a process that the driver has restored
(freezing.py): the kernels end by themselves, or are left alone.

Needs what the group `notebooks` needs.
"""

import contextlib
import importlib.util
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from groups.freezing import ENVIRONMENT
from groups.ipc import nvml_mib
from groups.notebooks import KERNEL, PACKAGES, prepare, session
from notebook import Notebook, NotebookFailed
from nvml import Nvml
from programs import ProgramFailed

NEEDS = 330

MIB, GIB = 1 << 20, 1 << 30
NOTEBOOKS, HELD_MIB = 40, 1024
FREEZES = 500
# Host memory that one of them takes: what it holds, its context, and its Python. The machine keeps a part for itself.
EACH, SPARE = 1024 * MIB + 640 * MIB + 1000 * MIB, 16 * GIB
# What the product promises: on the card beside the active one, and of the first result of a frozen one.
CARD_MIB, EACH_MIB = 1.2 * 1024, 8
RESULT_SECONDS = 1.0
# What a freeze and the next result take, at most.
CYCLE_SECONDS = 5
# What the ends of all kernels take.
END_SECONDS = 40

SETUP = f"""
import torch
words = torch.arange({HELD_MIB} << 17, dtype=torch.int64, device="cuda")
expected = int(words.sum())

def right():
    global expected
    words.add_(1)
    expected += words.numel()
    return int(words.sum()) == expected

print(right())
"""
CELL = "print(right())"


def run(stand):
    missing = [package for package in PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        stand.figures.row("density", f"not run: there is no {', '.join(missing)} here")
        return
    budget = ["--host-budget", f"{(available() - SPARE) >> 20}MiB"]
    with tempfile.TemporaryDirectory(prefix="gpushare-density-") as folder, stand.daemon(allows_managed=False, environment=ENVIRONMENT, flags=budget) as daemon:
        try:
            measure(stand, daemon, Path(folder))
        except NotebookFailed as failure:
            raise ProgramFailed(str(failure)) from failure


def available():
    """What the machine has for new programs, in bytes."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def measure(stand, daemon, folder):
    figures, nvml = stand.figures, Nvml()
    environment = prepare(stand, daemon, folder, "remap")
    count = min(NOTEBOOKS, (available() - SPARE) // EACH)
    base = nvml.used()
    start = lambda number: Notebook(number, KERNEL, environment, ends_by_itself=True)
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(count) as threads:
        active = stack.enter_context(start(0))
        figures.equal("density: the active notebook's first cell", active.result(SETUP), "True")
        own = nvml_mib([active.pid])[0]
        figures.check("density: nvidia-smi lists the active notebook", own is not None)
        # The active one's own memory changes, so it is asked for each time.
        beside = lambda: nvml.used() - base - (nvml_mib([active.pid])[0] or 0) * MIB
        started = [start(number) for number in range(1, count + 1)]
        others = [stack.enter_context(notebook) for notebook in started]
        first = list(threads.map(lambda notebook: notebook.result(SETUP), others))
        figures.equal("density: the first cells are right", first, ["True"] * count)
        warm = beside()
        names = {notebook: f"s{session(daemon, notebook)['session']}" for notebook in others}
        freezes = [daemon.freeze(names[notebook]) for notebook in others]
        frozen = beside()
        stages = {daemon.frost(name)["stage"] for name in names.values()}
        figures.equal("density: all are frozen", stages, {"frozen"})
        figures.equal("density: the active notebook works on", active.result(CELL), "True")
        bound = CARD_MIB + EACH_MIB * count
        shown = (base + frozen) / MIB
        figures.check(f"density: at most {bound:.0f} MiB on the card beside the active one", shown <= bound, f"{shown:.0f} MiB")
        name = f"density: on the card beside the active one, {count} notebooks: warm, frozen; without any"
        figures.row(name, f"{warm / MIB:.0f} MiB, {frozen / MIB:.0f} MiB; {base / MIB:.0f} MiB")
        cycle(stand, daemon, names, freezes)
    nvml.close()


def cycle(stand, daemon, names, freezes):
    """Cells of frozen notebooks, each of which is frozen again."""
    figures, results, wrong = stand.figures, [], 0
    notebooks = list(names)
    for number in stand.more_rounds(FREEZES - len(freezes), CYCLE_SECONDS + END_SECONDS):
        notebook = notebooks[number % len(notebooks)]
        began = time.monotonic()
        wrong += notebook.result(CELL) != "True"
        results.append(time.monotonic() - began)
        freezes.append(daemon.freeze(names[notebook]))
    figures.sample("density", {"freezes": freezes, "results": results})
    whole = figures.check("density: each notebook came back", len(results) >= len(notebooks), len(results))
    figures.equal(f"density: wrong results of {len(results)}", wrong, 0)
    if not whole:
        return
    slow = sum(result > RESULT_SECONDS for result in results)
    figures.check(f"density: each first result within {RESULT_SECONDS} s", slow == 0, f"{slow} of {len(results)}, {max(results):.2f} s")
    order = sorted(results)
    p99 = order[int(0.99 * (len(order) - 1))]
    name = f"density: first result of a frozen notebook, median, p99 and longest of {len(results)}"
    figures.row(name, f"{statistics.median(results):.2f}, {p99:.2f}, {order[-1]:.2f} s")
    figures.row(f"density: freeze, median and longest of {len(freezes)}", f"{statistics.median(freezes):.2f}, {max(freezes):.2f} s")
