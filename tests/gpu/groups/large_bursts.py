"""A program with remapped memory that works once a second beside a training that has 60 GiB: with 2 GiB, so that both fit, and with
30 GiB, so that some 15 GiB must move out and as much in before each burst. A larger card than the one that the sizes are for gets
that one's capacity. No byte is managed.

    the first result of a burst  ≤  its time alone + plain copies of what must move, both ways at once + drain + 150 ms
"""

import time

import paces
from programs import client

NEEDS = 330

# Weight, gradient and momentum of a layer of 8192 x 8192 floats take 768 MiB.
WIDTH, BATCH, LAYER_MIB, TRAINING_GIB = 8192, 512, 768, 60
CAPACITY_GIB = 75
BURSTS, EVERY = 40, 1.0
SIZES_GIB = (2, 30)
BEYOND_MS = 150
START_LIMIT, LIMIT = 120, 60
MORE_STEPS = 10**6

TRAINING = client("train.py", "wide", "--width", str(WIDTH), "--layers", str((TRAINING_GIB << 10) // LAYER_MIB), "--batch", str(BATCH))
HOLDER = client("holder.py")


def run(stand):
    copies = plain_copies(stand)
    flags = ["--capacity", f"0={CAPACITY_GIB}GiB"] if stand.card.total_mib > CAPACITY_GIB << 10 else []
    for gib in SIZES_GIB:
        if not stand.deadline.allows(NEEDS / len(SIZES_GIB)):
            stand.figures.check(f"bursts of {gib} GiB: there is time for them", False)
            return
        with stand.daemon(allows_managed=False, flags=flags, log_name=f"scheduler-bursts-{gib}") as daemon, stand.programs(daemon) as programs:
            measure(stand.figures, daemon, programs, gib, copies)


def measure(figures, daemon, programs, gib, copies):
    """`copies` are the seconds that plain copies of a GiB each way take."""
    name = f"bursts of {gib} GiB beside a training of {TRAINING_GIB} GiB"
    burst = programs.start(f"burst-{gib}", HOLDER, shared=True, backend="remap", paranoid=False)
    burst.hear()
    burst.ask(f"hold {gib << 10}", LIMIT)
    alone = min(burst.ask("step", LIMIT)["seconds"] for _ in range(3))
    training = programs.start(f"burst-training-{gib}", TRAINING, shared=True, backend="remap", paranoid=False)
    training.hear(START_LIMIT)
    excess_mib = max(0, sum(daemon.used_mib(one.name) for one in (burst, training)) - (daemon.gpu()["capacity_bytes"] >> 20))
    moves = copies * excess_mib / 1024
    # The first ones prepare host memory.
    training.tell(f"steps {MORE_STEPS}")
    for _ in range(2):
        time.sleep(EVERY)
        burst.ask("step", LIMIT)
    before, waits = daemon.gpu(), []
    for _ in range(BURSTS):
        time.sleep(EVERY)
        waits.append(1e3 * (burst.ask("step", LIMIT)["seconds"] - alone))
    gpu = daemon.gpu()
    drains = [ns / 1e6 for ns in gpu["drains_ns"]]
    drain = paces.percentile(drains, 50) if drains else 0.0
    handoffs = gpu["handoffs"] - before["handoffs"]
    promised = 1e3 * moves + drain + BEYOND_MS
    figures.sample(name, {"waits": waits, "alone": alone, "moves": moves, "before": before, "after": gpu})
    figures.row(f"{name}: MiB that must move, plain copies both ways; drain p50", f"{excess_mib}, {1e3 * moves:.0f} ms; {drain:.1f} ms")
    figures.row(f"{name}: beyond its time alone, p50, p99, worst", ", ".join(f"{paces.percentile(waits, part):.0f}" for part in (50, 99, 100)) + " ms")
    figures.row(f"{name}: handoffs", str(handoffs))
    figures.check(f"{name}: memory moves if not both fit", (excess_mib > 0) == (gib == max(SIZES_GIB)), f"{excess_mib} MiB")
    figures.check(f"{name}: one handoff at least for each that does not fit", excess_mib == 0 or handoffs >= BURSTS, handoffs)
    figures.check(f"{name}: each within floor + drain + {BEYOND_MS} ms", max(waits) <= promised, f"{max(waits):.0f} of {promised:.0f} ms")
    figures.check(f"{name}: every word is right", burst.ask("check", LIMIT)["right"])


def plain_copies(stand):
    """Seconds of plain copies of a GiB both ways at once, of the driver alone, on the empty card."""
    with stand.programs() as programs:
        plain = programs.start("burst-copies", HOLDER, shared=False)
        plain.hear()
        return plain.ask("copies 1024", LIMIT)["both"]
