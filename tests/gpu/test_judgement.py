"""Tests of what the groups `urgent` and `switches` conclude from samples; they need no card."""

import unittest

from groups import switches, urgent


class Heard:
    """Checks and rows as a group tells them."""

    def __init__(self):
        self.checks, self.rows = {}, {}

    def check(self, name, good, said=""):
        self.checks[name] = bool(good)

    def row(self, name, value):
        self.rows[name] = value

    def sample(self, name, value):
        pass


def samples(times_ms, kept=()):
    found = urgent.Samples()
    found.times_ms, found.kept = list(times_ms), list(kept)
    return found


class Urgent(unittest.TestCase):
    def judged(self, judge, **found):
        heard = Heard()
        judge(heard, "bursts", {getattr(urgent, way): one for way, one in found.items()})
        return list(heard.checks.values())

    def test_short_bursts_are_held_against_the_drivers_own(self):
        own = samples([2.0] * 98 + [10.0] * 2)
        high = samples([2.0] * 98 + [11.0] * 2, kept=[0.90, 0.95, 0.99])
        good = self.judged(urgent.judge_short, DRIVER=own, HIGH=high, NORMAL=samples([2.1] * 50))
        self.assertEqual(good, [True, True, True, True])
        slow = samples([2.01] * 98 + [11.1] * 2, kept=[0.90, 0.94, 0.99])
        bad = self.judged(urgent.judge_short, DRIVER=own, HIGH=slow, NORMAL=samples([2.2] * 50))
        self.assertEqual(bad, [False, False, False, False])

    def test_long_bursts_are_held_against_the_same_percentile_alone(self):
        alone = samples([22.0] * 98 + [40.0] * 2)
        self.assertEqual(self.judged(urgent.judge_long, ALONE=alone, HIGH=samples([30.0] * 98 + [54.0] * 2)), [True, True])
        self.assertEqual(self.judged(urgent.judge_long, ALONE=alone, HIGH=samples([30.5] * 98 + [54.5] * 2)), [False, False])

    def test_there_are_bursts_enough_for_each_percentile(self):
        counts = {way: count * urgent.SHORT.rounds for way, count in urgent.SHORT.counts.items()}
        self.assertGreaterEqual(min(counts[urgent.DRIVER], counts[urgent.HIGH]), 500)
        self.assertGreaterEqual(counts[urgent.NORMAL], 200)
        for way in (urgent.ALONE, urgent.HIGH):
            self.assertGreaterEqual(urgent.LONG.counts[way] * urgent.LONG.rounds, 100)

    def test_bursts_alone_are_known_before_those_beside_a_loop(self):
        for bursts in (urgent.SHORT, urgent.LONG):
            self.assertEqual(next(iter(bursts.counts)), urgent.ALONE)


class Switches(unittest.TestCase):
    def sample(self, share, handoffs=50, seconds=1.0):
        return switches.Sample("turns of 20ms", [], share, seconds, handoffs, 20.0)

    def test_missing_time_is_divided_by_the_handoffs(self):
        self.assertAlmostEqual(self.sample(0.95).missing_ms(), 1.0)
        self.assertAlmostEqual(self.sample(0.9, handoffs=0).missing_ms(), 100.0)

    def test_the_median_of_the_samples_is_judged(self):
        heard = Heard()
        shares = [0.90, 0.985, 0.99]
        switches.judge(heard, switches.LAUNCH_BOUND, "turns of 20ms", list(map(self.sample, shares)))
        self.assertEqual(list(heard.checks.values()), [True, True])
        switches.judge(heard, switches.LARGE, "turns of 20ms", list(map(self.sample, [0.90, 0.97, 0.99])))
        self.assertEqual(list(heard.checks.values()), [True, True, True, False])

    def test_the_drivers_own_and_the_computed_length_are_figures(self):
        heard = Heard()
        switches.judge(heard, switches.LARGE, switches.DRIVER, [self.sample(0.5, handoffs=0)])
        self.assertEqual(heard.checks, {})
        switches.judge(heard, switches.LARGE, "turns of auto", [self.sample(0.5)])
        self.assertEqual(heard.checks, {"switches, large products, turns of auto: turns were taken": True})


if __name__ == "__main__":
    unittest.main()
