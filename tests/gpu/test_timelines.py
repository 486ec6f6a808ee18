"""Tests of how two programs' kernels become slices; they need no card."""

import sys
import unittest

import programs
import timelines

sys.path.append(str(programs.CLIENTS))
import kernels


class Timelines(unittest.TestCase):
    # Turns of three kernels each; at each change one kernel waits in its middle.
    FIRST = [[0, 10, []], [10, 20, []], [20, 52, [[28, 48]]], [52, 60, []], [60, 70, []], [70, 95, [[75, 90]]]]
    SECOND = [[30, 40, []], [40, 80, [[46, 78]]], [80, 88, []], [88, 100, [[90, 95]]]]

    def test_a_kernel_is_active_outside_its_pauses(self):
        self.assertEqual(timelines.activity([[0, 9, [[2, 3], [5, 7]]]]), [(0, 2), (3, 5), (7, 9)])
        self.assertEqual(timelines.activity(self.FIRST[:2]), [(0, 10), (10, 20)])

    def test_slices_are_unbroken_runs_inside_the_window(self):
        self.assertEqual(timelines.window([self.FIRST, self.SECOND]), (30, 95))
        found = timelines.slices([self.FIRST, self.SECOND])
        # The window's edges cut the second program's run from 30 to 46 and the first's from 90 to 95.
        self.assertEqual([(one.program, one.begin, one.end) for one in found], [(0, 48, 75), (1, 78, 90)])
        self.assertEqual([one.length for one in found], [27, 12])
        self.assertEqual(timelines.gaps(found), [3])

    def test_interleaved_is_the_time_with_kernels_of_both_begun(self):
        # At each moment a kernel of each has begun and not ended, paused or not.
        self.assertEqual(timelines.interleaved([self.FIRST, self.SECOND]), 1.0)
        apart = [[[0, 10, []], [20, 30, []]], [[10, 18, []], [28, 40, []]]]
        self.assertAlmostEqual(timelines.interleaved(apart), 2 / 20)

    def test_programs_that_never_alternate_have_no_slices(self):
        self.assertEqual(timelines.slices([[[0, 50, []]], [[10, 20, []]]])[1:], [])
        self.assertEqual(timelines.gaps([]), [])

    def test_short_slices_between_long_ones_do_not_move_the_median_of_time(self):
        self.assertEqual(timelines.time_median([1, 20, 1, 20, 1, 1]), 20)
        self.assertEqual(timelines.time_median([2, 2, 2]), 2)
        self.assertEqual(timelines.time_median([]), 0)

    def test_a_story_is_in_seconds(self):
        self.assertEqual(timelines.story([[10**9, 2 * 10**9, []]]), {"begin": 1.0, "ends": [2.0]})


class Records(unittest.TestCase):
    def test_a_record_has_the_pauses_that_were_counted(self):
        unused = [7] * (kernels.RECORD - 7)
        self.assertEqual(kernels.record([5, 90, 2, 10, 20, 30, 40, *unused]), [5, 90, [[10, 20], [30, 40]]])
        self.assertEqual(kernels.record([5, 90, 0, 10, 20, 30, 40, *unused]), [5, 90, []])

    def test_a_record_holds_all_pauses(self):
        self.assertLessEqual(3 + 2 * kernels.PAUSES, kernels.RECORD)


if __name__ == "__main__":
    unittest.main()
