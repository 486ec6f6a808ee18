"""Bursts of a high priority beside a loop that always has work, and two loops of unequal weights. The driver's own slicing is
measured in the same run, in alternation.

    short bursts   20 products of 2048 x 2048 every 200 ms: 0.8 ms alone on an H100
    long bursts    900 of them every 400 ms: 22 ms alone
    weights        two loops of weights 300 and 100 in time slices

The loop makes products of 8192 x 8192, of about 1.6 ms each. A burst takes from its first launch to the end of the wait for its
last product. Everything fits the card.
"""

import statistics
import time
from dataclasses import dataclass

import paces
from programs import ask_together, client

NEEDS = 565

# With gpushare the launch window bounds the work in flight, so the program's own bound is beyond it.
IN_FLIGHT = {"native": 6, "shared": 64}
KINDS = tuple(IN_FLIGHT)
BURSTS = client("products.py", "--size", "2048")

ALONE, DRIVER, HIGH, NORMAL = "alone", "the driver's own slicing", "high priority", "no priority"
# By way: which programs run, and the priority of the bursts.
WAYS = {DRIVER: ("native", None), HIGH: ("shared", "high"), NORMAL: ("shared", "normal")}
# From the begin of a loop to the first burst, and from the last burst to the end of the loop.
LEAD, TAIL = 0.5, 0.5
LOOP_SECONDS = 1.0
# Clocks, the launch window and the daemon's averages settle in these; they do not count.
SETTLING = 5


@dataclass(frozen=True)
class Bursts:
    """Bursts of so many products, one every so many seconds, and their number in each round by way of sharing."""

    name: str
    products: int
    every: float
    rounds: int
    counts: dict


# Long enough for a p99, and for medians that differ by less than 3% by chance: 500 of each kind.
SHORT = Bursts("urgent: bursts of 20 products every 200 ms", 20, 0.2, 4, {ALONE: 10, DRIVER: 125, HIGH: 125, NORMAL: 125})
# As many alone as beside the loop, since their p99 is compared.
LONG = Bursts("urgent: bursts of 900 products every 400 ms", 900, 0.4, 4, {ALONE: 25, DRIVER: 10, HIGH: 25})

P50_HIGH, P99_HIGH, P50_NORMAL = 1.0, 1.1, 1.05
LOOP_KEEPS = 0.95
P50_LONG_MS, P99_LONG_MS = 8, 14

WEIGHTS, POINTS, TOGETHER = (300, 100), 1.0, 0.98
WEIGHT_ROUNDS, WEIGHT_SECONDS, DRIVER_SECONDS = 3, 10, 2.5


def run(stand):
    for bursts, judge in ((SHORT, judge_short), (LONG, judge_long)):
        with stand.daemon() as daemon, stand.programs(daemon) as programs:
            found = Contest(stand, daemon, programs, bursts).run()
            tell(stand.figures, bursts.name, found)
            judge(stand.figures, bursts.name, found)
    with stand.daemon() as daemon, stand.programs(daemon) as programs:
        weights(stand, daemon, programs)


def loop(programs, name, kind, options=()):
    command = client("products.py", "--size", "8192", "--in-flight", IN_FLIGHT[kind])
    return programs.start(name, command, shared=kind == "shared", options=options)


def loop_rate(program, seconds=LOOP_SECONDS):
    """Products a second while nobody else works."""
    return paces.rates([program.ask(f"loop {seconds}")])[0]


class Samples:
    """Samples of one way of sharing."""

    def __init__(self):
        self.times_ms, self.rates, self.kept, self.modes = [], [], [], set()

    def percentile(self, percent):
        return paces.percentile(self.times_ms, percent)


class Contest:
    """A loop and a program of bursts without gpushare, and two with it."""

    def __init__(self, stand, daemon, programs, bursts):
        self.stand, self.daemon, self.bursts = stand, daemon, bursts
        self.loops, self.short = {}, {}
        # Products a second of each loop while nobody else works. With gpushare an idle session of high priority is there.
        self.alone = {kind: [] for kind in KINDS}
        for kind in KINDS:
            name = f"urgent-{bursts.products}-{{}}-{kind}"
            priority = ["--priority", "high"] if kind == "shared" else []
            self.loops[kind] = loop(programs, name.format("loop"), kind)
            self.short[kind] = programs.start(name.format("bursts"), BURSTS, shared=kind == "shared", options=priority)
        for program in [*self.loops.values(), *self.short.values()]:
            program.hear()

    def run(self):
        """All samples by way of sharing."""
        found = {way: Samples() for way in self.bursts.counts}
        for way in found:
            self.measure(way, SETTLING)
        for _ in range(self.bursts.rounds):
            self.round(found)
        for way, one in found.items():
            facts = {"times_ms": one.times_ms, "rates": one.rates, "kept": one.kept, "modes": sorted(one.modes)}
            self.stand.figures.sample(f"{self.bursts.name}, {way}", facts)
        self.stand.figures.sample(f"{self.bursts.name}, the loops alone", self.alone)
        what = "products a second of the loop alone, and with gpushare beside an idle session of high priority"
        rates = ", ".join(f"{statistics.median(rates):.1f}" for rates in self.alone.values())
        self.stand.figures.row(f"{self.bursts.name}: {what}", rates)
        return found

    def round(self, found):
        self.set_priority("high")
        for kind, program in self.loops.items():
            self.alone[kind].append(loop_rate(program))
        for way, count in self.bursts.counts.items():
            times, rate, seconds, mode = self.measure(way, count)
            one = found[way]
            one.times_ms += times
            if way == ALONE:
                continue
            busy = count * found[ALONE].percentile(50) / 1e3 / seconds
            one.rates.append(rate)
            # The base of all ways is the rate without gpushare.
            one.kept.append(paces.kept(rate, self.alone["native"][-1], busy))
            one.modes.add(mode)

    def measure(self, way, count):
        """Milliseconds of each burst. Beside a loop also its rate, the seconds from the first burst to the last, and the mode."""
        order = f"bursts {count} {self.bursts.every} {self.bursts.products}"
        if way == ALONE:
            return milliseconds(self.short["native"].ask(order)), None, None, None
        kind, priority = WAYS[way]
        program, beside = self.short[kind], self.loops[kind]
        if priority:
            self.set_priority(priority)
        beside.tell(f"loop {LEAD + count * self.bursts.every + TAIL}")
        time.sleep(LEAD)
        story = program.ask(order)
        mode = self.daemon.gpu()["mode"] if priority else "no gpushare"
        looped = beside.hear()
        begin, end = story["begins"][0], story["ends"][-1]
        return milliseconds(story), paces.rate(looped, begin, end), end - begin, mode

    def set_priority(self, priority):
        self.daemon.set("priority", priority, "--session", self.short["shared"].name)


def milliseconds(story):
    return [1e3 * (end - begin) for begin, end in zip(story["begins"], story["ends"])]


def tell(figures, name, found):
    for way, one in found.items():
        p50, p99, worst = (one.percentile(percent) for percent in (50, 99, 100))
        figures.row(f"{name}, {way}: p50, p99, max of {len(one.times_ms)}", f"{p50:.2f}, {p99:.2f}, {worst:.2f} ms")
        if way != ALONE:
            rate, kept = statistics.median(one.rates), statistics.median(one.kept)
            figures.row(
                f"{name}, {way}: products a second of the loop",
                f"{rate:.1f}; {kept:.3f} of its rate alone less the bursts' own time; {', '.join(sorted(one.modes))}",
            )


def judge_short(figures, name, found):
    bounds = ((HIGH, 50, P50_HIGH), (HIGH, 99, P99_HIGH), (NORMAL, 50, P50_NORMAL))
    for way, percent, factor in bounds:
        measured, own = found[way].percentile(percent), found[DRIVER].percentile(percent)
        what = f"{name}, {way}: p{percent} at most {factor} x that of {DRIVER}"
        figures.check(what, measured <= factor * own, f"{measured:.3f} ms, {own:.3f} ms")
    kept = statistics.median(found[HIGH].kept)
    figures.check(f"{name}, {HIGH}: the loop keeps {LOOP_KEEPS} or more", kept >= LOOP_KEEPS, found[HIGH].kept)


def judge_long(figures, name, found):
    for percent, more in ((50, P50_LONG_MS), (99, P99_LONG_MS)):
        measured, alone = found[HIGH].percentile(percent), found[ALONE].percentile(percent)
        what = f"{name}, {HIGH}: p{percent} at most the p{percent} alone + {more} ms"
        figures.check(what, measured <= alone + more, f"{measured:.2f} ms, {alone:.2f} ms")


def weights(stand, daemon, programs):
    """Two loops of unequal weights in turns, and two equal ones by the driver, each beside both alone."""
    figures, name = stand.figures, f"urgent: two loops of weights {WEIGHTS[0]} : {WEIGHTS[1]}"
    native = [loop(programs, f"urgent-native-{number}", "native") for number in range(2)]
    shared = [loop(programs, f"urgent-weight-{weight}", "shared", ["--weight", weight]) for weight in WEIGHTS]
    for program in [*native, *shared]:
        program.hear()
    daemon.set("mode", "time-sliced")
    figures.check(f"{name}: the card is shared in turns", daemon.wait_for_mode("time-sliced"))
    wholes, own = [], []
    due = 100 * WEIGHTS[0] / sum(WEIGHTS)
    for number in range(WEIGHT_ROUNDS):
        own.append(sum(parts(native, DRIVER_SECONDS)))
        before = daemon.gpu()["handoffs"]
        both = parts(shared, WEIGHT_SECONDS)
        handoffs = daemon.gpu()["handoffs"] - before
        wholes.append(sum(both))
        first = 100 * both[0] / wholes[-1]
        figures.sample(name, {"parts": both, "handoffs": handoffs, "driver": own[-1]})
        told = f"{first:.2f} : {100 - first:.2f}, together {wholes[-1]:.3f} of one alone; {handoffs} handoffs"
        figures.row(f"{name}, {WEIGHT_SECONDS} s, round {number + 1}", told)
        figures.check(f"{name}, round {number + 1}: {due:g}% within {POINTS:g} point", abs(first - due) <= POINTS, told)
    whole = statistics.median(wholes)
    figures.row(f"urgent: two equal loops, {DRIVER}: together / one alone", f"{statistics.median(own):.3f}")
    figures.check(f"{name}: together {TOGETHER} or more of one alone, median", whole >= TOGETHER, wholes)


def parts(pair, seconds):
    """Parts of their rates alone that two programs have together; alone right before and after."""
    alone = [[loop_rate(program) for program in pair]]
    stories = ask_together([(program, f"loop {seconds}") for program in pair])
    alone.append([loop_rate(program) for program in pair])
    return paces.parts(stories, [statistics.fmean(rates) for rates in zip(*alone)])
