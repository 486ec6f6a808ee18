"""What sharing costs a training that has the card to itself.

Two long-lived processes of each model, one alone and one shared, train block by block in turns: A B A B ...
The one whose turn it is not does nothing at all. So an alternation costs two blocks and no start.
"""

import statistics
from dataclasses import dataclass

import ratios
from programs import client

NEEDS = 170

# What the product promises of a model that keeps the card busy, and how sure one must be.
PROMISED_SPEED = 0.99
LEAST_STEP_MS = 50
LEAST_ALTERNATIONS = 20


@dataclass(frozen=True)
class Model:
    name: str
    arguments: tuple
    steps: int
    """Steps of a block: about a second."""
    seconds: float
    """What an alternation takes on an H100."""
    promised: bool = False


MODELS = (
    Model(
        "gpu-bound transformer",
        ("transformer", "--width", "1024", "--layers", "12", "--batch", "16"),
        steps=16,
        seconds=3,
        promised=True,
    ),
    Model("resnet50", ("resnet50", "--batch", "32"), steps=30, seconds=2),
    Model(
        "launch-bound transformer",
        ("transformer", "--width", "64", "--heads", "4", "--length", "64", "--batch", "2"),
        steps=60,
        seconds=1.5,
    ),
)


def run(stand):
    for model in MODELS:
        with stand.daemon() as daemon, stand.programs(daemon) as programs:
            compare(stand, programs, model)


def compare(stand, programs, model):
    figures, slug = stand.figures, model.name.replace(" ", "-")
    pair = [
        programs.start(f"training-{slug}-{how}", client("train.py", *model.arguments), shared=how == "shared")
        for how in ("native", "shared")
    ]
    first = [program.hear() for program in pair]
    figures.equal(f"training: {model.name}: same losses while warming up", first[1]["warmup"], first[0]["warmup"])
    # One alternation that does not count: clocks and caches settle.
    for program in pair:
        program.ask(f"steps {model.steps}")

    seconds, steps_ms, differing = ([], []), [], 0
    for _ in stand.more_rounds(stand.rounds, model.seconds):
        native, shared = [program.ask(f"steps {model.steps}") for program in pair]
        for times, block in zip(seconds, (native, shared), strict=True):
            times.append(block["seconds"])
        steps_ms.append(native["step_ms_p50"])
        differing += native["losses"] != shared["losses"]
    reserved = native["reserved_mib"]
    for program in pair:
        program.finish()

    figures.sample(f"training {model.name}", {"steps": model.steps, "native_s": seconds[0], "shared_s": seconds[1]})
    figures.equal(f"training: {model.name}: blocks whose losses differ", differing, 0)
    ratio, step_ms = ratios.speed(*seconds), statistics.median(steps_ms)
    figures.row(f"alone, {model.name}: speed shared / native", ratio)
    figures.row(
        f"alone, {model.name}: native step, spread of native and shared blocks",
        f"{step_ms:.1f} ms, {100 * ratios.spread(seconds[0]):.1f} %, {100 * ratios.spread(seconds[1]):.1f} %",
    )
    figures.row(f"alone, {model.name}: memory", f"{reserved} MiB")
    if model.promised:
        figures.check(
            f"training: {model.name}: steps of {LEAST_STEP_MS} ms or more",
            step_ms >= LEAST_STEP_MS,
            f"{step_ms:.1f} ms",
        )
        figures.check(
            f"training: {model.name}: {LEAST_ALTERNATIONS} alternations or more",
            ratio.alternations >= LEAST_ALTERNATIONS,
            ratio.alternations,
        )
        figures.check(
            f"training: {model.name}: speed of {PROMISED_SPEED} or more, lower 95% bound",
            ratio.lower >= PROMISED_SPEED,
            ratio,
        )
