"""A training over two cards whose processes wait for each other in NCCL: beside nobody, under a compute limit, and in turns
beside a program on each of the cards. Nothing hangs, and the weights are those of a run without gpushare.
"""

import card
from groups.limits import Limits
from programs import ask_together, client

NEEDS = 150

STEPS = 60
PERCENT = 50
# A slice of both cards ends with the later of their drains.
POINTS = 4.0
# What one card's multicast needs can be out of service for its neighbours: not used here, with or without gpushare.
ENVIRONMENT = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "CUDA_VISIBLE_DEVICES": "0,1"}
GANG = client("ranks.py")
HOG = client("paced.py", "train", "--batch", "16")
SECONDS = 10
# Of a card's time each of the two on it should have half; a gang waits for the later of its cards.
LEAST_PART = 0.25


def run(stand):
    figures = stand.figures
    if card.count() < 2:
        figures.row("gangs", "not run: there is one card")
        return
    with stand.programs() as programs:
        alone = blocks(programs.start("gangs-native", GANG, shared=False, environment=ENVIRONMENT))
    for backend in stand.backends:
        with stand.daemon() as daemon, stand.programs(daemon) as programs:
            gang = programs.start(f"gangs-{backend}", GANG, shared=True, backend=backend, environment=ENVIRONMENT)
            of_backend(stand, daemon, programs, gang, alone, f"gangs: --backend {backend}")


def blocks(program):
    """A free run's answers: the first for the weights, the last for the speed."""
    program.hear()
    return [program.ask(f"steps {STEPS}") for _ in range(3)]


def of_backend(stand, daemon, programs, gang, alone, name):
    figures = stand.figures
    shared = blocks(gang)
    figures.equal(f"{name}: the weights of a run without gpushare", [b["weights"] for b in shared], [b["weights"] for b in alone])
    times = [min(block["seconds"] for block in run) for run in (alone, shared)]
    figures.row(f"{name}: seconds of {STEPS} steps without and with gpushare", f"{times[0]:.3f}, {times[1]:.3f}")
    Limits(stand, daemon).hold(f"{name[7:]}, {PERCENT}%", [(gang, PERCENT)], POINTS)
    in_turns(stand, daemon, programs, gang, times[1] / STEPS, name)


def in_turns(stand, daemon, programs, gang, step, name):
    """All sessions take turns of both cards' time; the gang gets its turn on both at once."""
    figures = stand.figures
    hogs = [
        programs.start(f"{gang.name}-hog-{number}", HOG, shared=True, environment={"CUDA_VISIBLE_DEVICES": str(number)})
        for number in range(2)
    ]
    for hog in hogs:
        hog.hear()
    free = [hog.ask("train 3") for hog in hogs]
    daemon.set("mode", "time-sliced")
    figures.check(f"{name}: the cards are shared in turns", daemon.wait_for_mode("time-sliced"))
    steps = max(10, round(SECONDS / 2 / step))
    answers = ask_together([(gang, f"steps {steps}"), *((hog, f"train {SECONDS}") for hog in hogs)])
    gang_rate = answers[0]["steps"] / answers[0]["seconds"]
    parts = [gang_rate * step, *(rate(now) / rate(before) for now, before in zip(answers[1:], free))]
    figures.sample(f"{name}: in turns", {"answers": answers, "free": free})
    figures.row(f"{name}: in turns, part of its own rate: the gang, and the program on each card", ", ".join(f"{part:.2f}" for part in parts))
    figures.check(f"{name}: in turns each has {LEAST_PART} or more", min(parts) >= LEAST_PART, parts)
    daemon.set("mode", "auto")


def rate(story):
    return len(story["ends"]) / (story["ends"][-1] - story["begin"])
