"""Memory that programs create by handle, map whole and give to their device, as PyTorch's expandable segments do. Two programs whose
handles fill a small capacity take turns. Then one of them has memory that another process may open, which stays on the card. The part
of the other program's memory for which there is no room is mapped from the host, until there is room again. No byte is managed.

    first, second ──▶ turns ──▶ second exports a block ──▶ first is partly mapped from the host ──▶ second frees it ──▶ first is back

Then two PyTorch trainings whose memory is expandable segments do the same, and learn what one without gpushare learns.
"""

import time

from groups import oversubscribed

NEEDS = 150

MIB = 1 << 20
PIECE_MIB, PIECES = 128, 40
# For checks, and for the chunks with which both directions of a handoff begin at once.
BESIDE_MIB = 320
CAPACITY_MIB = PIECE_MIB * PIECES + BESIDE_MIB
# What cannot leave: more than half of the capacity.
EXPORT_MIB = 3072
ROUNDS = 4
LIMIT = 60
# Of a training, whose context and activations count against the capacity too.
TRAINING_MIB, TRAINING_BESIDE_MIB, STEPS = 12 << 10, 3 << 10, 60
EXPANDABLE = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


def run(stand):
    with stand.daemon(allows_managed=False, flags=["--capacity", f"0={CAPACITY_MIB}MiB"]) as daemon, stand.programs(daemon) as programs:
        first, second = (start(stand, programs, f"handles-{number}") for number in (1, 2))
        turns(stand.figures, daemon, first, second)
        mapped(stand.figures, daemon, first, second)
        for program in (first, second):
            program.finish(LIMIT)
    flags, each = ["--capacity", f"0={TRAINING_MIB}MiB"], TRAINING_MIB - TRAINING_BESIDE_MIB
    oversubscribed.run_pair(stand, "expandable", each, TRAINING_MIB, flags, STEPS, paranoid=True, environment=EXPANDABLE)


def start(stand, programs, name):
    program = programs.start(name, stand.workload("hold"), shared=True, backend="remap")
    program.hear()
    return program


def must(program, line):
    """The answer to a line of a program, which must go well."""
    answer = program.ask(line, LIMIT)
    if not answer["ok"]:
        raise AssertionError(f"{program.name}: {answer}")
    return answer


def turns(figures, daemon, first, second):
    for word, program in ((3, first), (5, second)):
        must(program, f"segment s {PIECE_MIB}MiB {PIECES}")
        must(program, f"fill s {word}")
        must(program, "sync")
    handoffs, right = [], []
    for number in range(ROUNDS):
        for word, program in ((3, first), (5, second)):
            moment = time.monotonic()
            right.append(must(program, f"check s {word + number}")["matches"])
            must(program, f"fill s {word + number + 1}")
            must(program, "sync")
            handoffs.append(daemon.handoff_since(moment))
    figures.equal(f"handles: each word is right in {2 * ROUNDS} turns", right, [True] * 2 * ROUNDS)
    for way in ("out", "in"):
        moved = [handoff[way]["bytes"] for handoff in handoffs]
        rates = sorted(handoff[way]["bytes_per_second"] for handoff in handoffs)
        figures.check(f"handles: memory moves {way} in each turn", min(moved) > 0, moved)
        figures.row(
            f"handles: {way}, MiB in a turn, median GB/s", f"{min(moved) >> 20} to {max(moved) >> 20}, {rates[ROUNDS] / 1e9:.1f}"
        )
    figures.sample("handles", handoffs)


def mapped(figures, daemon, first, second):
    """While the second has memory that stays, the first has what it needs, a part of it from the host."""
    must(second, "unmap-segment s")
    must(second, "release-segment s")
    must(second, "free-segment s")
    must(second, f"alloc x {EXPORT_MIB}MiB")
    must(second, "fill x 9")
    must(second, "ipc x")
    must(second, "sync")
    began = time.monotonic()
    word = 3 + ROUNDS
    figures.equal("handles: each word is right with memory of the host", must(first, f"check s {word}")["matches"], True)
    seconds = time.monotonic() - began
    place = residence(daemon, first)
    figures.check("handles: a part is mapped from the host", place["mapped_bytes"] > 0 and place["resident_bytes"] > 0, place)
    figures.row(
        "handles: MiB on the card, mapped; until the check has ended",
        f"{place['resident_bytes'] >> 20}, {place['mapped_bytes'] >> 20}; {seconds:.1f} s",
    )
    must(first, f"fill s {word + 1}")
    must(first, "sync")
    figures.equal("handles: the neighbour's words are right", must(second, "check x 9")["matches"], True)
    must(second, "free x")
    figures.equal("handles: so is what was written there", must(first, f"check s {word + 1}")["matches"], True)
    figures.equal("handles: all of it is on the card again", none_left(daemon, first, "mapped_bytes"), 0)
    figures.equal("handles: each word is right there", must(first, f"check s {word + 1}")["matches"], True)
    for line in ("release-segment s", "unmap-segment s", "free-segment s"):
        must(first, line)
    figures.equal("handles: no memory of the host is left", none_left(daemon, first, "hosted_bytes"), 0)


def none_left(daemon, program, kind):
    """Waits until there is no such memory of a program; the bytes that are left at the end of the wait."""
    end = time.monotonic() + LIMIT
    while (left := residence(daemon, program)[kind]) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def residence(daemon, program):
    """Where the remapped memory of a program's session is."""
    status = daemon.status()
    (session,) = (session["session"] for session in status["sessions"] if session["name"] == program.name)
    (place,) = (place for place in status["residences"] if place["session"] == session)
    return place
