"""How soon short work is served beside a training that always has work, and what that costs the training.

    fits           every 200 ms, in parallel: alone and beside the training, with gpushare and by the driver's own slicing
    does not fit   every five seconds or more, in turns that a small capacity forces

The **floor** of the second is the burst's time alone and what must move out of the card and in, at the rates of the same run. A
small capacity is a rule of the daemon's: the card itself has room, so what really moved is read from NVML.
"""

import contextlib
import subprocess
import time

import paces
from nvml import Nvml
from programs import client

NEEDS = 310

EVERY, COUNT, ROUNDS = 0.2, 50, 2
# Of the card, alone.
SHORT_MS, LONG_MS = 10, 50
BESIDE_MS = 20

SELDOM, TURNS_COUNT, TURNS_MS = 5, 8, 50
IN_TURNS_MS, HOG_KEEPS = 50, 0.90
ALONE_SECONDS = 8
# By how much the two are more than the capacity.
EXCESS_MIB = 1024
USUAL_DRAIN = 0.01
# Seconds between two looks at what happens meanwhile.
LOOK = 0.2
SLACK_MIB = 64

HOG = client("paced.py", "train", "--batch", "16", "--ballast-mib", "1024")
SMALL = client("paced.py", "infer", "--width", "4096", "--layers", "4", "--batch", "256")
LARGE = client("paced.py", "infer", "--width", "8192", "--layers", "8", "--batch", "64")


def run(stand):
    with stand.daemon() as daemon, stand.programs(daemon) as programs:
        # One by one: each measures its own work while nobody else works.
        started = {
            (what, kind): start(stand, programs, f"{what}-{kind}", command, kind == "shared")
            for kind in ("native", "shared")
            for what, command in (("hog", HOG), ("small", SMALL))
        }
        with watching(stand, daemon, "bursts-beside"):
            beside(stand, daemon, started)
    # A fresh daemon: what a handoff costs is not known yet, and all its drains are of turns.
    with stand.daemon() as daemon, stand.programs(daemon) as programs:
        rates = programs.start("bursts-moving", client("moving.py"), shared=False).result()
        stand.figures.check("bursts: what moved is right", rates["right"])
        stand.figures.row(
            "bursts: managed memory moves out, in; a GiB that is there already",
            f"{rates['out'] / 1e9:.1f}, {rates['back'] / 1e9:.1f} GB/s; {rates['stay_ms']:.2f} ms",
        )
        pair = [start(stand, programs, what, command, True) for what, command in (("hog", HOG), ("large", LARGE))]
        with watching(stand, daemon, "bursts-turns"):
            in_turns(stand, daemon, *pair, rates)


def start(stand, programs, name, command, shared):
    program = programs.start(f"bursts-{name}", command, shared=shared)
    stand.figures.sample(f"bursts: {name}", program.hear())
    return program


@contextlib.contextmanager
def watching(stand, daemon, name):
    """What the daemon tells meanwhile, for the archive."""
    command = ["timeout", "-k", "5", "300", daemon.ctl, "--runtime-dir", daemon.runtime, "watch", "--json"]
    with open(stand.logs / f"{name}.jsonl", "wb") as said:
        watch = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        try:
            yield
        finally:
            watch.terminate()
            watch.wait(timeout=10)


def milliseconds(story):
    return [1e3 * (end - begin) for begin, end in zip(story["begins"], story["ends"])]


def bursts(program, hog, count, every, work_ms, meanwhile=lambda: None):
    """What came of the bursts, and of the training beside them."""
    if hog is not None:
        hog.tell(f"train {count * every + 1.5}")
        time.sleep(0.5)
    program.tell(f"bursts {count} {every} {work_ms}")
    while program.lines.empty() and program.process.poll() is None:
        meanwhile()
        time.sleep(LOOK)
    story = program.hear()
    return story, hog.hear() if hog is not None else None


def beside(stand, daemon, started):
    # In parallel two programs have half the card each, so a long burst takes twice its time whoever slices; high priority is for that.
    ways = [
        (SHORT_MS, "parallel", "normal", "alone"),
        (LONG_MS, "parallel", "normal", "the driver's own"),
        (LONG_MS, "high priority", "high", "alone"),
    ]
    for work_ms, way, priority, against in ways:
        program, hog = started["small", "shared"], started["hog", "shared"]
        daemon.set("priority", priority, "--session", program.name)
        times = {"alone": [], "beside": []} | ({"the driver's own": []} if priority == "normal" else {})
        modes, trained = set(), []
        for _ in range(ROUNDS):
            times["alone"] += milliseconds(bursts(program, None, COUNT, EVERY, work_ms)[0])
            look = lambda: modes.add(daemon.gpu()["mode"])
            story, training = bursts(program, hog, COUNT, EVERY, work_ms, look)
            times["beside"] += milliseconds(story)
            trained.append(paces.rate(training, story["begins"][0], story["ends"][-1]))
            if "the driver's own" in times:
                native = started["small", "native"], started["hog", "native"]
                times["the driver's own"] += milliseconds(bursts(*native, COUNT, EVERY, work_ms)[0])
        name = f"bursts of {work_ms} ms every 200 ms, {way}"
        judge_beside(stand.figures, name, times, modes, against)
        rates = ", ".join(f"{rate:.2f}" for rate in [*trained, alone(hog)])
        stand.figures.row(f"{name}: the training's steps a second beside them, and alone", rates)
    daemon.set("priority", "normal", "--session", started["small", "shared"].name)


def judge_beside(figures, name, times, modes, against):
    figures.sample(name, {"times": times, "modes": sorted(modes)})
    for how, values in times.items():
        p50, p99, worst = (paces.percentile(values, percent) for percent in (50, 99, 100))
        figures.row(f"{name}, {how}: p50, p99, worst", f"{p50:.1f}, {p99:.1f}, {worst:.1f} ms")
    figures.row(f"{name}: the card was shared", ", ".join(sorted(modes)))
    promised = paces.percentile(times[against], 99) + BESIDE_MS
    measured = paces.percentile(times["beside"], 99)
    figures.check(f"{name}: p99 at most {promised:.1f} ms, {against} + {BESIDE_MS}", measured <= promised, f"{measured:.1f} ms")


def in_turns(stand, daemon, hog, burst, rates):
    figures, name, nvml = stand.figures, "bursts that do not fit", Nvml()
    used = {program.name: daemon.used_mib(program.name) for program in (hog, burst)}
    capacity_mib = sum(used.values()) - EXCESS_MIB
    daemon.set("capacity", f"{capacity_mib}MiB", "--gpu", "0")
    figures.check(f"{name}: a small capacity forces turns", daemon.wait_for_mode("serialized"))
    figures.row(f"{name}: MiB of the training and the burst, capacity", f"{list(used.values())}, {capacity_mib}")

    solo = paces.percentile(milliseconds(bursts(burst, None, TURNS_COUNT, 1, TURNS_MS)[0]), 50)
    moves = (EXCESS_MIB << 20) * (1 / rates["out"] + 1 / rates["back"])
    every = max(SELDOM, 20 * (2 * (moves + USUAL_DRAIN) + solo / 1e3))
    before = alone(hog)
    resident, before_gpu = [nvml.used()], daemon.gpu()
    story, training = bursts(burst, hog, TURNS_COUNT, every, TURNS_MS, lambda: resident.append(nvml.used()))
    gpu = daemon.gpu()
    after = alone(hog)
    nvml.close()

    times = milliseconds(story)
    begin = story["begins"][0]
    end = min(begin + TURNS_COUNT * every, training["ends"][-1])
    kept = paces.rate(training, begin, end) / ((before + after) / 2)
    drains = [ns / 1e6 for ns in gpu["drains_ns"]]
    drain = paces.percentile(drains, 50) if drains else 0.0
    left_mib = (max(resident) - min(resident)) >> 20
    # Nothing is allowed for a move that was not one.
    moved = moves if left_mib > SLACK_MIB else 0.0
    promised = solo + 1e3 * moved + drain + IN_TURNS_MS
    figures.sample(name, {"times": times, "solo": solo, "every": every, "gpu": gpu, "rates": rates, "training": training, "bursts": story})
    figures.row(f"{name}: each, one every {every:.1f} s", ", ".join(f"{value:.1f}" for value in times) + " ms")
    figures.row(f"{name}: alone; drain p50, longest", f"{solo:.1f} ms; {drain:.1f}, {max(drains, default=0):.1f} ms")
    figures.row(f"{name}: left the card by NVML; the excess would take", f"{left_mib} MiB; {1e3 * moves:.1f} ms")
    counts = (gpu[key] - before_gpu[key] for key in ("handoffs", "aborted_drops"))
    figures.row(f"{name}: handoffs, aborted drops", ", ".join(map(str, counts)))
    compared = f"{max(times):.1f}, {promised:.1f} ms"
    figures.row(f"{name}: the worst, and floor + drain + {IN_TURNS_MS} ms", compared)
    figures.check(f"{name}: each within floor + drain + {IN_TURNS_MS} ms", max(times) <= promised, compared)
    figures.row(f"{name}: the training's rate / its rate alone", f"{kept:.3f} ({before:.2f} and {after:.2f} a second alone)")
    figures.check(f"{name}: the training keeps {HOG_KEEPS} or more", kept >= HOG_KEEPS, kept)
    daemon.set("capacity", "auto", "--gpu", "0")


def alone(hog):
    return paces.rates([hog.ask(f"train {ALONE_SECONDS}")])[0]
