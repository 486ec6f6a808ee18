"""Replicas that have one host copy of equal bytes. Two programs have the same block, which fills a small capacity, and a third one
keeps both away until they have shared their copies. Then they take turns, one of them changes its block, and one is frozen while it
uses copies. No byte is managed.

    first, second away ──▶ one copy ──▶ turns ──▶ second changes its block ──▶ first changes its own alike ──▶ one copy ──▶ freeze
"""

import statistics
import time
from pathlib import Path

from groups.freezing import ENVIRONMENT, frozen_in_the_end
from programs import client

NEEDS = 120

GIB = 8
# Beside what a program holds: what a check needs, and the two chunks with which both directions begin at once.
CHECK_MIB, SPARE_MIB = 64, 256
HELD_MIB = (GIB << 10) + CHECK_MIB + SPARE_MIB
ROUNDS = 4
# Of the block of a replica: what is shared, and what the host has more free.
PART_SHARED, PART_SAVED = 0.95, 0.9
PART_OF_COPY = 0.90
LIMIT, SHARE_LIMIT, FREE_LIMIT = 60, 60, 20


def run(stand):
    with stand.programs() as programs:
        plain = programs.start("copies-plain", client("holder.py"), shared=False)
        plain.hear()
        floor = plain.ask(f"copies {HELD_MIB}", LIMIT)["in"]
    flags = ["--capacity", f"0={HELD_MIB + CHECK_MIB}MiB"]
    with stand.daemon(allows_managed=False, flags=flags, environment=ENVIRONMENT) as daemon, stand.programs(daemon) as programs:
        figures = stand.figures
        # Programs are measured here, so nothing else reads their memory.
        first, second, third = (start(programs, name) for name in ("replica-1", "replica-2", "third"))
        had = available()
        seconds = shared(figures, daemon, (first, second), "at first")
        saved, after = freed(had)
        figures.row(f"two replicas of {HELD_MIB} MiB: until they use one host copy", f"{seconds:.1f} s")
        figures.row("memory of the host that is free again then", f"{saved:.3f} of a block, after {after:.1f} s")
        figures.check(f"at least {PART_SAVED} of a block is free again", saved >= PART_SAVED, f"{saved:.3f}")
        taken = one_way_in(figures, programs, first, third, floor)
        handoffs = turns(figures, daemon, first, second, floor)
        figures.sample("shared copies", {"floor": floor, "in": taken, "handoffs": handoffs, "shared": seconds, "saved": saved})
        apart(figures, first, second)
        freeze(figures, daemon, programs, first, second)


def start(programs, name):
    program = programs.start(name, client("holder.py"), shared=True, backend="remap", paranoid=False)
    program.hear()
    program.ask(f"hold {HELD_MIB}", LIMIT)
    return program


def available():
    """Bytes that programs could have of the host's memory."""
    (line,) = (line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1]) << 10


def freed(had):
    """Part of a block that is free again, once it is enough; and the seconds until then."""
    began = time.monotonic()
    while True:
        saved, seconds = (available() - had) / (HELD_MIB << 20), time.monotonic() - began
        if saved >= PART_SAVED or seconds > FREE_LIMIT:
            return saved, seconds
        time.sleep(0.1)


def shared(figures, daemon, replicas, when):
    """Waits until the replicas use the same host copies of a block; the seconds that it took."""
    pids = [daemon.session(program.name)["clients"][0]["pid"] for program in replicas]
    began = time.monotonic()
    while True:
        first, second = map(copies_of, pids)
        part = sum(first[file] for file in first.keys() & second.keys()) / (HELD_MIB << 20)
        seconds = time.monotonic() - began
        if part >= PART_SHARED or seconds > SHARE_LIMIT:
            break
        time.sleep(0.1)
    figures.check(f"{when}: the replicas use one host copy of {PART_SHARED} of a block or more", part >= PART_SHARED, f"{part:.3f}")
    return seconds


def copies_of(pid):
    """Bytes of the host copies that a process uses, by their files."""
    copies = {}
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        addresses, _, _, _, file, *name = line.split(maxsplit=5)
        if name and "gpushare-copy" in name[0]:
            begin, end = (int(address, 16) for address in addresses.split("-"))
            copies[file] = copies.get(file, 0) + end - begin
    return copies


def one_way_in(figures, programs, replica, third, floor):
    """Seconds of ways in from shared copies, where nothing has to leave."""
    taken = []
    for number in range(ROUNDS):
        third.finish()
        away = replica.ask("read", LIMIT)["seconds"]
        taken.append(away - replica.ask("read", LIMIT)["seconds"])
        if number + 1 < ROUNDS:
            third = start(programs, f"third-{number}")
    median = statistics.median(taken)
    row = f"way in of {HELD_MIB} MiB from shared copies, first and median of {ROUNDS}; the plain copy"
    figures.row(row, f"{1e3 * taken[0]:.1f}, {1e3 * median:.1f}; {1e3 * floor:.1f} ms")
    name = f"the way in is at {PART_OF_COPY} of the pinned copy or more"
    figures.check(name, median <= floor / PART_OF_COPY, f"{median / floor:.2f} x")
    return taken


def turns(figures, daemon, first, second, floor):
    """Seconds of handoffs between replicas that only read."""
    taken = []
    # What never left the card yet is copied at the first way out of each.
    for number in range(ROUNDS + 1):
        for program in (second, first):
            time.sleep(0.2)
            began = time.monotonic()
            program.ask("read", LIMIT)
            ended = daemon.handoff_since(began)
            if number == 0:
                continue
            taken.append(ended["took_ns"] / 1e9)
            part = ended["copied_out_bytes"] / (HELD_MIB << 20)
            figures.check(f"handoff {len(taken)} between the replicas: at most 0.05 is copied out", part <= 0.05, f"{part:.3f}")
    median = statistics.median(taken)
    figures.row(f"handoff between replicas that only read, median of {len(taken)}", f"{1e3 * median:.1f} ms; {median / floor:.2f} x the plain copy in")
    for program in (first, second):
        figures.check(f"{program.name}: every word is right after turns", program.ask("check", LIMIT)["right"])
    return taken


def apart(figures, first, second):
    """One replica changes its block; the other one keeps its own."""
    second.ask("step", LIMIT)
    for program in (first, second, first):
        figures.check(f"{program.name}: every word is right after one has changed", program.ask("check", LIMIT)["right"])


def freeze(figures, daemon, programs, first, second):
    """Freezes a replica while it uses copies."""
    first.ask("step", LIMIT)
    third = start(programs, "fourth")
    shared(figures, daemon, (first, second), "changed alike")
    with frozen_in_the_end(daemon, first, first.name):
        seconds = daemon.freeze(first.name)
        figures.equal("a replica that uses copies is frozen", daemon.frost(first.name)["stage"], "frozen")
        figures.row("freeze of a replica that uses copies", f"{seconds:.2f} s")
        for program in (second, first, second, third, first):
            figures.check(f"{program.name}: every word is right around a freeze", program.ask("check", LIMIT)["right"])
        first.finish()
