"""One program of 1.2 times the card, by `--oversubscribe`, which knows what it must compute. What does not fit is mapped from the host.
Blocks of it that work uses again and again come to the card. The slowdown is the time of a pass over all of its memory, against the
time that the same program takes for as much without gpushare, if it fits. No byte is managed.
"""

import statistics

from programs import client

NEEDS = 120

LARGER = 1.2
# Blocks of the program without gpushare, which fit each card that the suite is meant for.
FITTING = 16
# Of the large program: its start, for which the driver makes host memory at 2 GB/s or more, and one pass over all memory.
FILL_LIMIT, PASS_LIMIT = 120, 60
# Blocks that it then uses again and again, at first mapped from the host, with pauses in which others change places with them.
AGAIN, ROUNDS, PAUSE = 8, 14, 1.0
AGAIN_LIMIT = 60
PROMOTED = 4


def run(stand):
    figures = stand.figures
    blocks = -(-int(LARGER * stand.card.total_mib) // 1024)
    with stand.programs() as programs:
        native = programs.start("larger-native", client("larger.py", str(FITTING)), shared=False)
        native.hear(FILL_LIMIT)
        native.ask("add", PASS_LIMIT)
        fitting = statistics.mean(native.ask("add", PASS_LIMIT)["seconds"])
        native.finish()
    with stand.daemon(allows_managed=False) as daemon, stand.programs(daemon) as programs:
        command = client("larger.py", str(blocks))
        program = programs.start("larger", command, shared=True, backend="remap", options=("--oversubscribe",))
        program.hear(FILL_LIMIT)
        checks = [program.ask("check", PASS_LIMIT)]
        added = program.ask("add", PASS_LIMIT)["seconds"]
        again = program.ask(f"again {AGAIN} {ROUNDS} {PAUSE}", AGAIN_LIMIT)["seconds"]
        checks.append(program.ask("check", PASS_LIMIT))
        status = daemon.status()
        figures.sample("larger", {"status": status, "added": added, "again": again, "fitting": fitting})
        program.finish()
    (place,) = status["residences"]
    mapped = place["mapped_bytes"]
    figures.equal(f"larger: one process of {LARGER} x the card ends with right results", [c["right"] for c in checks], [blocks] * 2)
    figures.check("larger: what does not fit is mapped from the host", mapped > 0, f"{mapped >> 20} MiB")
    figures.row(
        "larger: MiB on the card, from the host; adding 1 to a GiB, fastest and slowest",
        f"{place['resident_bytes'] >> 20}, {mapped >> 20}; {1e3 * min(added):.2f}, {1e3 * max(added):.2f} ms",
    )
    whole, native = sum(added), fitting * blocks
    figures.row(
        f"larger: adding 1 to each word of {blocks} GiB; as much where it fits, without gpushare; slowdown",
        f"{1e3 * whole:.0f}, {1e3 * native:.0f} ms, {whole / native:.2f} x",
    )
    figures.row(
        f"larger: adding 1 to its last {AGAIN} GiB again and again, rounds with {PAUSE} s of rest",
        ", ".join(f"{1e3 * taken:.0f}" for taken in again) + " ms",
    )
    name = f"larger: blocks that are used again and again come to the card: at least {PROMOTED} times as fast"
    figures.check(name, PROMOTED * again[-1] <= again[0], f"{again[0]:.3f} to {again[-1]:.3f} s")
