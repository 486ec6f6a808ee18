"""What `--paranoid` is for. Two programs hand the card to each other, and no work is found in flight while their memory moves.
So do two with 32 GiB each, and two trainings that need twice their capacity. Then a program that gives work to the card past every
hook is to make room: its work is found, its memory stays where it is, and the other program goes on once it has ended.
"""

import shutil
import subprocess
import time
from pathlib import Path

from groups import oversubscribed
from programs import client

NEEDS = 200

UNSEEN = Path(__file__).resolve().parents[2] / "clients" / "unseen.c"
# What each program has, and the capacity: together they need a third more.
BLOCK_MIB, CAPACITY_MIB = 2048, 3072
ROUNDS = 5
LARGE_MIB, LARGE_ROUNDS = 32 << 10, 2
# Of the trainings, whose context and activations count against the capacity too.
TRAINING_MIB, BESIDE_MIB, STEPS = 24 << 10, 3 << 10, 40
HANDOFF_LIMIT, FIND_LIMIT = 60, 30


def run(stand):
    of_handoffs(stand, BLOCK_MIB, CAPACITY_MIB, ROUNDS)
    # All but a quarter of a block has to move.
    of_handoffs(stand, LARGE_MIB, LARGE_MIB * 5 // 4, LARGE_ROUNDS)
    flags = ["--capacity", f"0={TRAINING_MIB}MiB"]
    oversubscribed.run_pair(stand, "paranoid", TRAINING_MIB - BESIDE_MIB, TRAINING_MIB, flags, STEPS, paranoid=True)
    unseen = stand.logs / "unseen"
    compiler = shutil.which("cc") or "gcc"
    subprocess.run([compiler, "-O1", "-o", unseen, UNSEEN, "-ldl"], check=True, timeout=60)
    with stand.daemon(allows_managed=False, flags=["--capacity", f"0={CAPACITY_MIB}MiB"]) as daemon, stand.programs(daemon) as programs:
        of_missed_work(stand.figures, programs, unseen)


def of_handoffs(stand, block_mib, capacity_mib, rounds):
    figures, flags = stand.figures, ["--capacity", f"0={capacity_mib}MiB"]
    with stand.daemon(allows_managed=False, flags=flags, log_name=f"scheduler-{block_mib}") as daemon, stand.programs(daemon) as programs:
        pair = [start(programs, f"paranoid-{block_mib}-{number}") for number in range(2)]
        for program in pair:
            program.ask(f"hold {block_mib}", HANDOFF_LIMIT)
        for _ in range(rounds):
            for program in pair:
                program.ask("step", HANDOFF_LIMIT)
        for program in pair:
            figures.check(f"{program.name}: every word is right", program.ask("check", HANDOFF_LIMIT)["right"])
        gpu = daemon.gpu()
        handoffs, moved = gpu["handoffs"], gpu["moved_bytes"]
        figures.check(f"paranoid: {block_mib} MiB: memory moved in each round", handoffs >= 2 * rounds, f"{handoffs} handoffs")
        name = f"paranoid: {block_mib} MiB: handoffs in which every chunk was read before its copy and before its unmap; GiB in"
        figures.row(name, f"{handoffs}; {moved >> 30}")
        for program in pair:
            program.finish()


def of_missed_work(figures, programs, command):
    planted = programs.start("planted", [command, "busy", str(BLOCK_MIB)], shared=True, backend="remap")
    planted.is_checked = False
    planted.hear()
    other = start(programs, "other")
    other.tell(f"hold {BLOCK_MIB}")
    figures.check("paranoid: planted work is found", until(planted.missed))
    planted.finish()
    other.hear(HANDOFF_LIMIT)
    other.ask("step", HANDOFF_LIMIT)
    figures.check("paranoid: the other program goes on with right words", other.ask("check", HANDOFF_LIMIT)["right"])
    other.finish()


def until(happened):
    """Whether it happened within a limit."""
    end = time.monotonic() + FIND_LIMIT
    while not happened() and time.monotonic() < end:
        time.sleep(0.05)
    return happened()


def start(programs, name):
    program = programs.start(name, client("holder.py"), shared=True, backend="remap")
    program.hear()
    return program
