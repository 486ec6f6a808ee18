"""Two trainings of about 48 GiB each under `--backend remap` on a card whose capacity is 48 GiB by the daemon's rule: one after the
other, and at once (groups/oversubscribed.py)."""

from groups import oversubscribed

NEEDS = 300

CAPACITY_MIB = 48 << 10
# For contexts and activations, which count against the capacity too.
BESIDE_MIB = 3 << 10
# As many that the first handoff, which makes the host memory, does not decide.
STEPS = 200


def run(stand):
    flags = ["--capacity", f"0={CAPACITY_MIB}MiB"]
    oversubscribed.run_pair(stand, "capped", CAPACITY_MIB - BESIDE_MIB, CAPACITY_MIB, flags, STEPS)
