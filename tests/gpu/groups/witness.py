"""The CUPTI witness: everything that a program's work on the card goes back to is a call that passed the gate.

First without gpushare, to see that the witness can say no: there every gated call goes around the gate. Then PyTorch
eager, CUDA graphs and torch.compile under gpushare: no activity is unexplained, and no call went around.
"""

import json
import tempfile

from programs import client
from witness import build as builder
from witness import gated

NEEDS = 150
# torch.compile takes its time.
ANSWER_LIMIT = 150

PROGRAMS = {
    "eager": client("train.py", "resnet50", "--batch", "8", "--steps", "5"),
    "graphs": client("graphs.py", "--captures", "3", "--replays", "20"),
    "torch.compile": client("compiled.py"),
}


def run(stand):
    figures = stand.figures
    folder = stand.logs / "witness"
    folder.mkdir(exist_ok=True)
    names = gated.gated_calls()
    figures.equal(
        "witness: the library exports every gated call of its sources",
        gated.not_exported(names, stand.stage / "libgpushare.so"),
        [],
    )
    (folder / "gated.txt").write_text("\n".join(names) + "\n")
    try:
        library, command = builder.build(folder)
    except builder.NoCupti as error:
        figures.check("witness: could be built", False, error)
        return
    figures.command("witness build", command)

    with stand.daemon() as daemon, stand.programs(daemon) as programs:
        native = watched(stand, programs, folder, library, "native", PROGRAMS["eager"], shared=False)
        around = sum(report["stacks"]["around"] for report in native)
        figures.check(
            "witness: without gpushare it sees every call go around", around > 0 and through(native) == 0, native
        )
        for name, command in PROGRAMS.items():
            reports = watched(stand, programs, folder, library, name, command, shared=True)
            judge(figures, name, reports)
    library.unlink()


def watched(stand, programs, folder, library, name, command, *, shared):
    """Runs a program under the witness; the report of each of its processes that used CUDA."""
    slug = name.replace(".", "-")
    out = folder / f"{slug}.json"
    with tempfile.TemporaryDirectory(prefix="gpushare-compiled-") as cache:
        environment = watching(folder, library, out, cache)
        program = programs.start(f"witness-{slug}", command, shared=shared, environment=environment)
        answer = program.result(limit=ANSWER_LIMIT)
    reports = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{out.name}.*"))]
    stand.figures.sample(f"witness {name}", {"answer": answer, "reports": reports})
    return reports


def watching(folder, library, out, cache):
    """The environment that puts the witness into a program."""
    return {
        "CUDA_INJECTION64_PATH": str(library),
        "WITNESS_GATED": str(folder / "gated.txt"),
        "WITNESS_OUT": str(out),
        # torch.compile compiles in this process and anew, so that all of its work is seen.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
        "TORCHINDUCTOR_CACHE_DIR": cache,
        "TRITON_CACHE_DIR": cache,
    }


def through(reports):
    return sum(report["stacks"]["through"] for report in reports)


def total(reports, field):
    return sum(report[field] for report in reports)


def listed(reports, field):
    """A list of the reports in words: `12 × memset, cuModuleLoadData, 64 bytes`."""
    entries = [entry for report in reports for entry in report[field]]
    return [f"{e['times']} × {', '.join(filter(None, (e['kind'], e['call'], e['example'])))}" for e in entries]


def judge(figures, name, reports):
    if not figures.check(f"witness: {name}: it left a report", reports, "is CUDA_INJECTION64_PATH honoured here?"):
        return
    activities = total(reports, "kernels") + total(reports, "memcpys") + total(reports, "memsets")
    stacks = {key: sum(report["stacks"][key] for report in reports) for key in ("through", "around", "unreadable")}
    figures.equal(f"witness: {name}: CUPTI worked", [report["failure"] for report in reports], [""] * len(reports))
    figures.check(
        f"witness: {name}: it saw kernels and copies",
        total(reports, "kernels") > 0 and total(reports, "memcpys") > 0,
        reports,
    )
    figures.equal(f"witness: {name}: records that CUPTI dropped", total(reports, "dropped"), 0)
    figures.equal(f"witness: {name}: unexplained activities", listed(reports, "unexplained"), [])
    figures.equal(f"witness: {name}: gated calls that went around the gate", listed(reports, "around"), [])
    figures.check(f"witness: {name}: gated calls were seen to pass the gate", stacks["through"] > 0, stacks)
    figures.row(
        f"witness, {name}: activities, explained, ours, unexplained",
        f"{activities}, {total(reports, 'explained')}, {total(reports, 'ours')}, "
        f"{sum(entry['times'] for report in reports for entry in report['unexplained'])}",
    )
    figures.row(f"witness, {name}: gated calls by stack", ", ".join(f"{count} {how}" for how, count in stacks.items()))
