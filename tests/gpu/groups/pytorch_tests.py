"""PyTorch's own tests of what processes share on a card, by its `test/test_multiprocessing.py`: without gpushare, and on the backends
that can share memory, all at once. The file is not ours: `--pytorch-tests` names the folder that holds it.
"""

import card
from groups.ipc import BACKENDS
from programs import client

NEEDS = 200

MODULE = "test_multiprocessing"
# Words of the tests that use a card.
WORDS = ("cuda", "event", "autograd")
# It fails or is skipped where no tensor can be shared at all.
SIMPLEST = f"{MODULE}.TestMultiprocessing.test_cuda_simple"
LIMIT = 190


def run(stand):
    figures = stand.figures
    if stand.pytorch_tests is None:
        figures.row("PyTorch's own tests", "not run: there is no --pytorch-tests")
        return
    command = client("unittests.py", str(stand.pytorch_tests), MODULE, *WORDS)
    cards = ",".join(str(number) for number in range(min(card.count(), 2)))
    environment = {"CUDA_VISIBLE_DEVICES": cards, "PYTORCH_DISABLE_RUNNING_SCRIPT_CHK": "1"}
    with stand.daemon() as daemon, stand.programs(daemon) as programs:
        alone = programs.start("pytorch-tests-alone", command, shared=False, environment=environment)
        shared = {
            backend: programs.start(f"pytorch-tests-{backend}", command, shared=True, backend=backend, environment=environment)
            for backend in BACKENDS
        }
        alone = alone.result(LIMIT)["outcomes"]
        is_good = alone.get(SIMPLEST) == "ok" and "failed" not in alone.values()
        figures.check("pytorch_tests: without gpushare tensors are shared, and no test fails", is_good, alone)
        for backend, program in shared.items():
            outcomes = program.result(LIMIT)["outcomes"]
            figures.sample(f"pytorch_tests {backend}", {"alone": alone, "shared": outcomes})
            figures.equal(f"pytorch_tests: same outcomes, --backend {backend}", outcomes, alone)
            passed = sum(outcome == "ok" for outcome in outcomes.values())
            figures.row(f"PyTorch's own tests, --backend {backend}: passed, in all", f"{passed}, {len(outcomes)}")
        left = sum(gpu["allocated_bytes"] for gpu in daemon.status()["gpus"])
        figures.equal("pytorch_tests: the daemon counts no memory at the end", left, 0)
