"""Tests of what the groups `urgent`, `switches` and `serving` conclude from samples; they need no card."""

import unittest

from groups import serving, switches, urgent


class Heard:
    """Checks and rows as a group tells them."""

    def __init__(self):
        self.checks, self.rows = {}, {}

    def check(self, name, good, said=""):
        self.checks[name] = bool(good)

    def row(self, name, value):
        self.rows[name] = value

    def equal(self, name, measured, expected):
        self.check(name, measured == expected)

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


class Serving(unittest.TestCase):
    # A hundred tokens, of which two take longer: the p99 is one of the two.
    ALONE = [0.0010] * 98 + [0.0020] * 2

    def point(self, later, prompt="0", checksum=5):
        point = serving.Point()
        told = {"requests": 1, "seconds": [0.1], "from_arrival": [0.02], "later": list(later), "checksums": {prompt: [checksum]}}
        point.add(told)
        return point

    def most(self, slower, tail):
        """The most tenants if tokens of 4 or more take so many times as long at p50 and at p99."""
        slow = [slower * 0.0010] * 98 + [tail * 0.0020] * 2
        points = {count: self.point(slow if count >= 4 else self.ALONE) for count in (1, 2, 4, 8)}
        return serving.most_within(points, self.point(self.ALONE))

    def test_both_percentiles_have_their_bound(self):
        self.assertEqual(self.most(1.04, 1.19), 8)
        self.assertEqual(self.most(1.06, 1.19), 2)
        self.assertEqual(self.most(1.04, 1.21), 2)

    def test_tenants_beyond_the_first_number_that_fails_do_not_count(self):
        fast, slow = self.point(self.ALONE), self.point([0.0011] * 100)
        self.assertEqual(serving.most_within({1: fast, 2: slow, 4: fast}, fast), 1)
        self.assertEqual(serving.most_within({2: slow, 4: fast}, fast), 0)
        self.assertEqual(serving.most_within({}, fast), 0)

    def test_tokens_of_all_programs_are_one_sample(self):
        point = self.point([0.001] * 3)
        checksums = {"0": [6], "1": [7]}
        point.add({"requests": 2, "seconds": [0.1] * 2, "from_arrival": [0.5] * 2, "later": [0.002], "checksums": checksums})
        self.assertEqual((point.requests, len(point.later), point.first), (3, 4, [0.02, 0.5, 0.5]))
        self.assertEqual(point.checksums, {"0": {5, 6}, "1": {7}})

    def test_an_answer_that_one_program_alone_does_not_give_is_wrong(self):
        alone = self.point(self.ALONE)
        self.assertEqual(serving.wrong_answers({2: self.point(self.ALONE)}, alone), {})
        self.assertEqual(serving.wrong_answers({2: self.point(self.ALONE, checksum=9)}, alone), {(2, "0"): [9]})
        self.assertEqual(serving.wrong_answers({4: self.point(self.ALONE, prompt="3")}, alone), {(4, "3"): [5]})

    def judged(self, **most):
        heard = Heard()
        serving.judge(heard, {getattr(serving, way): count for way, count in most.items()})
        return list(heard.checks.values())

    def test_gpushare_is_compared_with_the_drivers_own_and_needs_eight_where_two_fit(self):
        self.assertEqual(self.judged(DRIVER=4, FITS=4, SMALL=2, ONE=8), [True, True])
        self.assertEqual(self.judged(DRIVER=4, FITS=2, SMALL=2, ONE=4), [False, False])

    def test_wrong_answers_are_told_beside_the_most_tenants(self):
        heard, alone = Heard(), self.point(self.ALONE)
        most = serving.tell(heard, serving.FITS, {1: alone, 2: self.point(self.ALONE, checksum=9)}, alone)
        self.assertEqual((most, heard.checks), (2, {"serving, gpushare, all fit: wrong answers": False}))

    def test_no_two_programs_get_their_requests_at_the_same_points_in_time(self):
        seeds = [serving.arrivals(count, number) for count in serving.SECONDS for number in range(count)]
        self.assertEqual(len(set(seeds)), len(seeds))


if __name__ == "__main__":
    unittest.main()
