"""One driver-API program, which finds its functions by each of three lookup ways, alone and shared: every value that
it reads back and everything the driver tells it is the same. No PyTorch: the first thing to run on a new machine."""

NEEDS = 25

LOOKUPS = ("dlsym", "proc-address", "proc-address-per-thread")

SCRIPT = """
alloc a 64MiB
alloc b 64MiB --door pitch
alloc c 64MiB --door managed
attributes a 4096
range a 4096
attributes c
fill a 7
add a 3 --door ex
add a 1 --door cooperative
check a 11
checksum a
set b 5
copy b c
check c 5
put b 9
get b
put b 4 --async
sync
check b 4
set c 6 --async
sync
stream s
add c 2 --on s
sync s
check c 8
capture s
add a 1 --on s
add a 2 --on s
end-capture s g
replay g --on s
replay g --on s
sync s
check a 17
stream t
event e
latch l --on t
add a 1 --on t
record e --on t
event-query e
open l
event-sync e
check a 18
fetch a --on t
sync t
look a
add a 4 --on per-thread
sync
add a 4 --on legacy
sync
check a 26
total-mem
facts
free-address 12345
free a
free b
free c
""".split("\n")

# What two runs may differ in. Without a quota the card is as large as it is.
VARIES = {"id", "ns", "pid", "address", "range_start"}


def answers(stand, programs, lookup, shared):
    name = f"smoke-{lookup}-{'shared' if shared else 'native'}"
    program = programs.start(name, stand.workload("--resolve", lookup, "hold"), shared=shared)
    program.hear()
    said = [program.ask(line) for line in SCRIPT if line]
    program.finish()
    return said


def comparable(answer):
    return {key: value for key, value in answer.items() if key not in VARIES}


def trained(stand, programs, lookup, shared):
    name = f"smoke-train-{lookup}-{'shared' if shared else 'native'}"
    plan = ["train", "--memory", "512MiB", "--steps", "20", "--passes", "4", "--async-ahead", "2"]
    return programs.start(name, stand.workload("--resolve", lookup, *plan), shared=shared).result()


def run(stand):
    figures = stand.figures
    with stand.daemon() as daemon, stand.programs(daemon) as programs:
        for lookup in LOOKUPS:
            native = answers(stand, programs, lookup, False)
            shared = answers(stand, programs, lookup, True)
            figures.sample("smoke answers", {"lookup": lookup, "native": native, "shared": shared})
            wrong = [answer["command"] for answer in native if answer.get("matches") is False]
            figures.equal(f"smoke: {lookup}: alone, every value is right", wrong, [])
            pairs = [(comparable(a), comparable(b)) for a, b in zip(native, shared, strict=True)]
            differ = [pair for pair in pairs if pair[0] != pair[1]]
            figures.equal(f"smoke: {lookup}: shared, all {len(native)} answers are the same", differ, [])
            for sharing in (False, True):
                report = trained(stand, programs, lookup, sharing)
                how = "shared" if sharing else "alone"
                figures.check(f"smoke: {lookup}: {how}, no buffer is corrupted after training", report["ok"], report)
        figures.equal("smoke: nothing is left in the books", allocated(daemon), 0)


def allocated(daemon):
    return sum(gpu["allocated_bytes"] for gpu in daemon.status()["gpus"])
