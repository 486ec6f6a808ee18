"""Two trainings at once: without gpushare (the driver slices), shared in parallel, and shared in turns, which a small
configured capacity forces. In alternation, with the same four processes: all learn the same, however they share.

At once the driver also fills the pauses of one training with the other's work. Turns cannot: what they lose shows beside the same
work done one after the other.
"""

import statistics
import time

from programs import ask_together, client

NEEDS = 110

MODELS = {"transformer": ["transformer", "--batch", "32"], "resnet50": ["resnet50", "--batch", "32"]}
STEPS = 60
ROUNDS = 4
ROUND_SECONDS = 20
LEAST_HANDOFFS = 4


def run(stand):
    with stand.daemon() as daemon, stand.programs(daemon) as programs:
        native, shared = (
            [
                programs.start(f"contention-{name}-{how}", client("train.py", *arguments), shared=how == "shared")
                for name, arguments in MODELS.items()
            ]
            for how in ("native", "shared")
        )
        warmups = [[program.hear()["warmup"] for program in pair] for pair in (native, shared)]
        stand.figures.equal("contention: same losses while warming up", warmups[1], warmups[0])
        Contest(stand, daemon, native, shared).run()


class Contest:
    def __init__(self, stand, daemon, native, shared):
        self.stand, self.figures, self.daemon = stand, stand.figures, daemon
        self.native, self.shared = native, shared
        # Losses in order, by model: blocks of different kinds fall on different steps of each process.
        self.learned = {kind: {name: [] for name in MODELS} for kind in ("native", "shared")}
        self.handoffs = {"parallel": 0, "turns": 0}
        self.aborted, self.drains = 0, []

    def run(self):
        capacity = self.capacity_for_one()
        seconds = {"native": [], "parallel": [], "turns": [], "apart": []}
        for _ in self.stand.more_rounds(ROUNDS, ROUND_SECONDS):
            seconds["native"].append(self.block("native", self.native))
            seconds["parallel"].append(self.counted("parallel"))
            self.daemon.set("capacity", f"{capacity}MiB", "--gpu", "0")
            self.figures.check("turns: a small capacity forces them", self.daemon.wait_for_mode("serialized"))
            seconds["turns"].append(self.counted("turns"))
            self.daemon.set("capacity", "auto", "--gpu", "0")
            self.figures.check("turns: end with the small capacity", self.daemon.wait_for_mode("parallel"))
            seconds["apart"].append(self.one_after_the_other())
        self.catch_up()
        self.figures.sample("contention seconds until the last has ended", seconds)
        self.figures.sample("contention status", self.daemon.status())
        self.judge(seconds)

    def capacity_for_one(self):
        """MiB that hold the larger of the two, but not both."""
        used = sorted(self.daemon.used_mib(program.name) for program in self.shared)
        self.figures.sample("contention allocated MiB", used)
        return used[1] + used[0] // 2

    def block(self, kind, pair):
        """Both train at once; the seconds until both are done."""
        begin = time.monotonic()
        answers = ask_together([(program, f"steps {STEPS}") for program in pair])
        whole = time.monotonic() - begin
        for name, answer in zip(MODELS, answers):
            self.note(kind, name, answer)
        return whole

    def one_after_the_other(self):
        """The seconds of both, while the other rests."""
        seconds = 0.0
        for name, program in zip(MODELS, self.shared):
            answer = program.ask(f"steps {STEPS}")
            self.note("apart", name, answer)
            seconds += answer["seconds"]
        return seconds

    def note(self, kind, name, answer):
        self.learned["native" if kind == "native" else "shared"][name] += answer["losses"]
        self.figures.sample(f"contention {kind} {name}", {key: answer[key] for key in ("seconds", "step_ms_p50", "step_ms_max")})

    def counted(self, kind):
        before = self.daemon.gpu()
        seconds = self.block(kind, self.shared)
        after = self.daemon.gpu()
        self.handoffs[kind] += after["handoffs"] - before["handoffs"]
        if kind == "turns":
            self.aborted += after["aborted_drops"] - before["aborted_drops"]
            self.drains = after["drains_ns"]
        return seconds

    def catch_up(self):
        """The native pair has trained a third as long; it takes the same steps for the comparison."""
        missing = len(self.learned["shared"]["transformer"]) - len(self.learned["native"]["transformer"])
        if missing > 0:
            answers = ask_together([(program, f"steps {missing}") for program in self.native])
            for name, answer in zip(MODELS, answers):
                self.learned["native"][name] += answer["losses"]

    def judge(self, seconds):
        figures = self.figures
        for name in MODELS:
            native, shared = self.learned["native"][name], self.learned["shared"][name]
            differing = [step for step, (a, b) in enumerate(zip(native, shared, strict=True)) if a != b]
            figures.equal(f"contention: {name}: steps of {len(native)} whose losses differ", len(differing), 0)
        figures.equal("parallel: no turns were taken", self.handoffs["parallel"], 0)
        figures.check(
            "turns: the lock changed hands in every block",
            self.handoffs["turns"] >= LEAST_HANDOFFS * len(seconds["turns"]),
            self.handoffs["turns"],
        )
        for kind, label in (
            ("native", "driver's slicing"),
            ("parallel", "gpushare parallel"),
            ("turns", "gpushare in turns"),
            ("apart", "gpushare, one after the other"),
        ):
            figures.row(
                f"two at once, {label}: seconds until the last has ended",
                f"median {statistics.median(seconds[kind]):.2f}, "
                f"all {', '.join(f'{value:.2f}' for value in seconds[kind])}",
            )
        lost = statistics.fmean(1 - apart / turns for apart, turns in zip(seconds["apart"], seconds["turns"]))
        figures.row("in turns: lost beside one after the other", f"{100 * lost:.1f}%")
        drains = sorted(self.drains) or [0]
        figures.row("in turns: handoffs, aborted drops", f"{self.handoffs['turns']}, {self.aborted}")
        figures.row("in turns: drain p50, max", f"{drains[len(drains) // 2] / 1e6:.1f} ms, {drains[-1] / 1e6:.1f} ms")
