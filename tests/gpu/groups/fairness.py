"""Fair shares between PyTorch trainings that fit the card: four equal ones side by side and in short turns, two beside one that
is limited, and two that are bound by their launches beside what the driver makes of them alone.
"""

import statistics
import time

import paces
import ratios
from programs import ask_together, client

NEEDS = 205

HOGS = 4
HOG = client("paced.py", "train", "--batch", "16")
SECONDS = 10
EQUAL = 0.99
# The last tells what the turns of the computed quantum cost.
MODES = (("parallel", "auto"), ("time-sliced", "auto"), ("time-sliced", "200ms"))

UNDISTURBED = 0.98
LIMIT = "25%"
ROUNDS = 3
BESIDE_SECONDS = 8

LAUNCH_BOUND = client("train.py", "transformer", "--width", "64", "--heads", "4", "--length", "64", "--batch", "2")
STEPS = 200
ALTERNATIONS = 8


def run(stand):
    with stand.daemon() as daemon, stand.programs(daemon) as programs:
        hogs = [programs.start(f"fairness-{number}", HOG, shared=True) for number in range(HOGS)]
        for hog in hogs:
            hog.hear()
        four_equal(stand, daemon, hogs)
        beside_a_limit(stand, daemon, hogs[:3])
    with stand.daemon() as daemon, stand.programs(daemon) as programs:
        launch_bound(stand, programs)


def train(hogs, seconds):
    return paces.rates(ask_together([(hog, f"train {seconds}") for hog in hogs]))


def four_equal(stand, daemon, hogs):
    figures = stand.figures
    alone = train(hogs[:1], 3)
    figures.row("fairness: one training alone, steps a second", f"{alone[0]:.1f}")
    for mode, quantum in MODES:
        daemon.set("mode", mode)
        daemon.set("quantum", quantum)
        name = f"fairness: four equal trainings, {mode}" + (f" for {quantum}" if quantum != "auto" else "")
        figures.check(f"{name}: the card is shared so", daemon.wait_for_mode(mode))
        train(hogs, 2)
        before = daemon.gpu()
        rates = train(hogs, SECONDS)
        after = daemon.gpu()
        jain, whole = paces.jain(rates), sum(rates) / alone[0]
        figures.sample(name, {"rates": rates, "alone": alone[0], "status": after})
        figures.row(
            name,
            f"Jain {jain:.4f}; {', '.join(f'{rate:.2f}' for rate in rates)} steps a second, together {whole:.3f} of one alone; "
            f"quantum {after['quantum_ns'] / 1e6:.0f} ms, {after['handoffs'] - before['handoffs']} handoffs, {after['aborted_drops'] - before['aborted_drops']} aborted",
        )
        figures.check(f"{name}: Jain's index of {EQUAL} or more", jain >= EQUAL, jain)
    daemon.set("quantum", "auto")
    daemon.set("mode", "auto")


def beside_a_limit(stand, daemon, hogs):
    figures, name = stand.figures, "fairness: two trainings beside a third"
    figures.check(f"{name}: the card is shared in parallel", daemon.wait_for_mode("parallel"))
    sums = {"none": [0.0, 0.0, 0.0], LIMIT: [0.0, 0.0, 0.0]}
    for _ in range(ROUNDS):
        for limit, total in sums.items():
            daemon.set("compute", limit, "--session", hogs[2].name)
            train(hogs, 1)
            rates = train(hogs, BESIDE_SECONDS)
            figures.sample(f"{name}, limited to {limit}", rates)
            figures.equal(f"{name}: still in parallel", daemon.gpu()["mode"], "parallel")
            for number, rate in enumerate(rates):
                total[number] += rate / ROUNDS
    daemon.set("compute", "none", "--session", hogs[2].name)
    for limit, rates in sums.items():
        figures.row(f"{name}, its limit {limit}: steps a second", ", ".join(f"{rate:.2f}" for rate in rates))
    kept = [limited / free for limited, free in zip(sums[LIMIT][:2], sums["none"][:2])]
    figures.row(f"{name}: rate beside it limited / unlimited", ", ".join(f"{value:.3f}" for value in kept))
    figures.check(f"{name}: they keep {UNDISTURBED} or more", min(kept) >= UNDISTURBED, kept)


def launch_bound(stand, programs):
    figures, name = stand.figures, "fairness: two launch-bound trainings"
    kinds = ("native", "shared")
    pairs = {
        kind: [programs.start(f"launch-bound-{kind}-{number}", LAUNCH_BOUND, shared=kind == "shared") for number in range(2)]
        for kind in kinds
    }
    warmups = {kind: [program.hear()["warmup"] for program in pair] for kind, pair in pairs.items()}
    figures.equal(f"{name}: same losses while warming up", warmups["shared"], warmups["native"])
    seconds = {kind: [] for kind in kinds}
    for number in range(ALTERNATIONS + 1):
        for kind in kinds:
            begin = time.monotonic()
            ask_together([(program, f"steps {STEPS}") for program in pairs[kind]])
            # Clocks and caches settle in the first, which does not count.
            if number:
                seconds[kind].append(time.monotonic() - begin)
    figures.sample(f"{name}: seconds until the last has ended", seconds)
    ratio, spread = ratios.speed(seconds["native"], seconds["shared"]), ratios.spread(seconds["native"])
    for kind, times in seconds.items():
        figures.row(
            f"{name}, {kind}: seconds of {STEPS} steps each",
            f"median {statistics.median(times):.3f}, {min(times):.3f} to {max(times):.3f}",
        )
    figures.row(f"{name}: speed shared / the driver's own slicing", ratio)
    figures.row(f"{name}: spread of the driver's own", f"{100 * spread:.1f}%")
    figures.check(f"{name}: no slower than the spread", ratio.mean >= 1 - spread, f"{ratio}, spread {spread:.4f}")
