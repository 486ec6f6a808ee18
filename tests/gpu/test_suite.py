"""Tests of the suite's own judgement; they need no card: `python3 -m unittest discover -s tests/gpu`."""

import tempfile
import unittest
from datetime import datetime, timezone
from pathlib import Path

import ratios
from groups import deaths
from suite import group_names
from witness import gated


class Ratios(unittest.TestCase):
    def test_student_t_agrees_with_the_tables(self):
        for freedom, expected in ((5, 2.571), (9, 2.262), (19, 2.093), (39, 2.023)):
            self.assertAlmostEqual(ratios.t_quantile(0.975, freedom), expected, places=2)

    def test_a_drift_that_both_sides_share_falls_out(self):
        drifting = [1.0 + 0.05 * number for number in range(20)]
        ratio = ratios.speed(drifting, [1.25 * seconds for seconds in drifting])
        self.assertAlmostEqual(ratio.mean, 0.8)
        self.assertAlmostEqual(ratio.lower, 0.8)

    def test_one_alternation_bounds_nothing(self):
        self.assertEqual(ratios.speed([1.0], [1.0]).lower, 0.0)

    def test_noise_widens_the_interval(self):
        ratio = ratios.speed([1.0, 1.0, 1.0, 1.0], [0.9, 1.1, 0.9, 1.1])
        self.assertLess(ratio.lower, 0.9)
        self.assertGreater(ratio.upper, 1.1)


class Gated(unittest.TestCase):
    def test_the_rows_of_the_library_give_every_variant_of_a_gated_call(self):
        names = gated.gated_calls()
        for name in (
            "cuLaunchKernel",
            "cuLaunchKernel_ptsz",
            "cuGraphLaunch",
            "cuMemcpyDtoH_v2",
            "cuMemsetD32_v2_ptds",
        ):
            self.assertIn(name, names)

    def test_what_is_no_work_is_not_gated(self):
        self.assertFalse({"cuMemAlloc_v2", "cuGetProcAddress_v2", "cuCtxCreate_v2"} & set(gated.gated_calls()))


class Deaths(unittest.TestCase):
    LINES = (
        '{"timestamp":"2026-11-22T02:00:01.500000Z","operation":"process.leave","pid":6}\n',
        '{"timestamp":"2026-11-22T02:00:02.250000Z","operation":"process.leave","pid":7}\n',
        '{"timestamp":"2026-11-22T02:00:03.000000Z","operation":"lock.gr',
    )

    def test_a_report_is_the_first_record_that_is_whole_and_matches(self):
        with tempfile.NamedTemporaryFile("w", suffix=".err") as log:
            log.write("what was there before\n")
            log.flush()
            records = deaths.Records(Path(log.name))
            log.write("".join(self.LINES))
            log.flush()
            self.assertEqual([record["pid"] for record in records.all()], [6, 7])
            at = records.until("process.leave", lambda record: record["pid"] == 7)
        self.assertEqual(at, datetime(2026, 11, 22, 2, 0, 2, 250000, timezone.utc).timestamp())


class Groups(unittest.TestCase):
    def test_groups_run_in_the_order_of_the_suite_and_once(self):
        self.assertEqual(group_names("turns,smoke,parallel"), ["smoke", "contention"])
        self.assertEqual(group_names("alone"), ["training"])


if __name__ == "__main__":
    unittest.main()
