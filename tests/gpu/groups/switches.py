"""Cost of giving a card from one program to another where no memory moves: two equal programs at once, by the driver's own
slicing and in turns of several lengths. Each sample stands between two of the same programs alone.

    together / one alone = Σ over both programs of (rate together / rate alone)

Medians of many short samples are compared, since a sample that is bound by the host varies by 7% on a shared machine.

Two more parts give figures only. Kernels that record when they ran show how long slices and gaps are. A launch-bound training
that sleeps between its steps, without gpushare, shows how much of a loss is the host's own: cold caches and sleeping cores.
"""

import json
import statistics
from dataclasses import dataclass

import paces
import timelines
from programs import ask_together, client

NEEDS = 270

PROMISE, PROMISED = 0.98, ("20ms", "40ms")
DRIVER = "the driver's own slicing"
# With gpushare the launch window bounds the work in flight, so the program's own bound is beyond it.
IN_FLIGHT = {"native": 6, "shared": 64}
SETTLE_SECONDS = 0.5

# As a program's work and pauses are in turns of 20 ms beside another program.
WORK_MS = SLEEP_MS = 20
PROBES, PROBE_ALONE, PROBE_SECONDS = 10, 0.4, 0.8


@dataclass(frozen=True)
class Workload:
    """A client, its order to work for some seconds, and the samples to take of it.

    The seconds at each edge of a sample do not count: about two steps.
    """

    name: str
    script: tuple
    order: str
    rounds: int
    alone_seconds: float
    together_seconds: float
    edge: float
    quanta: tuple = ("20ms", "40ms", "auto")
    # Of these, those that are promised.
    promised: tuple = ()
    # It has a bound of its own on its work in flight.
    bounded: bool = False
    # It measures its work at the start, while nobody else may work.
    calibrates: bool = False

    def command(self, kind):
        return client(*self.script, *(["--in-flight", IN_FLIGHT[kind]] if self.bounded else []))


TRAIN = ("paced.py", "train")
# Steps of some 35 ms on an H100, whose large products take 1 to 2 ms each. A sample is long, since half a step more or less
# at its edges is 2% of 0.8 s.
LARGE = Workload(
    "large products",
    (*TRAIN, "--width", "1536", "--heads", "12", "--layers", "2", "--batch", "16"),
    "train",
    rounds=3,
    alone_seconds=0.8,
    together_seconds=4.0,
    edge=0.1,
    promised=PROMISED,
)
LAUNCH_BOUND = Workload(
    "launch-bound",
    (*TRAIN, "--width", "64", "--heads", "4", "--length", "64", "--batch", "2"),
    "train",
    rounds=7,
    alone_seconds=0.35,
    together_seconds=0.9,
    edge=0.05,
    promised=PROMISED,
)
LOOP = Workload(
    "loop of products",
    ("products.py", "--size", "8192"),
    "loop",
    rounds=3,
    alone_seconds=0.4,
    together_seconds=1.6,
    edge=0.05,
    bounded=True,
)
KERNELS = Workload(
    "kernels",
    ("kernels.py",),
    "loop",
    rounds=2,
    alone_seconds=0.5,
    together_seconds=1.6,
    edge=0.05,
    quanta=PROMISED,
    bounded=True,
    calibrates=True,
)


@dataclass(frozen=True)
class Sample:
    """Two programs at once, beside each alone."""

    way: str
    answers: list
    share: float
    seconds: float
    handoffs: int
    quantum_ms: float

    def missing_ms(self):
        """Time lost for each handoff."""
        return 1e3 * (1 - self.share) * self.seconds / max(self.handoffs, 1)


def run(stand):
    for workload in (LARGE, LAUNCH_BOUND, LOOP, KERNELS):
        with stand.daemon() as daemon, stand.programs(daemon) as programs:
            pairs = start(programs, workload)
            daemon.set("mode", "time-sliced")
            turns = daemon.wait_for_mode("time-sliced")
            stand.figures.check(f"switches, {workload.name}: the card is shared in turns", turns)
            found = compare(stand, daemon, pairs, workload)
            if workload is KERNELS:
                alternation(stand, found)
            if workload is LAUNCH_BOUND:
                sleeping(stand, pairs["native"][0])


def start(programs, workload):
    """Two programs without gpushare and two with it."""
    pairs = {"native": [], "shared": []}
    for kind, pair in pairs.items():
        for number in range(2):
            name = f"switches-{workload.name.replace(' ', '-')}-{kind}-{number}"
            pair.append(programs.start(name, workload.command(kind), shared=kind == "shared"))
            if workload.calibrates:
                pair[-1].hear()
    if not workload.calibrates:
        for program in [*pairs["native"], *pairs["shared"]]:
            program.hear()
    return pairs


def compare(stand, daemon, pairs, workload):
    """All samples by way of sharing, with their rows and checks."""
    for pair in pairs.values():
        together(pair, workload, SETTLE_SECONDS)
    found = {}
    for _ in range(workload.rounds):
        for sample in one_round(daemon, pairs, workload):
            found.setdefault(sample.way, []).append(sample)
    for way, samples in found.items():
        judge(stand.figures, workload, way, samples)
    return found


def one_round(daemon, pairs, workload):
    for kind, quanta in (("native", [None]), ("shared", workload.quanta)):
        pair = pairs[kind]
        before = alone(pair, workload)
        for quantum in quanta:
            if quantum:
                daemon.set("quantum", quantum)
            begin = daemon.gpu()
            answers = together(pair, workload, workload.together_seconds)
            end = daemon.gpu()
            after = alone(pair, workload)
            stories = [story(answer) for answer in answers]
            first, last = paces.window(stories)
            own = [(earlier + later) / 2 for earlier, later in zip(before, after)]
            yield Sample(
                way=f"turns of {quantum}" if quantum else DRIVER,
                answers=answers,
                share=sum(paces.parts(stories, own, workload.edge)),
                seconds=last - first,
                handoffs=end["handoffs"] - begin["handoffs"],
                quantum_ms=end["quantum_ns"] / 1e6,
            )
            before = after


def alone(pair, workload):
    """Rate of each program while nobody else works."""
    answers = [program.ask(f"{workload.order} {workload.alone_seconds}") for program in pair]
    return [paces.rates([story(answer)], workload.edge)[0] for answer in answers]


def together(pair, workload, seconds):
    return ask_together([(program, f"{workload.order} {seconds}") for program in pair])


def story(answer):
    return timelines.story(answer["kernels"]) if "kernels" in answer else answer


def judge(figures, workload, way, samples):
    name = f"switches, {workload.name}, {way}"
    shares = [sample.share for sample in samples]
    share, handoffs = statistics.median(shares), sum(sample.handoffs for sample in samples)
    facts = [
        {"share": s.share, "seconds": s.seconds, "handoffs": s.handoffs, "quantum_ms": s.quantum_ms, "missing_ms": s.missing_ms()}
        for s in samples
    ]
    figures.sample(name, facts)
    told = f"{share:.3f} of one alone, median of {len(shares)}, {min(shares):.3f} to {max(shares):.3f}"
    if way == DRIVER:
        figures.row(name, told)
        return
    missing = statistics.median(sample.missing_ms() for sample in samples)
    quantum = statistics.median(sample.quantum_ms for sample in samples)
    figures.row(name, f"{told}; {handoffs} handoffs, {missing:.2f} ms missing for each; quantum {quantum:.0f} ms")
    figures.check(f"{name}: turns were taken", handoffs > 0, facts)
    if way.removeprefix("turns of ") in workload.promised:
        figures.check(f"{name}: together {PROMISE} or more of one alone", share >= PROMISE, told)


def alternation(stand, found):
    """Slices, gaps and interleaving of the kernels, by way of sharing."""
    for way, samples in found.items():
        with open(stand.logs / "switches-kernels.jsonl", "a") as log:
            for sample in samples:
                log.write(json.dumps({"way": way, "kernels": [answer["kernels"] for answer in sample.answers]}) + "\n")
        lengths, gaps, shares = [], [], []
        for sample in samples:
            both = [answer["kernels"] for answer in sample.answers]
            ordered = timelines.slices(both)
            lengths += [one.length / 1e6 for one in ordered]
            gaps += [gap / 1e6 for gap in timelines.gaps(ordered)]
            shares.append(timelines.interleaved(both))
        name = f"switches, kernels of 1.6 ms, {way}"
        stand.figures.sample(f"{name}: slices and gaps in ms, part interleaved", {"slices": lengths, "gaps": gaps, "parts": shares})
        if not gaps:
            stand.figures.row(f"{name}: slices", "the two never alternated")
            continue
        stand.figures.row(
            f"{name}: slices",
            f"median {statistics.median(lengths):.2f} ms of {len(lengths)}; half of the time in slices of "
            f"{timelines.time_median(lengths):.2f} ms or more",
        )
        stand.figures.row(f"{name}: gap at a change", f"median {statistics.median(gaps):.3f} ms")
        stand.figures.row(f"{name}: part of the time with kernels of both begun", f"{statistics.median(shares):.3f}")


def sleeping(stand, program):
    """A training that sleeps between groups of its steps, beside the same without sleeps. No gpushare."""
    figures, lost, longer, groups = stand.figures, [], [], []
    step = step_seconds(program)
    for _ in range(PROBES):
        groups.append(program.ask(f"paused {PROBE_SECONDS} {WORK_MS} {SLEEP_MS}")["groups"])
        before, step = step, step_seconds(program)
        lost.append(1e3 * paces.lost_per_pause(groups[-1], (before + step) / 2))
        if (first := paces.first_is_longer(groups[-1])) is not None:
            longer.append(1e3 * first)
    facts = {"groups": groups, "lost_ms": lost, "longer_ms": longer}
    figures.sample("switches, launch-bound, sleeps without gpushare", facts)
    figures.row(
        f"switches, launch-bound, without gpushare: ms lost for each sleep of {SLEEP_MS} ms",
        f"median {statistics.median(lost):.2f}, {min(lost):.2f} to {max(lost):.2f}",
    )
    told = f"{statistics.median(longer):.2f} ms longer than the next ones" if longer else "no group has two steps"
    figures.row("switches, launch-bound, without gpushare: the first step after a sleep", told)


def step_seconds(program):
    return 1 / paces.rates([program.ask(f"train {PROBE_ALONE}")], LAUNCH_BOUND.edge)[0]
