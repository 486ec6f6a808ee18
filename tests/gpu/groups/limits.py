"""Compute limits on a real card: a PyTorch training under a limit, as percent of its own rate without one; alone, and two
at once. The limit is changed while the programs run, so each is held against itself, right before and right after, in several
rounds: a rate drifts by some percent on a machine that others use too.
"""

import itertools
import statistics
import time

from programs import ask_together, client

NEEDS = 190

ROUNDS, SECONDS = 3, 5
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
        """Each program at its limit, all at once, in several rounds; alone before, between and after them. The answers of the
        last round."""
        figures, name = self.figures, f"limits: {name}"
        free, told = [self.all_free(limited)], []
        for _ in range(ROUNDS):
            told.append(self.held(limited, free[-1]))
            free.append(self.all_free(limited))
        figures.sample(name, {"free": free, "held": told})
        for number, (_, percent) in enumerate(limited):
            answers = [answers[number] for answers, _ in told]
            own = [statistics.fmean(pair) for pair in itertools.pairwise(rates[number] for rates in free)]
            parts = [100 * answer["steps"] / answer["seconds"] / rate for answer, rate in zip(answers, own)]
            measured = statistics.fmean(parts)
            submitted = statistics.fmean(shares[number] for _, shares in told)
            which = name if len(limited) == 1 else f"{name}, the one of {percent}%"
            figures.row(
                which,
                f"{measured:.2f}%, mean of {', '.join(f'{part:.2f}' for part in parts)}; steps a second alone "
                f"{', '.join(f'{rates[number]:.1f}' for rates in free)}; could submit for {100 * submitted:.1f}% of the time",
            )
            figures.check(f"{which}, within {points:g} points", abs(measured - percent) <= points, f"{measured:.2f}%")
            # Who runs ahead of the card has no step times of its own.
            if len(limited) == 1 and "step_ms_max" in answers[0]:
                self.even(which, answers, percent)
        return told[-1][0]

    def held(self, limited, free):
        """Some seconds of all at once at their limits: the answers, and the part of the time in which each could submit. The first
        two steps count for the longest step only, since a limit begins with a slice."""
        programs = [program for program, _ in limited]
        for program, percent in limited:
            self.limit(program, f"{percent}%")
        orders = [
            (program, f"steps {max(10, round(rate * SECONDS * percent / 100))}") for (program, percent), rate in zip(limited, free)
        ]
        first = ask_together([(program, "steps 2") for program in programs])
        had, begin = [self.gpu_seconds(program) for program in programs], time.monotonic()
        answers = ask_together(orders)
        wall = time.monotonic() - begin
        for answer, beginning in zip(answers, first):
            if "step_ms_max" in answer:
                answer["step_ms_max"] = max(answer["step_ms_max"], beginning["step_ms_max"])
        shares = [(self.gpu_seconds(program) - had) / wall for program, had in zip(programs, had)]
        for program in programs:
            self.limit(program, "none")
        return answers, shares

    def all_free(self, limited):
        return [self.free(program) for program, _ in limited]

    def free(self, program):
        """Steps a second without a limit."""
        program.ask("steps 10")
        answer = program.ask("steps 80")
        return answer["steps"] / answer["seconds"]

    def limit(self, program, limit):
        self.daemon.set("compute", limit, "--session", program.name)

    def gpu_seconds(self, program):
        return self.daemon.usage(program.name)["gpu_time_ns"] / 1e9

    def even(self, name, answers, percent):
        """Under a small limit no step is longer than twice the mean step under it."""
        mean = 1e3 * sum(answer["seconds"] for answer in answers) / sum(answer["steps"] for answer in answers)
        longest = max(answer["step_ms_max"] for answer in answers)
        self.figures.row(f"{name}: mean and longest step", f"{mean:.1f} ms, {longest:.1f} ms")
        if percent > EVEN_UP_TO:
            return
        self.figures.check(f"{name}, no step beyond twice the mean of {mean:.1f} ms", longest <= 2 * mean, f"{longest:.1f} ms")
