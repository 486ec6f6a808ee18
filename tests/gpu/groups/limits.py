"""Compute limits on a real card: a PyTorch training under a limit, as percent of its own rate without one; alone, and two
at once. The limit is changed while the programs run, so each is held against itself, right before and right after: a rate
drifts by some percent on a machine that others use too.
"""

import time

from programs import ask_together, client

NEEDS = 160

SECONDS = 10
POINTS = 2.0
# Where pauses are short beside a step, one that begins late in a slice is as long as two.
EVEN_UP_TO = 25
ALONE = (25, 50, 75)
PAIRS = ((25, 75), (30, 60))


def run(stand):
    with stand.daemon() as daemon, stand.programs(daemon) as programs:
        pair = [
            programs.start(f"limits-{number}", client("train.py", "transformer", "--batch", "32"), shared=True)
            for number in range(2)
        ]
        for program in pair:
            program.hear()
        limits = Limits(stand, daemon)
        for percent in ALONE:
            limits.hold(f"{percent}% alone", [(pair[0], percent)])
        for percents in PAIRS:
            limits.hold(f"{percents[0]} and {percents[1]}%", list(zip(pair, percents)))


class Limits:
    def __init__(self, stand, daemon):
        self.figures, self.daemon = stand.figures, daemon

    def hold(self, name, limited, points=POINTS):
        """About ten seconds of each program at its limit, at once; alone right before and after. The answers of the former."""
        figures, name = self.figures, f"limits: {name}"
        programs = [program for program, _ in limited]
        before = [self.free(program) for program in programs]
        for program, percent in limited:
            self.limit(program, f"{percent}%")
        orders = [
            (program, f"steps {max(10, round(rate * SECONDS * percent / 100))}") for (program, percent), rate in zip(limited, before)
        ]
        had, begin = [self.gpu_seconds(program) for program in programs], time.monotonic()
        answers = ask_together(orders)
        wall = time.monotonic() - begin
        shares = [(self.gpu_seconds(program) - had) / wall for program, had in zip(programs, had)]
        for program in programs:
            self.limit(program, "none")
        after = [self.free(program) for program in programs]
        figures.sample(name, {"answers": answers, "before": before, "after": after})
        for number, (_, percent) in enumerate(limited):
            answer, free = answers[number], (before[number] + after[number]) / 2
            measured = 100 * answer["steps"] / answer["seconds"] / free
            which = name if len(limited) == 1 else f"{name}, the one of {percent}%"
            figures.row(
                which,
                f"{measured:.2f}%; steps a second alone before and after {before[number]:.1f}, {after[number]:.1f}; "
                f"could submit for {100 * shares[number]:.1f}% of the time",
            )
            figures.check(f"{which}, within {points:g} points", abs(measured - percent) <= points, f"{measured:.2f}%")
            # Who runs ahead of the card has no step times of its own.
            if len(limited) == 1 and "step_ms_max" in answer:
                self.even(which, answer, percent)
        return answers

    def free(self, program):
        """Steps a second without a limit."""
        program.ask("steps 20")
        answer = program.ask("steps 100")
        return answer["steps"] / answer["seconds"]

    def limit(self, program, limit):
        self.daemon.set("compute", limit, "--session", program.name)

    def gpu_seconds(self, program):
        return self.daemon.usage(program.name)["gpu_time_ns"] / 1e9

    def even(self, name, answer, percent):
        """Under a small limit no step is longer than twice the mean step under it."""
        mean = 1e3 * answer["seconds"] / answer["steps"]
        self.figures.row(f"{name}: mean and longest step", f"{mean:.1f} ms, {answer['step_ms_max']:.1f} ms")
        if percent > EVEN_UP_TO:
            return
        self.figures.check(
            f"{name}, no step beyond twice the mean of {mean:.1f} ms",
            answer["step_ms_max"] <= 2 * mean,
            f"{answer['step_ms_max']:.1f} ms",
        )
