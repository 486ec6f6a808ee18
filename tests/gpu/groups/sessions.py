"""A session of 4 GiB that an administrator made, met at each door to memory: the quota fits, the least more is out of memory in
the words of whoever asked, the program goes on, and what it freed it can have again. By three programs:

    the driver-API program   nine doors of the driver, on both backends
    PyTorch                  ten doors of the CUDA runtime that it uses, on both backends
    PyTorch, CuPy            what they allocate with

and what `nvidia-smi` says in such a session. No probe asks for more than the quota and 2 MiB.
"""

import importlib.util

from programs import ProgramFailed, client

NEEDS = 60
ANSWER_LIMIT = 120

MIB = 1 << 20
LIMIT_MIB, BLOCKS, OVER_MIB = 4096, 8, 2
HELD_MIB = 512

OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
# Doors of the driver, and the least that can be asked for there.
DRIVER_DOORS = {
    "mem": "1",
    "pitch": "1KiB",
    "managed": "1",
    "async": "1",
    "pool": "1",
    "graph": "1",
    "handle": "2MiB",
    "array": "16KiB",
    "mipmap": "16KiB",
}
# Handles that stand for an address: nothing can be written there by one.
WITHOUT_ADDRESS = ("array", "mipmap")
# CUDA's code for out of memory, of the runtime and of the driver.
REFUSED = 2

# Allocators, and how much of the quota they may be unable to use: the steps in which they take memory from the card.
ALLOCATORS = {
    "PyTorch's own": ("torch", {}, 0),
    "PyTorch's expandable_segments": ("torch", {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, 20),
    "PyTorch's backend:cudaMallocAsync": ("torch", {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}, 32),
    "CuPy's pool": ("cupy", {}, 0),
}


def run(stand):
    with stand.daemon() as daemon, stand.programs(daemon) as programs:
        for backend in stand.backends:
            for door, least in DRIVER_DOORS.items():
                with daemon.kept_session(f"driver-{door}-{backend}", f"{LIMIT_MIB}MiB") as session:
                    driver_door(stand, daemon, programs, session, backend, door, least)
            with daemon.kept_session(f"runtime-{backend}", f"{LIMIT_MIB}MiB") as session:
                runtime_doors(stand, daemon, programs, session, backend)
        for name, (library, environment, step_mib) in ALLOCATORS.items():
            if importlib.util.find_spec(library) is None:
                stand.figures.row(f"sessions: {name}", f"not run: there is no {library} here")
                continue
            with daemon.kept_session(f"{library}-{len(environment)}-{step_mib}", f"{LIMIT_MIB}MiB") as session:
                allocator(stand, daemon, programs, session, name, library, environment, step_mib)
        with daemon.kept_session("smi", f"{LIMIT_MIB}MiB") as session:
            nvidia_smi(stand, programs, session)


def start(programs, session, command, backend=None, environment=None):
    return programs.start(f"sessions-{session}", command, shared=True, session=session, backend=backend, environment=environment)


def answer(figures, name, program):
    """What a program said that ends by itself; None where it failed, which is a failed check."""
    try:
        said = program.result(ANSWER_LIMIT)
    except ProgramFailed as failure:
        figures.check(f"{name}: runs", False, failure)
        return None
    figures.sample(name, said)
    return said


def outcome(said):
    return "ok" if said["ok"] else said["error"]


def nothing_left(figures, name, daemon, session):
    gpus = daemon.session(session)["gpus"]
    figures.equal(f"{name}: nothing is left in the books", sum(gpu["allocated_bytes"] for gpu in gpus), 0)
    return max((gpu["peak_bytes"] for gpu in gpus), default=0)


def driver_door(stand, daemon, programs, session, backend, door, least):
    figures, name = stand.figures, f"sessions: driver API, {door}, --backend {backend}"
    program = start(programs, session, stand.workload("hold"), backend)
    program.hear()
    ask = lambda line: outcome(program.ask(line))
    block, last = f"{LIMIT_MIB // BLOCKS}MiB", BLOCKS - 1

    def story():
        info = program.ask("mem-info")
        return [info["free_bytes"] / MIB, info["total_bytes"] / MIB]

    def free(buffer):
        said = [ask(f"free {buffer}"), ask("sync")]
        return said + ([ask("trim-graphs")] if door == "graph" else [])

    figures.equal(f"{name}: empty, free and total", story(), [LIMIT_MIB] * 2)
    over = ask(f"alloc over {LIMIT_MIB + OVER_MIB}MiB --door {door}")
    figures.equal(f"{name}: the quota and {OVER_MIB} MiB", over, OUT_OF_MEMORY)
    given = [ask(f"alloc b{number} {block} --door {door}") for number in range(BLOCKS)]
    figures.equal(f"{name}: the whole quota in {BLOCKS} blocks", given, ["ok"] * BLOCKS)
    figures.equal(f"{name}: full, free and total", story(), [0, LIMIT_MIB])
    figures.equal(f"{name}: the least more, {least}", ask(f"alloc more {least} --door {door}"), OUT_OF_MEMORY)

    freed = free(f"b{last}")
    figures.equal(f"{name}: a block is freed", set(freed), {"ok"})
    again = [ask(f"alloc b{last} {block} --door {door}"), ask(f"alloc more {least} --door {door}")]
    figures.equal(f"{name}: it is had again, and no more", again, ["ok", OUT_OF_MEMORY])

    # What it has works, and was not lost by a refusal. A checksum needs a few bytes of its own, so one block is freed for it.
    with_address = [] if door in WITHOUT_ADDRESS else list(range(last))
    for number in with_address:
        program.ask(f"fill b{number} {number + 7}")
    figures.equal(f"{name}: full, other memory is refused too", ask("alloc other 1"), OUT_OF_MEMORY)
    other = free(f"b{last}") + [ask(f"alloc other {block}"), ask("fill other 5"), ask("free other")]
    figures.equal(f"{name}: other memory can take its place", set(other), {"ok"})
    kept = [program.ask(f"check b{number} {number + 7}").get("matches") for number in with_address]
    figures.check(f"{name}: its checksums are right", all(kept), kept)
    refusals = daemon.session(session)["refusals"]
    figures.equal(f"{name}: the daemon counted the refusals", refusals, 4)
    for number in range(last):
        free(f"b{number}")
    figures.equal(f"{name}: empty again, free and total", story(), [LIMIT_MIB] * 2)
    program.finish()
    peak = nothing_left(figures, name, daemon, session)
    figures.equal(f"{name}: the peak is the quota", peak / MIB, LIMIT_MIB)
    figures.row(name, f"{BLOCKS} blocks of {block}; then {least} is {again[1]}; checksums of {len(kept)} blocks right")


def runtime_doors(stand, daemon, programs, session, backend):
    figures, name = stand.figures, f"sessions: PyTorch program, --backend {backend}"
    program = start(programs, session, client("limit/doors.py", "--limit-mib", LIMIT_MIB), backend)
    if (said := answer(figures, name, program)) is None:
        return
    limit = LIMIT_MIB * MIB
    for door, story in said["doors"].items():
        at = f"{name}: {door}"
        expected = {
            "before": [limit, limit],
            "limit and 2 MiB": REFUSED,
            "blocks": [0] * BLOCKS,
            "full": [0, limit],
            "the least more": REFUSED,
            "PyTorch is refused": True,
            "frees one": 0,
            "a block and a step": REFUSED,
            "the block again": 0,
            "contents": 0,
            "frees": [0] * BLOCKS,
            "PyTorch computes": True,
            "after": [limit, limit],
        }
        differs = {key: [story[key], value] for key, value in expected.items() if story[key] != value}
        good = figures.check(f"{at}: as promised", not differs, f"said, promised: {differs}")
        figures.row(at, "the quota to the step, then out of memory, and on" if good else f"FAILED: {differs}")
    nothing_left(figures, name, daemon, session)


def allocator(stand, daemon, programs, session, name, library, environment, step_mib):
    figures, name = stand.figures, f"sessions: {name}"
    # Both names of PyTorch's variable: releases differ.
    environment = environment | {f"PYTORCH_CUDA_{key.removeprefix('PYTORCH_')}": value for key, value in environment.items()}
    command = client("limit/allocators.py", library, "--limit-mib", LIMIT_MIB)
    if (said := answer(figures, name, start(programs, session, command, environment=environment))) is None:
        return
    limit = LIMIT_MIB * MIB
    figures.equal(f"{name}: it sees the quota, before and after", [said["before"], said["after"]], [[limit, limit]] * 2)
    figures.check(f"{name}: the quota and {OVER_MIB} MiB are refused in its own way", said["over_is_refused"])
    fits = LIMIT_MIB - step_mib <= said["given_mib"] <= said["reserved_mib"] <= LIMIT_MIB
    figures.check(f"{name}: all of the quota but {step_mib} MiB is had, and no more", fits, [said["given_mib"], said["reserved_mib"]])
    figures.check(f"{name}: then it says out of memory", "memory" in said["sentence"], said["sentence"])
    figures.check(f"{name}: contents are kept", said["contents_kept"])
    figures.check(f"{name}: computes after each refusal, and has freed memory again", all(said["computes"]) and said["again"], said)
    peak = nothing_left(figures, name, daemon, session)
    figures.check(f"{name}: the peak is within the quota", peak <= limit, peak)
    figures.row(
        name,
        f"{said['given_mib']} MiB in tensors, {said['reserved_mib']:.0f} MiB taken, {said['full'][0] / MIB:.0f} MiB free; "
        f"then: {said['sentence'].split('. ')[0]}",
    )


def nvidia_smi(stand, programs, session):
    figures, name = stand.figures, "sessions: nvidia-smi inside"
    program = start(programs, session, client("compatibility/smi.py", "--hold-mib", HELD_MIB))
    if (said := answer(figures, name, program)) is None:
        return
    total, used, free = said["smi_mib"]
    figures.equal(f"{name}: its total is the session's quota", total, LIMIT_MIB)
    figures.check(f"{name}: used is the session's own", HELD_MIB <= used <= LIMIT_MIB - free, said["smi_mib"])
    figures.equal(f"{name}: its processes are the session's own", [int(pid) for pid, *_ in said["processes"]], [said["pid"]])
    figures.row(name, f"{total} MiB total, {used} used, {free} free")
