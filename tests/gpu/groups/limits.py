"""Compute limits on a real card: a PyTorch training under a limit, as percent of its own rate without one; alone, and two
at once. The limit is changed while the programs run, so each is held against itself.
"""

from programs import ask_together, client

NEEDS = 130

SECONDS = 10
POINTS = 2.0
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
        Limits(stand, daemon, pair).run()


class Limits:
    def __init__(self, stand, daemon, pair):
        self.stand, self.figures, self.daemon, self.pair = stand, stand.figures, daemon, pair
        self.rates = []

    def run(self):
        first, second = self.pair
        self.rates = [self.free(program) for program in self.pair]
        for percent in ALONE:
            self.limit(first, percent)
            (answer,) = self.train([(first, percent)])
            self.judge(f"{percent}% alone", percent, self.percent(0, answer))
            self.even(f"{percent}% alone", answer)
        self.limit(first, None)
        for percents in PAIRS:
            for program, percent in zip(self.pair, percents):
                self.limit(program, percent)
            answers = self.train(list(zip(self.pair, percents)))
            for number, (percent, answer) in enumerate(zip(percents, answers)):
                self.judge(f"{percent}% of {percents[0]} and {percents[1]}", percent, self.percent(number, answer))
        for program in self.pair:
            self.limit(program, None)
        self.figures.row(
            "limits: steps a second without one, before and after",
            ", ".join(f"{rate:.1f} and {self.free(program):.1f}" for rate, program in zip(self.rates, self.pair)),
        )

    def free(self, program):
        """Steps a second without a limit."""
        program.ask("steps 20")
        answer = program.ask("steps 100")
        return answer["steps"] / answer["seconds"]

    def limit(self, program, percent):
        self.daemon.set("compute", "none" if percent is None else f"{percent}%", "--session", program.name)

    def train(self, programs):
        """About ten seconds of each at its limit, at once."""
        return ask_together(
            [
                (program, f"steps {max(10, round(self.rates[self.pair.index(program)] * SECONDS * percent / 100))}")
                for program, percent in programs
            ]
        )

    def percent(self, number, answer):
        return 100 * answer["steps"] / answer["seconds"] / self.rates[number]

    def judge(self, name, promised, measured):
        near = abs(measured - promised) <= POINTS
        self.figures.row(f"limits: {name}", f"{measured:.2f}%")
        self.figures.check(f"limits: {name}, within {POINTS:g} points", near, f"{measured:.2f}%")

    def even(self, name, answer):
        """No step is longer than twice the mean step under the limit."""
        mean = 1e3 * answer["seconds"] / answer["steps"]
        self.figures.check(
            f"limits: {name}, no step beyond twice the mean of {mean:.1f} ms",
            answer["step_ms_max"] <= 2 * mean,
            f"{answer['step_ms_max']:.1f} ms",
        )
