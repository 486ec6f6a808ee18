"""The first handoffs of 40 GiB between two programs: the way out of a block for another one that is allocated, and then both ways
at once. In neither has the program whose block leaves prepared host memory, since it has just run. A small capacity forces them,
and no byte is managed.
"""

from groups.handoff import CHECK_MIB, HANDOFF_LIMIT, Size, held_mib

NEEDS = 45

GIB, MOST_SECONDS = 40, 2.5


def run(stand):
    figures, name = stand.figures, f"handoff of {GIB} GiB"
    flags = ["--capacity", f"0={held_mib(GIB) + CHECK_MIB}MiB"]
    with stand.daemon(allows_managed=False, flags=flags, log_name="scheduler-cold") as daemon, stand.programs(daemon) as programs:
        size = Size(figures, daemon, programs, GIB, None)
        first, second = size.start("cold-first"), size.start("cold-second")
        held = size.hold(first)
        step = min(first.ask("step")["seconds"] for _ in range(3))
        judge(figures, f"{name}: the first one, one way", size.hold(second) - held)
        second.ask("step", HANDOFF_LIMIT)
        took, wait = size.handoff(first, step)
        judge(figures, f"{name}: the first one, both ways", took)
        figures.row(f"{name}: the first one, both ways: wait of the program", f"{wait:.2f} s")
        for program in (first, second):
            figures.check(f"{name}: every word of {program.name} is right", program.ask("check", HANDOFF_LIMIT)["right"])


def judge(figures, name, seconds):
    figures.row(name, f"{seconds:.2f} s, {GIB * 1.073741824 / seconds:.1f} GB/s each way")
    figures.check(f"{name}, takes at most {MOST_SECONDS} s", seconds <= MOST_SECONDS, f"{seconds:.2f} s")
