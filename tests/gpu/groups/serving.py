"""Up to 16 servers of a language model on one card, each with its own decoder of a billion parameters and a load of 0.02:
requests of 64 tokens arrive at random (a Poisson process), at such a rate that one server alone is busy for 0.02 of the time.

    the driver's own slicing     16 programs without gpushare, of which 2, 4, 8 and 16 get requests
    gpushare, all fit            the same with gpushare, and requests at the same points in time
    gpushare, room for two       the same again, where a small capacity has room for the memory of two programs
    one at a time                the same again, where turns of a second let nobody else work beside a request

A token takes from the one before it to itself, as the host reads them. This is compared with one program without gpushare while
the others rest. First tokens are apart, since a request may have to wait for its turn and for memory.

16 programs without gpushare and 16 with it do not fit the card together, so the first end before the others start. No byte is
managed.
"""

import statistics
from dataclasses import dataclass, field

import paces
from programs import ask_together, client

NEEDS = 370

TENANTS, LOAD = 16, 0.02
# Seconds in which requests arrive, by the number of programs that get them. More programs have enough of them sooner.
SECONDS = {2: 20, 4: 16, 8: 14, 16: 12}
# As many different ones as clients/server.py has.
PROMPTS = 4
# Of one program while the others rest: so many requests, each so long after the last one was answered.
ALONE_REQUESTS, ALONE_PAUSE = 12, 0.5
# A token's time / the same alone, at most.
P50, P99 = 1.05, 1.20
# At least so many tenants stay within that where only so many fit.
AT_LEAST, FITTING = 8, 2
# What the capacity has beside the memory of two: chunks are larger than what they hold.
ROOM_MIB = 256
# For the first handoffs, at which host memory is made.
PREPARING_ROUNDS = 2
START_LIMIT, LIMIT, TAIL = 120, 60, 5

DRIVER, FITS, SMALL = "the driver's own slicing", "gpushare, all fit", "gpushare, room for two"
ONE = f"{SMALL}, one at a time"
# Longer than a request, which then has the card to itself.
QUANTUM = "1s"
SERVER = client("server.py")


@dataclass
class Point:
    """What requests of some programs at once took, in seconds."""

    requests: int = 0
    # Of each request from the begin of its service, of each first token since its request arrived, and of all other tokens.
    seconds: list = field(default_factory=list)
    first: list = field(default_factory=list)
    later: list = field(default_factory=list)
    # Checksums of answers by prompt.
    checksums: dict = field(default_factory=dict)

    def add(self, told):
        self.requests += told["requests"]
        self.seconds += told["seconds"]
        self.first += told["from_arrival"]
        self.later += told["later"]
        for prompt, sums in told["checksums"].items():
            self.checksums.setdefault(prompt, set()).update(sums)

    def beside(self, alone):
        """Its tokens' times / those alone, at p50 and p99. First tokens do not count."""
        return tuple(paces.percentile(self.later, percent) / paces.percentile(alone.later, percent) for percent in (50, 99))


def is_within(ratios):
    return all(ratio <= bound for ratio, bound in zip(ratios, (P50, P99), strict=True))


def most_within(points, alone):
    """The largest number of tenants that stay within the bounds, as do all smaller numbers that were measured; else 0."""
    most = 0
    for count in sorted(points):
        if not is_within(points[count].beside(alone)):
            break
        most = count
    return most


def wrong_answers(points, alone):
    """Checksums that are not those of the same prompt alone, by the number of tenants and the prompt."""
    wrong = {}
    for count, point in points.items():
        for prompt, sums in point.checksums.items():
            if others := sums - alone.checksums.get(prompt, set()):
                wrong[count, prompt] = sorted(others)
    return wrong


def run(stand):
    figures, most = stand.figures, {}
    with stand.programs() as programs:
        native = start(programs, "native")
        alone = alone_on(figures, native[0], "serving, one program without gpushare")
        answers = [len(sums) for sums in alone.checksums.values()]
        figures.equal("serving: answers by prompt, one program without gpushare", answers, [1] * PROMPTS)
        rate = LOAD / statistics.median(alone.seconds)
        figures.row(f"serving: requests a second for each program, a load of {LOAD}", f"{rate:.3f}")
        most[DRIVER] = tell(figures, DRIVER, {1: alone} | measure(stand, native, DRIVER, rate), alone)
        end(native)
    with stand.daemon(allows_managed=stand.backend != "remap", log_name="scheduler-serving") as daemon, stand.programs(daemon) as programs:
        shared = start(programs, "shared")
        used = max(daemon.used_mib(program.name) for program in shared)
        capacity = capacity_mib(daemon)
        figures.check(f"serving, {FITS}: they do", len(shared) * used <= capacity, f"{len(shared)} of {used} MiB, {capacity} MiB")
        one = alone_on(figures, shared[0], "serving, one program with gpushare")
        most[FITS] = tell(figures, FITS, {1: one} | measure(stand, shared, FITS, rate, daemon), alone)
        make_room_for_two(figures, daemon, used)
        prepared = prepare(shared)
        figures.equal(f"serving, {SMALL}: wrong answers at the first handoffs", wrong_answers({TENANTS: prepared}, alone), {})
        most[SMALL] = tell(figures, SMALL, measure(stand, shared, SMALL, rate, daemon), alone)
        daemon.set("mode", "time-sliced", "--gpu", "0")
        daemon.set("quantum", QUANTUM, "--gpu", "0")
        most[ONE] = tell(figures, ONE, measure(stand, shared, ONE, rate, daemon), alone)
        for name in ("capacity", "mode", "quantum"):
            daemon.set(name, "auto", "--gpu", "0")
        end(shared)
    judge(figures, most)


def start(programs, kind):
    """All at once, since each start is bound by one core."""
    # The time of moves is measured, so they are not checked.
    how = {"shared": kind == "shared", "backend": "remap", "paranoid": False}
    tenants = [programs.start(f"serving-{kind}-{number}", SERVER, **how) for number in range(TENANTS)]
    ready = [tenant.hear(START_LIMIT) for tenant in tenants]
    programs.stand.figures.sample(f"serving: {kind}", ready[0])
    return tenants


def end(tenants):
    """All at once, too."""
    for tenant in tenants:
        tenant.process.stdin.close()
    for tenant in tenants:
        tenant.finish()


def alone_on(figures, tenant, name):
    """Requests of one program while the others rest."""
    told = tenant.ask(f"requests {ALONE_REQUESTS} {ALONE_PAUSE}", LIMIT)
    point = Point()
    point.add(told)
    figures.sample(name, told)
    p50, p99 = (1e3 * paces.percentile(point.later, percent) for percent in (50, 99))
    whole = 1e3 * statistics.median(point.seconds)
    figures.row(f"{name}: request, median; token, p50, p99 of {len(point.later)}", f"{whole:.1f} ms; {p50:.3f}, {p99:.3f} ms")
    return point


def measure(stand, tenants, name, rate, daemon=None):
    """Points by the number of tenants, as far as there is time."""
    points = {}
    for count, seconds in SECONDS.items():
        if not stand.deadline.allows(seconds + TAIL):
            left = f"{stand.deadline.left():.0f} s are left"
            stand.figures.check(f"serving, {name}: there is time for {count} tenants", False, left)
            return points
        before = daemon.gpu() if daemon else None
        # Requests of a number of tenants arrive at the same points in time in each way.
        asked = [(tenant, f"serve {seconds} {arrivals(count, number)} {rate}") for number, tenant in enumerate(tenants[:count])]
        heard = ask_together(asked, seconds + LIMIT)
        points[count] = Point()
        for told in heard:
            points[count].add(told)
        after = daemon.gpu() if daemon else None
        stand.figures.sample(f"serving, {name}, {count} tenants", {"heard": heard, "before": before, "after": after})
        if daemon:
            moved = (after["moved_bytes"] - before["moved_bytes"]) / (1 << 30)
            told = f"{after['handoffs'] - before['handoffs']}, {moved:.1f} GiB"
            stand.figures.row(f"serving, {name}, {count} tenants: handoffs, memory that came in", told)
    return points


def arrivals(count, number):
    """Seed of the requests of a program among so many."""
    return 100 * count + number


def capacity_mib(daemon):
    return daemon.gpu()["capacity_bytes"] >> 20


def make_room_for_two(figures, daemon, used):
    """A capacity for the memory of two programs that use so many MiB each, and not for that of a third one."""
    wanted = FITTING * used + ROOM_MIB
    daemon.set("capacity", f"{wanted}MiB", "--gpu", "0")
    # What cannot leave the card is no part of the capacity.
    fixed = wanted - capacity_mib(daemon)
    if fixed > 0:
        daemon.set("capacity", f"{wanted + fixed}MiB", "--gpu", "0")
    capacity = capacity_mib(daemon)
    told = f"{used}, {fixed}, {capacity}"
    figures.row(f"serving, {SMALL}: MiB of one program, of what cannot move, capacity", told)
    figures.check(f"serving, {SMALL}: it has room for {FITTING}", FITTING * used <= capacity < (FITTING + 1) * used, told)


def prepare(tenants):
    """One after the other answers a request, and again: each has left the card by then, so its host memory is there."""
    point = Point()
    for _ in range(PREPARING_ROUNDS):
        for tenant in tenants:
            point.add(tenant.ask("requests 1 0", LIMIT))
    return point


def tell(figures, way, points, alone):
    """Rows of one way of sharing; the most tenants that stay within the bounds."""
    for count, point in points.items():
        p50, p99 = point.beside(alone)
        name = f"serving, {way}, {count} tenant{'s' if count > 1 else ''}"
        figures.row(f"{name}: token / alone, p50, p99 of {len(point.later)}", f"{p50:.3f}, {p99:.3f}")
        first = ", ".join(f"{1e3 * paces.percentile(point.first, percent):.1f}" for percent in (50, 99))
        figures.row(f"{name}: first token, p50, p99 of {point.requests}", f"{first} ms")
    figures.equal(f"serving, {way}: wrong answers", wrong_answers(points, alone), {})
    most = most_within(points, alone)
    figures.row(f"serving, {way}: tenants whose tokens stay within {P50} at p50 and {P99} at p99", most)
    return most


def judge(figures, most):
    """By the most tenants that stay within the bounds, for each way of sharing."""
    both = f"{most[FITS]}, {most[DRIVER]}"
    figures.check(f"serving, {FITS}: at least as many as by {DRIVER} stay within the bounds", most[FITS] >= most[DRIVER], both)
    figures.check(f"serving, {ONE}: {AT_LEAST} or more stay within the bounds", most[ONE] >= AT_LEAST, most[ONE])
