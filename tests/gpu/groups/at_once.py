"""What returns at once natively returns at once in a session, alone and beside another; the memory of destroyed pools stays
within the quota; and a question for the card's utilization is cheap and answered with the session's own part."""

import shutil
import subprocess

from programs import CLIENTS

NEEDS = 85
# The calls are made while a kernel of 200 ms runs before them.
AT_ONCE_US = 20_000
# These natively return before they are done; the others are rows.
PROMISED = ("cuMemsetD8", "cuMemcpyDtoD", "cuMemcpy", "cuMemFreeAsync")
QUOTA_GIB = 4
OUT_OF_MEMORY = 2
# Longest question on average. Where NVML's own answer takes nearly as long, it may take a little longer than that.
QUESTION_US = 20
NATIVE_US = 15
MORE_US = 5
# Points of utilization that the reading of a session alone may differ from the driver's own.
POINTS = 5
# Percent that each of two sessions reads which compute without pause.
PART = range(20, 81)


def run(stand):
    figures = stand.figures
    program = stand.logs / "at_once"
    compiler = shutil.which("cc") or "gcc"
    command = [compiler, "-O2", "-o", str(program), str(CLIENTS / "at_once.c"), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    figures.command("at_once build", command)
    with stand.daemon() as daemon, stand.programs(daemon) as programs:
        def asked(name, way, shared, **rest):
            said = programs.start(f"at-once-{name}", [program, way], shared=shared, **rest).result()
            figures.sample(f"at_once: {name}", said)
            return said

        native = asked("calls-native", "calls", False)
        for name, times in native.items():
            figures.row(f"at once: {name}, native: idle, behind a kernel of 200 ms", shown(times))
        calls(figures, "alone", asked("calls", "calls", True))
        pools(figures, asked("pools", "pools", True, memory=f"{QUOTA_GIB}GiB"))
        own = asked("utilization-native", "utilization", False)
        alone = asked("utilization", "utilization", True)
        other = programs.start("at-once-other", stand.workload("hold"), shared=True)
        other.hear()
        calls(figures, "beside another session", asked("calls-beside", "calls", True))
        # Two that compute without pause: each has about half of the card.
        pair = [programs.start(f"at-once-pair-{number}", [program, "utilization"], shared=True) for number in range(2)]
        beside = [program.result() for program in pair]
        other.finish()
    utilization(figures, own, alone, beside)


def shown(times):
    return ", ".join(f"{times[key]:.1f} us" for key in ("idle_us", "behind_us") if key in times)


def calls(figures, how, said):
    for name, times in said.items():
        if name in PROMISED:
            figures.check(f"at once: {name}, {how}, returns while the kernel runs", times["behind_us"] < AT_ONCE_US, times)
        figures.row(f"at once: {name}, {how}: idle, behind a kernel of 200 ms", shown(times))
    figures.equal(f"at once: cuMemFreeAsync of plain memory, {how}", said["cuMemFreeAsync"]["code"], 0)


def pools(figures, said):
    figures.equal(f"at once: pools of 1 GiB that were filled and destroyed under {QUOTA_GIB} GiB", said["filled"], QUOTA_GIB)
    figures.equal("at once: no other memory is had besides", said["full_code"], OUT_OF_MEMORY)
    figures.equal("at once: what they had can be had again", said["after_code"], 0)
    figures.row(f"at once: destroyed pools of 1 GiB under a quota of {QUOTA_GIB} GiB", said["filled"])


def utilization(figures, native, alone, beside):
    for how, said in {"alone": alone, "beside another, first": beside[0], "beside another, second": beside[1]}.items():
        took, limit = said["average_us"], question_limit(native["average_us"])
        what = f"at once: a question for the utilization, {how}, is at most {limit:.1f} us on average"
        figures.check(f"{what} (natively {native['average_us']:.1f} us)", took <= limit, said)
    for how, said in {"native": native, "alone": alone, "first of two": beside[0], "second of two": beside[1]}.items():
        value = f"{said['percent']:.0f}%, {said['average_us']:.1f} us, at most {said['worst_us']:.0f} us"
        figures.row(f"at once: utilization, {how}: reading, average and longest question", value)
    near = abs(alone["percent"] - native["percent"]) <= POINTS
    figures.check("at once: alone, a session reads the card's own utilization", near, [alone, native])
    parts = [said["percent"] for said in beside]
    good = all(round(part) in PART for part in parts)
    figures.check("at once: beside another, a session reads its own part", good, parts)


def question_limit(native_us):
    return QUESTION_US if native_us <= NATIVE_US else max(QUESTION_US, native_us + MORE_US)
