"""Two trainings of three quarters of the card each, under `--backend remap`: one after the other, and at once. They learn what
the same training learns without gpushare. Then one program of 1.2 times the card, by `--oversubscribe`, which knows what it
must compute. No byte is managed, so what does not fit is in host memory and nowhere else.

The same pair without gpushare, or with `--backend managed`, is not run: managed memory beyond the card can hang it.
"""

import time

from programs import ask_together, client

NEEDS = 540

# Weight, gradient and momentum of a layer of 8192 x 8192 floats take 768 MiB; activations are small beside them.
WIDTH, BATCH, LAYER_MIB = 8192, 512, 768
PART_OF_CARD = 0.75
STEPS = 200
MAKESPAN = 1.10
# Of one training: its start, its steps, and the move of its memory.
START_LIMIT, STEPS_LIMIT = 90, 300
LARGER = 1.2
# Of the large program: its start, for which the driver makes host memory at 2 GB/s or more, and one pass over all memory.
FILL_LIMIT, PASS_LIMIT = 120, 60
# Blocks that it then uses again and again, at first mapped from the host, with pauses in which others change places with them.
AGAIN, ROUNDS, PAUSE = 8, 14, 1.0
AGAIN_LIMIT = 60
PROMOTED = 4


def run(stand):
    run_pair(stand, "oversubscribed", int(PART_OF_CARD * stand.card.total_mib), stand.card.total_mib)
    run_larger(stand)


def run_pair(stand, name, each_mib, card_mib, flags=(), steps=STEPS, paranoid=False):
    """Two trainings of so much memory each, of which a card of `card_mib` holds only a part. The time of moves is measured unless
    they are checked."""
    figures = stand.figures
    layers = each_mib // LAYER_MIB
    command = client("train.py", "wide", "--width", str(WIDTH), "--layers", str(layers), "--batch", str(BATCH))
    with stand.programs() as programs:
        native = programs.start(f"{name}-native", command, shared=False)
        warmup = native.hear(START_LIMIT)["warmup"]
        alone = native.ask(f"steps {steps}", STEPS_LIMIT)
    with stand.daemon(allows_managed=False, flags=flags, log_name=f"scheduler-{name}") as daemon, stand.programs(daemon) as programs:
        pair = [programs.start(f"{name}-{number}", command, shared=True, backend="remap", paranoid=paranoid) for number in range(2)]
        figures.equal(f"{name}: the same losses while warming up", [one.hear(START_LIMIT)["warmup"] for one in pair], [warmup] * 2)
        held = sum(daemon.used_mib(one.name) for one in pair)
        figures.check(f"{name}: together they have more than the card", held > card_mib, f"{held} MiB")
        begin = time.monotonic()
        at_once = ask_together([(one, f"steps {steps}") for one in pair], STEPS_LIMIT)
        makespan = time.monotonic() - begin
        gpu = daemon.gpu()
        figures.sample(f"{name} status", daemon.status())
    for number, answer in enumerate(at_once):
        figures.equal(f"{name}: training {number} learns the same", answer["losses"], alone["losses"])
    serial = 2 * alone["seconds"]
    figures.row(
        f"{name}: two trainings of MiB each, steps; seconds at once, one after the other without gpushare; handoffs",
        f"{held // 2}, {steps}; {makespan:.1f}, {serial:.1f}, {makespan / serial:.3f} x; {gpu['handoffs']}",
    )
    figures.check(f"{name}: memory moved", gpu["moved_bytes"] > 0, gpu)
    if not paranoid:
        figures.check(f"{name}: at most {MAKESPAN} x one after the other", makespan <= MAKESPAN * serial, f"{makespan:.1f} s")


def run_larger(stand):
    """One program of more than the card, whose rest is mapped from the host."""
    figures = stand.figures
    blocks = -(-int(LARGER * stand.card.total_mib) // 1024)
    with stand.daemon(allows_managed=False, log_name="scheduler-larger") as daemon, stand.programs(daemon) as programs:
        command = client("larger.py", str(blocks))
        program = programs.start(
            "oversubscribed-larger", command, shared=True, backend="remap", options=("--oversubscribe",)
        )
        program.hear(FILL_LIMIT)
        checks = [program.ask("check", PASS_LIMIT)]
        added = program.ask("add", PASS_LIMIT)["seconds"]
        again = program.ask(f"again {AGAIN} {ROUNDS} {PAUSE}", AGAIN_LIMIT)["seconds"]
        checks.append(program.ask("check", PASS_LIMIT))
        status = daemon.status()
        figures.sample("oversubscribed status of the large program", status)
        program.finish()
    (place,) = status["residences"]
    mapped = place["mapped_bytes"]
    figures.equal(f"oversubscribed: one process of {LARGER} x the card ends with right results", [c["right"] for c in checks], [blocks] * 2)
    figures.check("oversubscribed: what does not fit is mapped from the host", mapped > 0, f"{mapped >> 20} MiB")
    figures.row(
        "oversubscribed: one process, MiB on the card, from the host; adding 1 to a GiB, fastest and slowest",
        f"{place['resident_bytes'] >> 20}, {mapped >> 20}; {1e3 * min(added):.2f}, {1e3 * max(added):.2f} ms",
    )
    figures.row(
        f"oversubscribed: adding 1 to its last {AGAIN} GiB again and again, rounds with {PAUSE} s of rest",
        ", ".join(f"{1e3 * taken:.0f}" for taken in again) + " ms",
    )
    name = f"oversubscribed: blocks that are used again and again come to the card: at least {PROMOTED} times as fast"
    figures.check(name, PROMOTED * again[-1] <= again[0], f"{again[0]:.3f} to {again[-1]:.3f} s")
