"""Libraries and toolkits as people use them, with and without gpushare, compared by value: every case runs twice at once,
alone and shared, and says the same. Then what a session's own nvidia-smi says, and NCCL where there are two cards.

A case that cannot run here (a package that is not installed, no second card) is a row that says so, not a pass.
"""

import importlib.util
import shutil
import subprocess
from dataclasses import dataclass, field

import card
from programs import CLIENTS, ProgramFailed, client

NEEDS = 240
ANSWER_LIMIT = 150
# Programs that run at the same time; each case is two.
TOGETHER = 4
SESSION_MIB, HELD_MIB = 2048, 512
FOLDER = CLIENTS / "compatibility"
# What the driver maps large arrays in.
PAGE = 2 << 20


@dataclass(frozen=True)
class Case:
    name: str
    command: list
    environment: dict = field(default_factory=dict)
    # The suite's own where it is None.
    backend: str | None = None
    # What it cannot run without.
    package: str | None = None
    # What it says under gpushare where that is not what it says alone.
    shared_says: dict | None = None
    why: str = ""


def torch_case(name, case, **rest):
    return Case(f"PyTorch {name}", client("compatibility/pytorch.py", case), **rest)


def array_case(name, case, package, **rest):
    return Case(name, client("compatibility/arrays.py", case), package=package, **rest)


def allocator(settings):
    return {"PYTORCH_ALLOC_CONF": settings, "PYTORCH_CUDA_ALLOC_CONF": settings}


HANDED_OVER = client("compatibility/handed_over.py")
UNCACHED = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}

CASES = [
    torch_case("eager", "eager"),
    torch_case("torch.compile (Triton)", "compiled", environment=UNCACHED),
    torch_case("CUDA graphs (make_graphed_callables)", "graphed"),
    torch_case("expandable_segments:True", "allocator", environment=allocator("expandable_segments:True")),
    torch_case("backend:cudaMallocAsync", "allocator", environment=allocator("backend:cudaMallocAsync")),
    torch_case("own allocator", "allocator"),
    torch_case("DataLoader workers (fork before CUDA)", "workers"),
    torch_case("AMP", "amp"),
    torch_case("cuDNN", "cudnn"),
    torch_case("streams, events, pinned copies", "streams"),
    torch_case("eager, --backend native", "eager", backend="native"),
    array_case("CuPy, own pool", "cupy_pool", "cupy"),
    array_case("CuPy, async pool", "cupy_async", "cupy"),
    array_case("CuPy, managed pool", "cupy_managed", "cupy"),
    array_case("JAX, preallocation off", "jax", "jax"),
    array_case("numba-cuda", "numba", "numba"),
    array_case("Triton alone", "triton", "triton"),
    Case("CUDA IPC by PyTorch, --backend native", HANDED_OVER, backend="native"),
    Case("CUDA IPC by PyTorch, --backend remap", HANDED_OVER, backend="remap"),
    Case(
        "CUDA IPC by PyTorch, --backend managed",
        HANDED_OVER,
        backend="managed",
        shared_says={"refused": "AcceleratorError", "next": sum(range(1 << 16))},
        why="managed memory has no IPC handle; refused with a line that names --backend native",
    ),
]
TOOLKIT = {
    "static cudart": [],
    "shared cudart": ["-cudart", "shared"],
    "static cudart, --default-stream per-thread": ["--default-stream", "per-thread"],
    "shared cudart, --default-stream per-thread": ["-cudart", "shared", "--default-stream", "per-thread"],
}


def run(stand):
    figures = stand.figures
    with stand.daemon() as daemon, stand.programs(daemon) as programs:
        cases = CASES + built(stand)
        for first in range(0, len(cases), TOGETHER):
            wave = [case for case in cases[first : first + TOGETHER] if can_run(figures, case)]
            compare(stand, programs, wave)
        arrays(stand, programs)
        nvidia_smi(stand, programs)
        two_cards(stand, programs)
        figures.equal("compatibility: nothing is left in the books", sum(g["allocated_bytes"] for g in daemon.status()["gpus"]), 0)


def can_run(figures, case):
    missing = case.package and importlib.util.find_spec(case.package) is None
    if missing:
        figures.row(f"compatibility: {case.name}", f"not run: there is no {case.package} here")
    return not missing


def slug(name):
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower())


def compare(stand, programs, cases):
    """Starts every case alone and shared, all at once, then holds each pair together."""
    started = [(case, start(programs, case, False), start(programs, case, True)) for case in cases]
    for case, alone, shared in started:
        judge(stand.figures, case, values(alone), values(shared))


def start(programs, case, shared):
    how = "shared" if shared else "native"
    return programs.start(
        f"compat-{slug(case.name)}-{how}",
        case.command,
        shared=shared,
        backend=case.backend,
        environment=case.environment,
    )


def values(program):
    """What a program said, or the failure that says why it said nothing."""
    try:
        return program.result(limit=ANSWER_LIMIT)["values"]
    except ProgramFailed as failure:
        return {"failed": str(failure)}


def judge(figures, case, alone, shared):
    name = f"compatibility: {case.name}"
    figures.sample(name, {"alone": alone, "shared": shared})
    ran = figures.check(f"{name}: runs alone", "failed" not in alone, alone)
    good = figures.equal(f"{name}: shared, it says what it promises", shared, case.shared_says or alone)
    verdict = "same values" if case.shared_says is None else case.why
    if not (ran and good):
        verdict = f"FAILED: {str(shared.get('failed', shared))[:300]}"
    figures.row(name, verdict)


def built(stand):
    """The nvcc program in its four builds, and what the driver's own functions answer, on both backends."""
    cases = []
    for name, flags in TOOLKIT.items():
        if target := compiled(stand, f"nvcc, {name}", "toolkit.cu", ["-arch=native", *flags]):
            cases.append(Case(f"nvcc, {name}", [target]))
    if target := compiled(stand, "driver API", "driver.c", ["-lcuda", "-ldl"]):
        cases += [Case(f"driver API, --backend {backend}", [target, backend], backend=backend) for backend in stand.backends]
    return cases


def compiled(stand, name, source, flags):
    """One of our programs for nvcc, if it can be built here."""
    target = stand.logs / slug(f"built {name}")
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    command = [nvcc, "-O2", "-o", str(target), str(FOLDER / source), *flags]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except OSError as error:
        stand.figures.row(f"compatibility: {name}", f"not run: {error}")
        return None
    stand.figures.command(f"build {name}", command)
    built = stand.figures.check(f"compatibility: {name}: builds", done.returncode == 0, done.stderr)
    return target if built else None


def arrays(stand, programs):
    """Arrays are charged what they take, but for the driver's pages: 4 KiB, 2 MiB for large ones, and what is left over where
    several share one."""
    if not (target := compiled(stand, "arrays", "arrays.c", ["-lcuda"])):
        return
    # One after the other: what is free natively is the whole card's. In a session without a quota the limit for managed
    # memory would hide what is charged for memory that is not.
    took = programs.start("compat-arrays-native", [target], shared=False).result()["values"]
    charged = programs.start("compat-arrays-shared", [target], shared=True, memory=f"{SESSION_MIB}MiB").result()["values"]
    figures = stand.figures
    figures.sample("arrays", {"took": took, "charged": charged})
    for shape, bytes_taken in took.items():
        of_it = charged[shape]
        page = PAGE if bytes_taken >= PAGE // 2 else max(4096, of_it // 5)
        fits = of_it - 4096 <= bytes_taken <= of_it + page
        figures.check(f"compatibility: {shape}: is charged what it takes", fits, [bytes_taken, of_it])
    figures.row("compatibility: arrays", f"{len(took)} shapes; charged of what they took: {sum(charged.values()) / sum(took.values()):.1%}")


def nvidia_smi(stand, programs):
    """The session's limit, its own usage, and its own processes, while another session is on the card."""
    figures = stand.figures
    other = programs.start("compat-smi-neighbour", stand.workload("hold"), shared=True)
    other.hear()
    other.ask("alloc a 256MiB")
    command = client("compatibility/smi.py", "--hold-mib", HELD_MIB)
    # nvidia-smi lists every card; the program looks at the first.
    inside = programs.start("compat-smi", command, shared=True, memory=f"{SESSION_MIB}MiB", options=["--gpu", "0"]).result()
    outside = programs.start("compat-smi-native", command, shared=False).result()
    other.finish()
    figures.sample("nvidia-smi", {"inside": inside, "outside": outside})
    total, used, free = inside["smi_mib"]
    name = "compatibility: nvidia-smi in a session"
    figures.equal(f"{name}: its total is the session's limit", total, SESSION_MIB)
    figures.equal(f"{name}: CUDA tells the same total", [inside["cuda_mib"][0], inside["properties_mib"]], [SESSION_MIB] * 2)
    figures.check(f"{name}: used is the session's own", HELD_MIB <= used < HELD_MIB + 256, inside["smi_mib"])
    figures.check(f"{name}: free is what the limit leaves", free <= SESSION_MIB - used, inside["smi_mib"])
    pids = [int(pid) for pid, *_ in inside["processes"]]
    figures.equal(f"{name}: the process list is the session's own", pids, [inside["pid"]])
    figures.equal(f"{name}: its picture can be drawn", inside["plain"], 0)
    figures.equal(f"{name}: outside, the total is the card's", outside["smi_mib"][0], stand.card.total_mib)
    figures.row(name, f"{total} MiB total, {used} used, {free} free; processes {pids}; outside {outside['smi_mib'][0]} MiB")


def two_cards(stand, programs):
    if card.count() < 2:
        stand.figures.row("compatibility: NCCL on two cards", "not run: there is one card")
        return
    command = client("compatibility/two_cards.py")
    # One card's multicast can be out of service for its neighbours: not used here, with or without gpushare.
    environment = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    # A session runs on one card unless its caller says otherwise.
    environment["CUDA_VISIBLE_DEVICES"] = "0,1"
    compare(
        stand,
        programs,
        [
            Case(f"NCCL on two cards, --backend {backend}", command, environment=environment, backend=backend)
            for backend in stand.backends
        ],
    )
