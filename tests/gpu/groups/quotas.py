"""`gpushare-ctl run --memory` with PyTorch: two tenants with different quotas at once. Each sees a card as large as its
quota, is refused beyond it by PyTorch's ordinary error, and goes on; and a training under a quota learns the same."""

from programs import client

NEEDS = 45

LIMITS_MIB = (1024, 2048)
BLOCK_MIB = 128
TRAINING = ["transformer", "--batch", "8", "--steps", "20"]
TRAINING_LIMIT = "2GiB"
MIB = 1 << 20


def run(stand):
    with stand.daemon() as daemon, stand.programs(daemon) as programs:
        tenants = [
            (
                limit,
                programs.start(
                    f"quotas-{limit}", client("limits.py", "--limit-mib", limit), shared=True, memory=f"{limit}MiB"
                ),
            )
            for limit in LIMITS_MIB
        ]
        answers = [(limit, program, program.hear()) for limit, program in tenants]
        for limit, program, answer in answers:
            check_tenant(stand.figures, limit, answer, daemon.session(program.name))
        for _, program in tenants:
            program.finish()
        same_training(stand, programs)


def check_tenant(figures, limit, answer, session):
    name = f"quotas: {limit} MiB"
    figures.sample(name, {"answer": answer, "session": session})
    totals = [answer[moment]["total_mib"] for moment in ("before", "full", "half")]
    figures.equal(f"{name}: mem_get_info's total is the quota, always", totals, [limit] * 3)
    # Read before the first context, so before the process knows its quota: noted, not promised.
    figures.row(f"quota {limit} MiB: the device's properties, read before the first context", f"{answer['properties_mib']:.0f} MiB")
    figures.check(f"{name}: before, free is at most the total", answer["before"]["free_mib"] <= limit, answer["before"])
    figures.check(f"{name}: the quota and 2 MiB are refused as out of memory", answer["over_is_refused"])
    figures.check(f"{name}: right results after the refusal", answer["right_after_refusal"])
    figures.check(f"{name}: filled until a block is refused", answer["full_is_refused"], answer["blocks_mib"])
    figures.check(
        f"{name}: nearly all of it could be used",
        limit - 2 * BLOCK_MIB <= answer["blocks_mib"] <= limit,
        answer["blocks_mib"],
    )
    figures.check(f"{name}: full, less than a block is free", answer["full"]["free_mib"] < BLOCK_MIB, answer["full"])
    freed = answer["half"]["free_mib"] - answer["full"]["free_mib"]
    figures.check(
        f"{name}: what was freed is free again", freed >= answer["blocks_mib"] / 2 - BLOCK_MIB, answer["half"]
    )
    figures.check(
        f"{name}: contents kept, and right results at the end",
        answer["contents_kept"] and answer["right_at_end"],
        answer,
    )
    peak = session["gpus"][0]["peak_bytes"]
    figures.check(
        f"{name}: the daemon saw the quota kept, and refusals",
        peak <= limit * MIB and session["refusals"] >= 2,
        session,
    )
    figures.row(
        f"quota {limit} MiB, PyTorch: used in blocks, peak, refusals",
        f"{answer['blocks_mib']} MiB, {peak // MIB} MiB, {session['refusals']}",
    )


def same_training(stand, programs):
    alone = programs.start("quotas-training-native", client("train.py", *TRAINING), shared=False).result()
    limited = programs.start(
        "quotas-training-limited", client("train.py", *TRAINING), shared=True, memory=TRAINING_LIMIT
    ).result()
    stand.figures.equal(f"quotas: a training in {TRAINING_LIMIT} learns the same", limited["losses"], alone["losses"])
