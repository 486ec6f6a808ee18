"""What it costs to give a card from one PyTorch training to another: two equal ones in turns of several fixed lengths, without
memory that would move, beside the same done alone. Two kinds of training: large products, and one that is bound by its launches.
"""

import statistics

import paces
from programs import ask_together, client

NEEDS = 150

KINDS = {
    "large products": client("paced.py", "train", "--batch", "16"),
    "launch-bound": client("paced.py", "train", "--width", "64", "--heads", "4", "--length", "64", "--batch", "2"),
}
QUANTA = ("20ms", "40ms", "80ms", "160ms", "auto")
SECONDS = 4
ROUNDS = 2
ALONE_SECONDS = 2


def run(stand):
    for kind, command in KINDS.items():
        with stand.daemon() as daemon, stand.programs(daemon) as programs:
            pair = [programs.start(f"switches-{number}", command, shared=True) for number in range(2)]
            for program in pair:
                program.hear()
            of_a_kind(stand, daemon, kind, pair)


def of_a_kind(stand, daemon, kind, pair):
    """The time that is missing, by the handoffs."""
    lost = {quantum: [] for quantum in QUANTA}
    daemon.set("mode", "time-sliced")
    stand.figures.check(f"switches, {kind}: the card is shared in turns", daemon.wait_for_mode("time-sliced"))
    for _ in range(ROUNDS):
        for quantum in QUANTA:
            daemon.set("quantum", quantum)
            alone = statistics.fmean(paces.rates([program.ask(f"train {ALONE_SECONDS}")])[0] for program in pair)
            before = daemon.gpu()
            stories = ask_together([(program, f"train {SECONDS}") for program in pair])
            after = daemon.gpu()
            begin, end = paces.window(stories)
            share = sum(paces.rates(stories)) / alone
            handoffs = after["handoffs"] - before["handoffs"]
            lost[quantum].append({"share": share, "handoffs": handoffs, "seconds": end - begin, "quantum_ns": after["quantum_ns"]})
            drains = after["drains_ns"]
            stand.figures.sample(f"switches {kind} {quantum}", {**lost[quantum][-1], "alone": alone, "drains_ns": drains})
    for quantum, found in lost.items():
        share = statistics.fmean(one["share"] for one in found)
        missing = sum((1 - one["share"]) * one["seconds"] for one in found)
        handoffs = sum(one["handoffs"] for one in found)
        stand.figures.check(f"switches, {kind}, {quantum}: turns were taken", handoffs > 0, found)
        stand.figures.row(
            f"switches, {kind}, turns of {quantum}",
            f"{share:.3f} of one alone; {handoffs} handoffs, {1e3 * missing / max(handoffs, 1):.2f} ms missing for each; "
            f"quantum {found[-1]['quantum_ns'] / 1e6:.0f} ms",
        )
