"""Managed memory on its way to the card: by page faults without gpushare, and as gpushare brings it in before a turn. A program
sends its own block to the host, another program has its turn, and the first step after it is timed, less a step whose block is on
the card. Both blocks and all other managed memory stay below the managed limit, so nothing is ever pushed out of the card.
"""

import statistics

from programs import client

NEEDS = 60

BLOCK_MIB, CAPACITY_MIB = 2048, 3072
ROUNDS = 5
FASTER = 2.5
LIMIT = 60
PAGING = client("paging.py")


def run(stand):
    figures = stand.figures
    if 2 * BLOCK_MIB > stand.card.managed_limit_mib:
        figures.check("paging: two blocks are within the managed limit", False, f"{stand.card.managed_limit_mib} MiB")
        return
    with stand.programs() as programs:
        native = start(programs, "paging-native", shared=False)
        resident = min(native.ask("step", LIMIT)["seconds"] for _ in range(3))
        faults = []
        for _ in range(ROUNDS):
            native.ask("away", LIMIT)
            faults.append(native.ask("step", LIMIT)["seconds"] - resident)
        figures.check("paging: every word is right after page faults", native.ask("check", LIMIT)["right"])
    flags = ["--capacity", f"0={CAPACITY_MIB}MiB"]
    with stand.daemon(flags=flags) as daemon, stand.programs(daemon) as programs:
        first, second = start(programs, "paging-first"), start(programs, "paging-second")
        resident, moves = min(first.ask("step", LIMIT)["seconds"] for _ in range(3)), []
        for _ in range(ROUNDS):
            first.ask("away", LIMIT)
            second.ask("step", LIMIT)
            moves.append(first.ask("step", LIMIT)["seconds"] - resident)
        handoffs = daemon.gpu()["handoffs"]
        figures.check("paging: turns were taken", handoffs >= 2 * ROUNDS, f"{handoffs} handoffs")
        for program in (first, second):
            figures.check(f"{program.name}: every word is right", program.ask("check", LIMIT)["right"])
    by_faults, moved = statistics.median(faults), statistics.median(moves)
    rate = lambda seconds: f"{1e3 * seconds:.1f} ms, {BLOCK_MIB / 1024 * 1.073741824 / seconds:.1f} GB/s"
    figures.sample("paging", {"faults": faults, "moves": moves})
    figures.row("paging: 2 GiB come in by page faults, without gpushare; median of 5", rate(by_faults))
    figures.row("paging: 2 GiB come in before a turn, handoff included; median of 5", rate(moved))
    figures.check(f"paging: the move is at least {FASTER} times as fast", by_faults >= FASTER * moved, f"{by_faults / moved:.2f} x")


def start(programs, name, shared=True):
    program = programs.start(name, PAGING, shared=shared, backend="managed" if shared else None)
    program.hear()
    program.ask(f"hold {BLOCK_MIB}", LIMIT)
    return program
