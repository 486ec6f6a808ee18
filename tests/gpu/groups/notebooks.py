"""Four notebooks with PyTorch on one card: kernels of `gpushare-ctl jupyter install`, driven by jupyter_client. A small capacity
forces the turns; with `--backend remap` they really hold 1.25 times the card together. Each computes what a notebook without
gpushare computes; then Ctrl-C ends the wait of a forward and of a backward pass while another notebook keeps the card, and the
next cell computes right.

Needs ipykernel, jupyter_client and gpushare_jupyter (ctl/jupyter) on PYTHONPATH; docs/gpu-suite.md says how.
"""

import contextlib
import importlib.util
import json
import os
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path

from daemon import clean_environment
from notebook import Notebook, NotebookFailed, holds, interrupted, until, waits
from programs import ProgramFailed

NEEDS = 120

NOTEBOOKS, ROUNDS, STEPS = 4, 3, 20
# What each holds beside its model: with managed memory little, and with remapped memory its part of so many cards.
HELD_MIB, CARDS = 256, 1.25
KERNEL = "python3-gpushare"
# What the capacity leaves beside one notebook: less than another one needs, so that they take turns.
ROOM_MIB = 64
# What the product promises.
INTERRUPT_SECONDS = 1.0
# PyTorch's error may be there before Python has looked at the signal.
ENDS = ("KeyboardInterrupt", "AcceleratorError")
PACKAGES = ("ipykernel", "jupyter_client", "gpushare_jupyter")

SETUP = """
import os, torch
from torch import nn
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
torch.manual_seed(7)
torch.use_deterministic_algorithms(True)
model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(2048, 2048), nn.Tanh())]).cuda()
held = torch.full((HELD_MIB << 17,), 3, dtype=torch.int64, device="cuda")
x, ones = torch.randn(512, 2048, device="cuda"), torch.ones((), device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

def train(steps):
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    return f"{loss.item():.9e}"

def gradient():
    optimizer.zero_grad(set_to_none=True)
    model(x).square().mean().backward()
    norms = torch.stack([parameter.grad.norm() for parameter in model.parameters()])
    return f"{norms.sum().item():.9e} {int(held.sum().item())}"

def hold(path):
    while not os.path.exists(path):
        for _ in range(20):
            y = x @ x.T
        torch.cuda.synchronize()

print(train(1), gradient())
"""
TRAIN = f"print(train({STEPS}), gradient())"
# The pass whose launches wait: in the main thread, or in autograd's thread, for which the main thread waits in C++.
PASSES = {
    "forward": ("pass", "model(x)"),
    "backward": ("loss = model(x).square().mean(); torch.cuda.synchronize()", "loss.backward(ones)"),
}


def run(stand):
    missing = [package for package in PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        stand.figures.row("notebooks", f"not run: there is no {', '.join(missing)} here")
        return
    allows_managed = stand.backend != "remap"
    with stand.daemon(allows_managed=allows_managed) as daemon, tempfile.TemporaryDirectory(prefix="gpushare-notebooks-") as folder:
        try:
            measure(stand, daemon, Path(folder))
        except NotebookFailed as failure:
            raise ProgramFailed(str(failure)) from failure


def measure(stand, daemon, folder):
    environment = prepare(stand, daemon, folder, stand.backend)
    is_remapped = stand.backend == "remap"
    held_mib = int(CARDS * stand.card.total_mib / NOTEBOOKS) if is_remapped else HELD_MIB
    setup = f"HELD_MIB = {held_mib}\n{SETUP}"
    with Notebook(0, "python3", environment) as alone:
        expected = [alone.result(setup)] + [alone.result(TRAIN) for _ in range(ROUNDS)]
    with contextlib.ExitStack() as stack:
        checked = environment | ({"GPUSHARE_PARANOID": "1"} if is_remapped else {})
        start = lambda number: Notebook(number, KERNEL, checked, log=stand.logs / f"notebook-{number}.err")
        notebooks = [stack.enter_context(start(number)) for number in range(1, NOTEBOOKS + 1)]
        take_turns(stand, daemon, notebooks, setup, expected)
        if is_remapped:
            # Two of them fit the card.
            make_room_for_one(daemon, notebooks)
        for name, passes in PASSES.items():
            interrupt(stand, daemon, notebooks[0], notebooks[1], folder, name, passes)
        if is_remapped:
            missed = [notebook.number for notebook in notebooks if notebook.missed()]
            stand.figures.equal("notebooks: those whose work was in flight while memory left", missed, [])


def prepare(stand, daemon, folder, backend):
    """Installs the kernel into a folder of its own; the environment of all kernels."""
    kernel = folder / "jupyter/kernels/python3"
    kernel.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "Python 3", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(spec))
    places = {
        "JUPYTER_DATA_DIR": str(folder / "jupyter"),
        "JUPYTER_RUNTIME_DIR": str(folder / "run"),
        "IPYTHONDIR": str(folder / "ipython"),
    }
    # gpushare-ctl asks the kernel's Python for the extension from another folder.
    if packages := os.environ.get("PYTHONPATH"):
        places["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, packages.split(os.pathsep)))
    # jupyter_client looks for kernels by its own environment, and so does gpushare-ctl.
    os.environ.update(places)
    said = json.loads(daemon.tell("jupyter", "install", "--json", "--backend", backend))
    stand.figures.command("notebooks", said["argv"])
    stand.figures.check("notebooks: the kernel loads the extension", said["extension"], said)
    return clean_environment() | places | {"GPUSHARE_RUNTIME_DIR": str(daemon.runtime), "CUDA_VISIBLE_DEVICES": "0"}


def session(daemon, notebook):
    return notebook.session(daemon.status()["sessions"])


def used_mib(daemon, notebooks):
    return [sum(gpu["allocated_bytes"] for gpu in session(daemon, notebook)["gpus"]) >> 20 for notebook in notebooks]


def make_room_for_one(daemon, notebooks):
    daemon.set("capacity", f"{max(used_mib(daemon, notebooks)) + ROOM_MIB}MiB", "--gpu", "0")


def take_turns(stand, daemon, notebooks, setup, expected):
    figures = stand.figures
    for notebook in notebooks:
        figures.equal(f"notebooks: {notebook.number}: first cell", notebook.result(setup), expected[0])
    used = used_mib(daemon, notebooks)
    if stand.backend == "remap":
        cards = sum(used) / stand.card.total_mib
        figures.check("notebooks: together they hold more than the card", cards >= CARDS, f"{cards:.2f} cards")
    else:
        make_room_for_one(daemon, notebooks)
    before = daemon.gpu()["handoffs"]

    began, first = datetime.now(timezone.utc), {}
    cells = [(notebook, number, notebook.send(TRAIN)) for number in range(ROUNDS) for notebook in notebooks]
    for notebook, number, cell in cells:
        content, printed = notebook.answer(cell)
        lines = printed.splitlines() or [content.get("evalue", "")]
        figures.equal(f"notebooks: {notebook.number}: result of round {number + 1}", lines[-1], expected[number + 1])
        first.setdefault(notebook.number, (notebook.answered - began).total_seconds())
    handoffs = daemon.gpu()["handoffs"] - before
    figures.check("notebooks: the lock changed hands", handoffs >= NOTEBOOKS, handoffs)
    figures.sample("notebooks in turns", {"first_result_s": first, "used_mib": used, "handoffs": handoffs})
    figures.row("notebooks: wait of each first result", ", ".join(f"{wait:.2f} s" for wait in sorted(first.values())))
    figures.row(f"notebooks: handoffs for {NOTEBOOKS * ROUNDS} cells", handoffs)


def interrupt(stand, daemon, holder, waiter, folder, name, passes):
    """Ctrl-C ends a pass that waits, while the holder keeps the card."""
    figures, file = stand.figures, folder / f"release-{name}"
    before, waiting_pass = passes
    expected = waiter.result("print(gradient())")
    waiter.run(before)
    daemon.set("quantum", "10min", "--gpu", "0")
    holding = holder.send(f"hold({str(file)!r})")
    until("the holder holds the card", lambda: holds(session(daemon, holder)))
    cell = waiter.send(waiting_pass)
    until("the pass waits", lambda: waits(session(daemon, waiter)))
    waiter.listen(lambda kind, content, parent: parent == cell and kind == "display_data")
    figures.check(f"notebooks: {name}: a line under the cell says that it waits", "waiting for the GPU" in waiter.shown[cell][0])
    content, seconds = interrupted(waiter, cell)
    still = holds(session(daemon, holder))
    ended = content.get("ename")
    figures.check(f"notebooks: {name}: the cell ends by the interrupt", ended in ENDS, ended)
    figures.check(f"notebooks: {name}: the holder kept the card meanwhile", still)
    figures.check(f"notebooks: {name}: within {INTERRUPT_SECONDS} s", seconds <= INTERRUPT_SECONDS, f"{seconds:.2f} s")
    figures.sample(f"notebooks {name} interrupted", {"seconds": seconds, "reply": content})
    figures.row(f"notebooks: {name} pass interrupted after", f"{seconds:.3f} s")
    file.touch()
    figures.equal(f"notebooks: {name}: the holder's cell ends well", holder.answer(holding)[0]["status"], "ok")
    daemon.set("quantum", "auto", "--gpu", "0")
    figures.equal(f"notebooks: {name}: the next cell computes right", waiter.result("print(gradient())"), expected)
