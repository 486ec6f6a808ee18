"""Handoffs of remapped memory between two programs, each of which has a block that fills the capacity: one-way and both ways at
once, beside the plain pinned copies of the same run. A small capacity forces them, so the card itself has room for everything,
and no byte is managed.

    handoff   from the goals that ask for the moves until the memory is there and the gate is open, as the daemon tells
    wait      a step after the other program has gone idle, less a step right after one's own: the handoff, and up to 10 ms
              before it in which the other program must be quiet, unless its share of time is over
    out       the handoff to a third program that allocates the block, and has nothing to bring in
    in        the first step after the other program has ended, less a step right after one's own

The memory that leaves goes back to the driver, which slows the way in. So both plain copies are measured once more while a third
program gives as much memory back.
"""

import statistics
import time
from dataclasses import dataclass

from programs import ask_together, client

NEEDS = 340

SIZES_GIB = (1, 4, 16, 32)
# Beside what a program holds: what a check needs. The daemon lets two chunks more be on the card, so that both directions of a
# handoff begin at once.
CHECK_MIB, SPARE_MIB = 64, 256
# At most so much more than must move.
EXCESS = 1.05
ROUNDS = 4
PART_OF_COPY = 0.90
# Bound on a handoff / both plain copies at once, from a size on.
FLOORS = {1: 1.25, 4: 1.15}
HANDOFF_LIMIT = 60
# What a program waits beside the handoff: its request, the other one's idleness, the proof, and the launch.
BEYOND_MS = 20
# Longer than a program with the lock must be quiet to count as idle, so that no handoff waits for a fair share of time.
QUIET_SECONDS = 0.2
HOLDER = client("holder.py")
GIVER = client("giver.py")
# How much later than it was told a program may have given its memory back.
LATEST = 1.2


def run(stand):
    for gib in SIZES_GIB:
        if not stand.deadline.allows(NEEDS * gib / sum(SIZES_GIB)):
            stand.figures.check(f"handoff of {gib} GiB: there is time for it", False)
            return
        with stand.programs() as programs:
            plain = programs.start(f"copies-{gib}", HOLDER, shared=False)
            plain.hear()
            floor = plain.ask(f"copies {gib << 10}", HANDOFF_LIMIT)
            if 3 * (gib << 10) < stand.card.free_mib:
                floor["given_back"] = while_given_back(stand.figures, programs, plain, gib, floor["both"])
        # Each brings in so many GiB at a handoff, since the rest of its block finds room beside the other.
        capacity = f"0={held_mib(gib) + CHECK_MIB}MiB"
        with stand.daemon(allows_managed=False, flags=["--capacity", capacity], log_name=f"scheduler-{gib}") as daemon, stand.programs(daemon) as programs:
            Size(stand.figures, daemon, programs, gib, floor).run()


def while_given_back(figures, programs, plain, gib, seconds):
    """Seconds of both plain copies while another program gives as much memory back in the time that the copies need alone: the
    median of some."""
    giver = programs.start(f"giver-{gib}", GIVER, shared=False)
    giver.hear()
    both, gave = [], []
    for _ in range(ROUNDS):
        giver.ask(f"make {gib << 10}", HANDOFF_LIMIT)
        time.sleep(QUIET_SECONDS)
        answers = ask_together([(plain, "both"), (giver, f"give {seconds}")], HANDOFF_LIMIT)
        for taken, answer in zip((both, gave), answers):
            taken.append(answer["seconds"])
    figures.sample(f"copies of {gib} GiB while memory is given back", {"both": both, "gave": gave})
    figures.check(f"handoff of {gib} GiB: memory was given back meanwhile", max(gave) <= LATEST * seconds, gave)
    return statistics.median(both)


def held_mib(gib):
    return (gib << 10) + CHECK_MIB + SPARE_MIB


@dataclass
class Size:
    figures: object
    daemon: object
    programs: object
    gib: int
    floor: dict

    def run(self):
        name, floor = f"handoff of {self.gib} GiB", self.floor
        first, second = self.start("first"), self.start("second")
        held = self.hold(first)
        step = min(first.ask("step")["seconds"] for _ in range(3))
        cold = self.hold(second) - held
        self.row(f"{name}: first way out, at once", cold, floor["out"])
        second.ask("step", HANDOFF_LIMIT)
        unprepared = [self.handoff(program, step) for program in (first, second)]
        had = self.daemon.gpu()["moved_bytes"]
        handoffs = [self.handoff(program, step) for _ in range(ROUNDS) for program in (first, second)]
        moved = (self.daemon.gpu()["moved_bytes"] - had) / len(handoffs)
        taken, waits = zip(*handoffs)
        sample = {"floor": floor, "step": step, "unprepared": unprepared, "handoffs": taken, "waits": waits, "moved": moved}
        self.figures.sample(name, sample | {"status": self.daemon.status()})
        both = statistics.median(taken)
        most = EXCESS * (self.gib << 30)
        self.figures.row(f"{name}: GiB that come in", f"{moved / (1 << 30):.3f}")
        self.figures.check(f"{name}: at most {EXCESS} x the excess moves", 0 < moved <= most, f"{moved:.0f} bytes")
        # It makes the host memory of the second program.
        self.row(f"{name}: both ways, the first one", unprepared[0][0], floor["both"])
        self.row(f"{name}: both ways, median of {len(taken)}", both, floor["both"])
        if "given_back" in floor:
            self.row(f"{name}: the same, beside the copies while as much is given back", both, floor["given_back"])
        wait = statistics.median(waits)
        self.row(f"{name}: wait of the program, median", wait, floor["both"])
        self.figures.check(f"{name}: the program waits at most {BEYOND_MS} ms longer than that", wait <= both + BEYOND_MS / 1e3, f"{wait:.4f} s")
        bound = FLOORS[max(size for size in FLOORS if size <= self.gib)]
        self.figures.check(f"{name}: at most {bound} x both plain copies at once", both <= bound * floor["both"], f"{both:.4f} s")
        for program in (first, second):
            self.figures.check(f"{name}: every word of {program.name} is right", program.ask("check", HANDOFF_LIMIT)["right"])
        first.ask("step", HANDOFF_LIMIT)
        second.finish()
        self.one_way(name, first, step)

    def one_way(self, name, first, step):
        """Out for a program that has nothing to bring in, and in where nothing has to leave."""
        floor, out, back, came = self.floor, [], [], []
        for number in range(ROUNDS):
            other = self.start(f"third-{number}")
            began = time.monotonic()
            self.hold(other)
            out.append(self.daemon.handoff_since(began)["took_ns"] / 1e9)
            other.finish()
            had = self.daemon.gpu()["moved_bytes"]
            back.append(first.ask("step", HANDOFF_LIMIT)["seconds"] - step)
            came.append(self.daemon.gpu()["moved_bytes"] - had)
        # What checks left behind comes in with the block.
        came = statistics.median(came) / (self.gib << 30)
        self.figures.check(f"{name}: at most {EXCESS} x the excess comes back", 0 < came <= EXCESS, f"{came:.3f} x")
        for way, seconds, plain in (("out", out, floor["out"]), ("in", back, came * floor["in"])):
            taken = statistics.median(seconds)
            self.row(f"{name}: one way {way}, median of {len(seconds)}", taken, plain)
            self.figures.check(
                f"{name}: one way {way} at {PART_OF_COPY} of the pinned copy or more", taken <= plain / PART_OF_COPY, f"{taken:.4f} s"
            )
        self.figures.check(f"{name}: every word is right after ways out and in", first.ask("check", HANDOFF_LIMIT)["right"])
        self.figures.sample(f"{name}, one way", {"out": out, "in": back})

    def handoff(self, program, step):
        """Seconds of the handoff to a program after the other one has gone idle, and of its wait."""
        time.sleep(QUIET_SECONDS)
        began = time.monotonic()
        wait = program.ask("step", HANDOFF_LIMIT)["seconds"] - step
        ended = self.daemon.handoff_since(began)
        part = ended["copied_out_bytes"] / (self.gib << 30)
        self.figures.check(f"handoff of {self.gib} GiB: at most {EXCESS} x the excess leaves", part <= EXCESS, f"{part:.3f} x")
        return ended["took_ns"] / 1e9, wait

    def start(self, name):
        program = self.programs.start(f"{name}-{self.gib}", HOLDER, shared=True, backend="remap", paranoid=False)
        program.hear()
        return program

    def hold(self, program):
        """Seconds of the allocation and the first use of the block."""
        return program.ask(f"hold {held_mib(self.gib)}", HANDOFF_LIMIT)["allocation"]

    def row(self, name, seconds, plain):
        rate = self.gib * 1.073741824 / seconds if seconds > 0 else float("inf")
        self.figures.row(name, f"{1e3 * seconds:.1f} ms, {rate:.1f} GB/s each way; the plain copies {1e3 * plain:.1f} ms; {seconds / plain:.2f} x")
