"""What a program feels while another one creates, maps, unmaps, releases and registers memory, as a handoff of remapped memory
does: a kernel, an allocation, and the creation of a context. Both run without gpushare, so the figures are the driver's."""

import shutil
import subprocess

from programs import CLIENTS

NEEDS = 90

FEELINGS = ("kernel", "allocation", "context")
# A context takes longer than most of the mover's calls, so it is also created while only one kind is repeated, and what undoes it.
ONLY = {"create": "create and release", "map": "map and unmap", "register": "register and unregister"}
ALONE_SECONDS, BESIDE_SECONDS = 3, 6
LIMIT = 30
NONE = {"p50_us": 0, "p99_us": 0, "max_us": 0, "count": 0}


def run(stand):
    figures, program = stand.figures, stand.logs / "neighbours"
    compiler = shutil.which("cc") or "gcc"
    command = [compiler, "-O2", "-o", str(program), str(CLIENTS / "neighbours.c"), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    figures.command("neighbours build", command)
    board = stand.logs / "neighbours.board"
    with stand.programs() as programs:
        for feeling in FEELINGS:
            alone = start(programs, f"{feeling}-alone", program, feeling, board, ALONE_SECONDS).result(LIMIT)
            mover = start(programs, f"{feeling}-mover", program, "mover", board, BESIDE_SECONDS + 1)
            beside = start(programs, f"{feeling}-beside", program, feeling, board, BESIDE_SECONDS).result(LIMIT)
            rounds = mover.result(LIMIT)["rounds"]
            figures.check(f"neighbours: memory moved beside the {feeling}", rounds > 0 and len(beside) > 1, f"{rounds} rounds")
            figures.sample(f"neighbours of a {feeling}", {"alone": alone, "beside": beside, "rounds": rounds})
            row(figures, f"neighbours: {feeling}, alone", alone["nothing"])
            for kind, felt in beside.items():
                if kind != "nothing":
                    row(figures, f"neighbours: {feeling}, begun during {kind}", felt)
        for only, name in ONLY.items():
            mover = start(programs, f"only-{only}", program, "mover", board, BESIDE_SECONDS + 1, only)
            beside = start(programs, f"context-{only}", program, "context", board, BESIDE_SECONDS).result(LIMIT)
            figures.check(f"neighbours: contexts were created beside {name}", mover.result(LIMIT)["rounds"] > 0 and only in beside, beside)
            figures.sample(f"neighbours of a context, {only}", beside)
            row(figures, f"neighbours: context, beside {name}", beside.get(only, NONE))


def start(programs, name, program, what, board, seconds, *only):
    started = programs.start(f"neighbours-{name}", [program, what, board, str(seconds), *only], shared=False)
    started.hear()
    return started


def row(figures, name, felt):
    figures.row(name, f"p50 {felt['p50_us']:.0f} µs, p99 {felt['p99_us']:.0f} µs, max {felt['max_us']:.0f} µs of {felt['count']}")
