"""Two trainings of three quarters of the card each, under `--backend remap`: one after the other, and at once. They learn what
the same training learns without gpushare. No byte is managed, so what does not fit is in host memory and nowhere else.

The same pair without gpushare, or with `--backend managed`, is not run: managed memory beyond the card can hang it.
"""

import time

from programs import ask_together, client

NEEDS = 300

# Weight, gradient and momentum of a layer of 8192 x 8192 floats take 768 MiB; activations are small beside them.
WIDTH, BATCH, LAYER_MIB = 8192, 512, 768
PART_OF_CARD = 0.75
STEPS = 100
MAKESPAN = 1.10
# Of one training: its start, its steps, and the move of its memory.
START_LIMIT, STEPS_LIMIT = 90, 300


def run(stand):
    run_pair(stand, "oversubscribed", int(PART_OF_CARD * stand.card.total_mib), stand.card.total_mib)


def run_pair(stand, name, each_mib, card_mib, flags=(), steps=STEPS, paranoid=False, environment=None):
    """Two trainings of so much memory each, of which a card of `card_mib` holds only a part. The time of moves is measured unless
    they are checked. All three trainings have the `environment`."""
    figures = stand.figures
    layers = each_mib // LAYER_MIB
    command = client("train.py", "wide", "--width", str(WIDTH), "--layers", str(layers), "--batch", str(BATCH))
    with stand.programs() as programs:
        native = programs.start(f"{name}-native", command, shared=False, environment=environment)
        warmup = native.hear(START_LIMIT)["warmup"]
        alone = native.ask(f"steps {steps}", STEPS_LIMIT)
    with stand.daemon(allows_managed=False, flags=flags, log_name=f"scheduler-{name}") as daemon, stand.programs(daemon) as programs:
        start = lambda number: programs.start(
            f"{name}-{number}", command, shared=True, backend="remap", paranoid=paranoid, environment=environment
        )
        pair = [start(number) for number in range(2)]
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
