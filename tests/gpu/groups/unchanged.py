"""Handoffs of memory that has not changed since it came in. Three programs have a block that fills a small capacity: one only reads
its block, as an inference does its weights, and two change theirs, as a training does. The third one's step after each of the others
is a handoff: the other block leaves, and its own comes in. No byte is managed.
"""

import statistics
import time

from programs import client

NEEDS = 60

GIB = 20
# Beside what a program holds: what a check needs, and the two chunks with which both directions begin at once.
CHECK_MIB, SPARE_MIB = 64, 256
ROUNDS = 6
PART_COPIED, PART_OF_TRAINING = 0.05, 0.8
LIMIT = 60
# Longer than a program with the lock must be quiet to count as idle.
QUIET_SECONDS = 0.2


def run(stand):
    held = (GIB << 10) + CHECK_MIB + SPARE_MIB
    with stand.daemon(allows_managed=False, flags=["--capacity", f"0={held + CHECK_MIB}MiB"]) as daemon, stand.programs(daemon) as programs:
        measure(stand.figures, daemon, programs, held)


def measure(figures, daemon, programs, held):
    reader, writer, entrant = (start(programs, name, held) for name in ("reader", "writer", "entrant"))
    taken, copied = {"reader": [], "writer": []}, {"reader": [], "writer": []}
    # In the first round the reader's block leaves for the first time after it was filled, so it is copied.
    for number in range(ROUNDS + 1):
        for leaver, order in ((reader, "read"), (writer, "step")):
            leaver.ask(order, LIMIT)
            time.sleep(QUIET_SECONDS)
            began = time.monotonic()
            entrant.ask("step", LIMIT)
            ended = daemon.handoff_since(began)
            if number > 0:
                taken[leaver.name].append(ended["took_ns"] / 1e9)
                copied[leaver.name].append(ended["copied_out_bytes"] / (GIB << 30))
    figures.sample("unchanged", {"taken": taken, "copied": copied, "status": daemon.status()})
    read, written = (statistics.median(taken[name]) for name in ("reader", "writer"))
    part = max(copied["reader"])
    figures.row(f"handoff after a program that reads {GIB} GiB: copied out, at most", f"{part:.3f} of it")
    figures.row(f"handoff after a program that writes {GIB} GiB: copied out, at least", f"{min(copied['writer']):.3f} of it")
    both = f"{1e3 * read:.1f}; {1e3 * written:.1f} ms; {read / written:.2f} x"
    figures.row(f"handoff of {GIB} GiB, medians of {ROUNDS}: after reads; after writes", both)
    figures.check(f"unchanged: at most {PART_COPIED} of the block is copied out", part <= PART_COPIED, f"{part:.3f}")
    name = f"unchanged: the handoff takes at most {PART_OF_TRAINING} x that of a program that writes"
    figures.check(name, read <= PART_OF_TRAINING * written, f"{read / written:.2f} x")
    for program in (reader, writer, entrant):
        figures.check(f"unchanged: every word of {program.name} is right", program.ask("check", LIMIT)["right"])


def start(programs, name, held):
    program = programs.start(name, client("holder.py"), shared=True, backend="remap", paranoid=False)
    program.hear()
    program.ask(f"hold {held}", LIMIT)
    return program
