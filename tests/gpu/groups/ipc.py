"""CUDA IPC by PyTorch's queues, with and without gpushare, on the backends that can share memory. Then a tensor that one process of a
session has and another one has opened: it stays on the card while a program of another session makes their other memory leave, it
is counted once, and it is paid for by whoever keeps it when its maker is killed.
"""

import subprocess

from programs import client

NEEDS = 180

COMMAND = client("shared_tensors.py")
BACKENDS = ("remap", "native")
LIMIT = 120
# The tensor that is shared, what another program holds beside it, and a capacity that has no room for all of it together
# with what the sharing session holds of its own.
SHARED_MIB, OWN_MIB, OTHER_MIB, CAPACITY_MIB = 1024, 1536, 2048, 4096
ROUNDS = 3
# What a program has of small blocks beside its tensors.
SPARE_MIB = 64


def run(stand):
    figures = stand.figures
    with stand.daemon() as daemon, stand.programs(daemon) as programs:
        same_values(figures, programs)
        figures.equal("ipc: nothing is left in the books", sum(g["allocated_bytes"] for g in daemon.status()["gpus"]), 0)
    with stand.daemon(flags=["--capacity", f"0={CAPACITY_MIB}MiB"]) as daemon, stand.programs(daemon) as programs:
        one_tensor(figures, daemon, programs)


def same_values(figures, programs):
    """Tensors of several sizes, and parts of them, go to another process and come back changed."""
    alone = answer(programs.start("ipc-native", COMMAND, shared=False), "values")
    figures.equal("ipc: the other process ends well without gpushare", alone["exit"], 0)
    for backend in BACKENDS:
        shared = answer(programs.start(f"ipc-{backend}", COMMAND, shared=True, backend=backend), "values")
        figures.sample(f"ipc values {backend}", {"alone": alone, "shared": shared})
        same = figures.equal(f"ipc: same values, --backend {backend}", shared, alone)
        figures.row(f"CUDA IPC by PyTorch, --backend {backend}: {len(alone['found'])} tensors", "same values" if same else "FAILED")


def one_tensor(figures, daemon, programs):
    """One tensor under handoffs, then without its maker. Runs without gpushare too, for what NVML says."""
    native = programs.start("ipc-open-native", COMMAND, shared=False)
    says_of(figures, "without gpushare", native, lambda: None)
    native.finish()
    sharer = programs.start("ipc-open", COMMAND, shared=True, backend="remap")
    own = programs.start("ipc-own", client("holder.py"), shared=True, backend="remap")
    other = programs.start("ipc-other", client("holder.py"), shared=True, backend="remap")
    for program, mib in ((own, OWN_MIB), (other, OTHER_MIB)):
        program.hear()
        program.ask(f"hold {mib}", LIMIT)

    def handoffs():
        before = daemon.gpu()["moved_bytes"]
        for _ in range(ROUNDS):
            for program in (own, other):
                program.ask("step", LIMIT)
            figures.check("ipc: both see each other's changes between handoffs", sharer.ask("step", LIMIT)["is_right"])
        figures.check("ipc: memory of the others moved meanwhile", daemon.gpu()["moved_bytes"] > before, daemon.status())
        figures.check("ipc: the tensor is counted once", is_about(daemon.used_mib("ipc-open")), daemon.session("ipc-open"))

    says_of(figures, "under gpushare", sharer, handoffs)
    figures.check("ipc: its opener pays for it when its maker is killed", is_about(daemon.used_mib("ipc-open")), daemon.session("ipc-open"))
    sharer.ask("close", LIMIT)
    figures.check("ipc: nobody pays once it is closed", daemon.used_mib("ipc-open") < SHARED_MIB, daemon.session("ipc-open"))
    for program in (own, other):
        figures.check(f"ipc: every word of {program.name} is right", program.ask("check", LIMIT)["right"])
    for program in (sharer, own, other):
        program.finish()


def says_of(figures, how, program, meanwhile):
    """Opens the tensor, and kills its maker. What NVML says of both processes are rows."""
    program.hear()
    opened = program.ask(f"open {SHARED_MIB}", LIMIT)
    figures.check(f"ipc: the opened tensor is right, {how}", opened["is_right"], opened)
    meanwhile()
    pids = [opened["maker"], opened["opener"]]
    before = nvml_mib(pids)
    killed = program.ask("kill", LIMIT)
    figures.check(f"ipc: the tensor is right after its maker was killed, {how}", killed["is_right"], killed)
    after = nvml_mib(pids)
    figures.sample(f"ipc nvml {how}", {"before": before, "after": after})
    figures.row(f"a tensor of {SHARED_MIB} MiB that is shared, {how}: NVML's MiB of maker and opener; of the opener without it", f"{before}; {after[1]}")


def answer(program, order):
    program.hear()
    said = program.ask(order, LIMIT)
    program.finish()
    return said


def is_about(used_mib):
    return used_mib is not None and SHARED_MIB <= used_mib <= SHARED_MIB + SPARE_MIB


def nvml_mib(pids):
    """What NVML says that each process has on the card, None where it lists no such process."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    rows = subprocess.run(query, capture_output=True, text=True, timeout=30).stdout.splitlines()
    listed = dict(row.split(", ") for row in rows if ", " in row)
    return [int(mib) if (mib := listed.get(str(pid), "")).isdigit() else None for pid in pids]
