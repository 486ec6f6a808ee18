"""CUDA graphs: captured and replayed alone and shared, and then in turns with a training that wants the card all the
time. Every checked replay gives what the same work gives eagerly, and the training learns what it learns alone."""

from programs import client

NEEDS = 50

ROUNDS = 2
CAPTURES, REPLAYS = 10, 50
TRAINING = ["transformer", "--batch", "32"]
BLOCK = 40
LEAST_HANDOFFS = 4
# What the capacity leaves beside the training: less than the graphs need, so that the two take turns.
ROOM_MIB = 16


def graph_program(programs, name, shared):
    command = client("graphs.py", "--captures", CAPTURES, "--replays", REPLAYS)
    return programs.start(f"graphs-{name}", command, shared=shared)


def run(stand):
    with stand.daemon() as daemon, stand.programs(daemon) as programs:
        alone(stand, programs)
        in_turns(stand, daemon, programs)


def check_replays(figures, how, result):
    figures.equal(
        f"graphs: {how}: captures, replays and wrong results",
        [result["captures"], result["replays"], result["wrong"]],
        [CAPTURES, CAPTURES * REPLAYS, 0],
    )


def alone(stand, programs):
    seconds = {"native": [], "shared": []}
    for _ in stand.more_rounds(ROUNDS, 15):
        for how, times in seconds.items():
            result = graph_program(programs, how, how == "shared").result()
            check_replays(stand.figures, f"{how}, alone", result)
            times.append(result["seconds"])
    stand.figures.sample("graphs alone", seconds)
    for how, times in seconds.items():
        stand.figures.row(
            f"graphs alone, {how}: {CAPTURES} captures, {CAPTURES * REPLAYS} replays",
            ", ".join(f"{s:.2f} s" for s in times),
        )


def in_turns(stand, daemon, programs):
    figures = stand.figures
    native, shared = (
        programs.start(f"graphs-training-{how}", client("train.py", *TRAINING), shared=how == "shared")
        for how in ("native", "shared")
    )
    warmups = [program.hear()["warmup"] for program in (native, shared)]
    figures.equal("graphs: the training's losses are the same while warming up", warmups[1], warmups[0])
    daemon.set("capacity", f"{daemon.used_mib(shared.name) + ROOM_MIB}MiB", "--gpu", "0")
    before = daemon.gpu()["handoffs"]

    graphs = graph_program(programs, "in-turns", True)
    learned = []
    # The training goes on until the graphs are done, and at least for a block.
    while not learned or graphs.process.poll() is None:
        learned += shared.ask(f"steps {BLOCK}")["losses"]
    result = graphs.result()
    handoffs = daemon.gpu()["handoffs"] - before
    expected = native.ask(f"steps {len(learned)}")["losses"]

    figures.sample("graphs in turns", {"result": result, "steps": len(learned), "handoffs": handoffs})
    check_replays(figures, "in turns with a training", result)
    figures.equal("graphs: in turns: the training's losses are the same", learned, expected)
    figures.check("graphs: in turns: the lock changed hands", handoffs >= LEAST_HANDOFFS, handoffs)
    figures.row("graphs in turns: seconds, handoffs", f"{result['seconds']:.2f}, {handoffs}")
