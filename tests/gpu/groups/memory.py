"""The limit at every door of the driver, by every way of finding it: what fits is given, 2 MiB more is refused with the
ordinary error, the figures tell one story, and the program goes on. No probe asks for more than a limit and 2 MiB. The
programs have managed memory, since one of the limits is for that only."""

NEEDS = 25

LOOKUPS = ("dlsym", "proc-address", "proc-address-per-thread")
DOORS = ("mem", "pitch", "managed")
MIB = 1 << 20
LIMIT_MIB, BLOCK_MIB, STEP_MIB = 512, 64, 2
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


def run(stand):
    with stand.daemon() as daemon, stand.programs(daemon) as programs:
        for lookup in LOOKUPS:
            for door in DOORS:
                quota_at_a_door(stand, daemon, programs, lookup, door)
        limit_of_all(stand, daemon, programs)
        capacity_of_one(stand, daemon, programs)


def start(stand, programs, name, lookup="dlsym", memory=None):
    command = stand.workload("--resolve", lookup, "hold")
    program = programs.start(f"memory-{name}", command, shared=True, memory=memory, backend="managed")
    program.hear()
    return program


def outcome(answer):
    """`ok`, or the error's name."""
    return "ok" if answer["ok"] else answer["error"]


def story(program):
    """What the driver tells of memory, in MiB: free, total, and total of the device."""
    info, device = program.ask("mem-info"), program.ask("total-mem")
    return [value / MIB for value in (info["free_bytes"], info["total_bytes"], device["total_bytes"])]


def quota_at_a_door(stand, daemon, programs, lookup, door):
    figures, name = stand.figures, f"memory: {door} by {lookup}"
    program = start(stand, programs, f"{door}-{lookup}", lookup, f"{LIMIT_MIB}MiB")
    count = LIMIT_MIB // BLOCK_MIB

    figures.equal(f"{name}: empty, free, total and device total", story(program), [LIMIT_MIB] * 3)
    over = program.ask(f"alloc over {LIMIT_MIB + STEP_MIB}MiB --door {door}")
    figures.equal(f"{name}: the quota and {STEP_MIB} MiB", outcome(over), OUT_OF_MEMORY)
    given = [outcome(program.ask(f"alloc b{number} {BLOCK_MIB}MiB --door {door}")) for number in range(count)]
    figures.equal(f"{name}: the whole quota in {count} blocks", given, ["ok"] * count)
    figures.equal(f"{name}: full, free, total and device total", story(program), [0, LIMIT_MIB, LIMIT_MIB])
    one_more = program.ask(f"alloc more {STEP_MIB}MiB --door {door}")
    figures.equal(f"{name}: {STEP_MIB} MiB more", outcome(one_more), OUT_OF_MEMORY)

    # It goes on: what it has works, and what it frees it can have again.
    steps = ["fill b0 7", "free b7", "check b0 7", f"alloc b7 {BLOCK_MIB}MiB --door {door}"]
    answers = [program.ask(step) for step in steps]
    figures.equal(f"{name}: goes on after a refusal", [outcome(answer) for answer in answers], ["ok"] * len(steps))
    figures.equal(f"{name}: its memory is right", answers[2].get("matches"), True)
    session = daemon.session(f"memory-{door}-{lookup}")
    used = session["gpus"][0]
    figures.check(
        f"{name}: the daemon saw the quota kept",
        used["allocated_bytes"] == used["peak_bytes"] == LIMIT_MIB * MIB and session["refusals"] == 2,
        session,
    )
    for number in range(count):
        program.ask(f"free b{number}")
    figures.equal(f"{name}: empty again, free, total and device total", story(program), [LIMIT_MIB] * 3)
    program.finish()


def limit_of_all(stand, daemon, programs):
    """The daemon's limit for all sessions together, which keeps a real card from ever being oversubscribed."""
    figures = stand.figures
    daemon.set("managed-limit", "256MiB")
    first, second = (start(stand, programs, f"all-{number}") for number in (1, 2))
    steps = [
        (first, "alloc a 258MiB"),
        (first, "alloc a 192MiB"),
        (second, "alloc b 64MiB"),
        (second, "alloc c 2MiB"),
        (first, "alloc c 2MiB"),
    ]
    outcomes = [outcome(program.ask(step)) for program, step in steps]
    expected = [OUT_OF_MEMORY, "ok", "ok", OUT_OF_MEMORY, OUT_OF_MEMORY]
    figures.equal("memory: the managed limit holds for one session and for two", outcomes, expected)
    first.ask("free a")
    figures.equal("memory: what one session frees another may have", outcome(second.ask("alloc c 128MiB")), "ok")
    for program in (first, second):
        program.finish()
    daemon.set("managed-limit", f"{stand.card.managed_limit_mib}MiB")


def capacity_of_one(stand, daemon, programs):
    figures = stand.figures
    daemon.set("capacity", "256MiB", "--gpu", "0")
    program = start(stand, programs, "capacity")
    outcomes = [outcome(program.ask(step)) for step in ("alloc a 258MiB", "alloc a 256MiB", "alloc b 2MiB")]
    figures.equal("memory: a session is at most the card's capacity", outcomes, [OUT_OF_MEMORY, "ok", OUT_OF_MEMORY])
    program.finish()
    daemon.set("capacity", "auto", "--gpu", "0")
