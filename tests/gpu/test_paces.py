"""Tests of how rates are counted; they need no card."""

import unittest

import paces


class Paces(unittest.TestCase):
    STORY = {"begin": 10.0, "ends": [11.0, 12.0, 14.0]}

    def test_a_step_across_an_edge_counts_in_part(self):
        self.assertEqual([paces.progress(self.STORY, at) for at in (9, 10.5, 12, 13, 20)], [0, 0.5, 2, 2.5, 3])
        self.assertEqual(paces.rate(self.STORY, 11.5, 13), 1.0 / 1.5)

    def test_rates_are_of_the_time_in_which_all_worked(self):
        late = {"begin": 12.0, "ends": [13.0, 20.0]}
        self.assertEqual(paces.window([self.STORY, late]), (12.0, 14.0))
        first, second = paces.rates([self.STORY, late])
        self.assertAlmostEqual(first, 0.5)
        self.assertAlmostEqual(second, (1 + 1 / 7) / 2)

    def test_the_edges_of_a_window_can_be_left_out(self):
        late = {"begin": 12.0, "ends": [13.0, 20.0]}
        self.assertEqual(paces.window([self.STORY, late], 0.5), (12.5, 13.5))
        self.assertAlmostEqual(paces.rates([self.STORY, late], 0.5)[0], 0.5)

    def test_parts_are_of_the_rates_alone(self):
        half = {"begin": 10.0, "ends": [12.0, 14.0]}
        self.assertEqual(paces.parts([half, half], [1.0, 2.0]), [0.5, 0.25])

    def test_time_that_another_needs_is_not_lost(self):
        self.assertAlmostEqual(paces.kept(540.0, 600.0, 0.1), 1.0)
        self.assertAlmostEqual(paces.kept(270.0, 600.0, 0.1), 0.5)

    def test_what_a_pause_costs_is_beyond_the_steps_without_pauses(self):
        groups = [[0.011, 0.010], [0.012, 0.010, 0.010]]
        self.assertAlmostEqual(paces.lost_per_pause(groups, 0.010), 0.0015)
        self.assertAlmostEqual(paces.first_is_longer(groups), 0.0015)
        self.assertIsNone(paces.first_is_longer([[0.03], [0.02]]))

    def test_jain_is_one_for_equals_and_falls_with_each_who_has_nothing(self):
        self.assertEqual(paces.jain([3.0] * 4), 1.0)
        self.assertEqual(paces.jain([1.0, 0.0, 0.0, 0.0]), 0.25)

    def test_a_percentile_is_a_value_that_was_measured(self):
        values = list(range(1, 101))
        self.assertEqual([paces.percentile(values, percent) for percent in (50, 99, 100)], [50, 99, 100])
        self.assertEqual(paces.percentile([7], 99), 7)


if __name__ == "__main__":
    unittest.main()
