"""Parts of the extension that need neither a card nor a kernel."""

import os
import signal
import subprocess
import sys
import tempfile
import types
import unittest

from IPython.core.error import UsageError

from gpushare_jupyter import facts, notice
from gpushare_jupyter.interrupts import Interrupts
from gpushare_jupyter.library import Library
from gpushare_jupyter.magic import Magic, lock, table


class FakeLibrary:
    """Notes what it is told."""

    def __init__(self):
        self.calls = []

    def interrupt_on(self, pipe, number, after):
        self.calls.append((pipe, number, after))
        return 0

    def interrupt_over(self):
        self.calls.append("over")
        return 0


class Words(unittest.TestCase):
    def test_sizes_and_spans_are_short(self):
        self.assertEqual([facts.size(n) for n in (0, 1536, 20 << 30)], ["0B", "1.5KiB", "20GiB"])
        self.assertEqual([facts.span(n) for n in (1.25e9, 45e9, 300e9)], ["1.2 s", "45 s", "5 min"])

    def test_a_wait_names_own_sessions_only_and_says_how_long(self):
        wait = {"ahead": 2, "own": ["train"], "about_ns": 30_000_000_000}
        self.assertEqual(
            notice.words(12_000_000_000, wait),
            "waiting for the GPU for 12 s, 2 before this notebook (of yours: train), about 30 s still",
        )
        wait = {"ahead": 0, "own": [], "about_ns": None}
        self.assertEqual(notice.words(3_000_000_000, wait), "waiting for the GPU for 3.0 s")
        self.assertEqual(notice.words(3_000_000_000, None), "waiting for the GPU for 3.0 s")

    def test_the_place_at_the_card_has_no_name_of_others(self):
        waiting = {"waiting": {"ahead": 2, "reason": "held by somebody"}}
        self.assertEqual(lock({"lock": waiting}), "waits, 2 before it")
        self.assertEqual(lock({"lock": "idle"}), "does not need the card")
        self.assertIn("is frozen", lock({"lock": "frozen"}))


    def test_memory_that_gpushare_moves_is_told_with_its_place(self):
        gpu = {"gpu": 0, "allocated_bytes": 6 << 30, "limit_bytes": 8 << 30}
        session = {
            "name": "train",
            "session": 3,
            "lock": "idle",
            "gpus": [gpu],
            "memory_limit_bytes": None,
            "state": {"terms": {"weight": 100}},
            "waited_ns": 0,
        }
        place = {"gpu": 0, "resident_bytes": 4 << 30, "hosted_bytes": 2 << 30, "moving_bytes": 0}

        def memory(answer):
            return table({"session": session, **answer}).splitlines()[2].split("  ")[-1]

        self.assertEqual(memory({}), "6GiB, limit 8GiB", "an older gpushare-ctl does not know the place")
        self.assertEqual(memory({"residences": [place]}), "6GiB, 4GiB of it on the card, limit 8GiB")
        moving = {"residences": [{**place, "moving_bytes": 1}, {**place, "gpu": 1}]}
        self.assertEqual(memory(moving), "6GiB, 4GiB of it on the card, some of it moving, limit 8GiB")


class Release(unittest.TestCase):
    def refused(self, version):
        library = types.SimpleNamespace(is_loaded=version is not None, version=version, release=None)
        with self.assertRaises(UsageError) as raised:
            Magic(library)("release")
        return str(raised.exception)

    def test_a_library_that_cannot_release_is_told_from_none(self):
        self.assertEqual(
            self.refused("0.0.9"),
            "the gpushare library of this kernel (0.0.9) is older than gpushare-jupyter and cannot release the card at"
            " once; update gpushare and restart the kernel",
        )
        self.assertEqual(
            self.refused(None), "this kernel does not share its GPUs, so there is nothing to release"
        )

    def test_a_process_without_the_library_has_no_version(self):
        library = Library()
        self.assertEqual((library.version, library.is_loaded), (None, False))

    def test_an_older_library_is_known_by_its_version(self):
        with tempfile.TemporaryDirectory() as folder:
            source, built = os.path.join(folder, "old.c"), os.path.join(folder, "libgpushare.so")
            with open(source, "w") as file:
                file.write('const char gpushare_version[] = "0.0.9";\n')
            subprocess.run([os.environ.get("CC", "cc"), "-shared", "-o", built, source], check=True)
            code = "from gpushare_jupyter.library import Library; l = Library(); print(l.version, l.is_loaded, l.release)"
            environment = dict(os.environ, LD_PRELOAD=built, PYTHONPATH=os.pathsep.join(sys.path))
            done = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=True)
        self.assertEqual(done.stdout.decode().split(), ["0.0.9", "True", "None"])


class Descriptor(unittest.TestCase):
    """Python's one descriptor for signals, which others want too."""

    def setUp(self):
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.writer, False)
        self.library = FakeLibrary()
        self.addCleanup(signal.set_wakeup_fd, -1)

    def test_what_was_set_before_gets_the_signals_after_us_and_comes_back(self):
        signal.set_wakeup_fd(self.writer)
        interrupts = Interrupts(self.library)
        interrupts.arm()
        self.assertEqual(self.library.calls[-1][1:], (signal.SIGINT, self.writer))
        interrupts.arm()
        self.assertEqual(self.library.calls[-1][1:], (signal.SIGINT, self.writer), "it is remembered")
        interrupts.disarm()
        self.assertEqual(signal.set_wakeup_fd(-1), self.writer)

    def test_another_package_that_took_the_descriptor_is_chained_at_the_next_cell(self):
        interrupts = Interrupts(self.library)
        interrupts.arm()
        self.assertEqual(self.library.calls[-1][2], -1)
        signal.set_wakeup_fd(self.writer)
        interrupts.arm()
        self.assertEqual(self.library.calls[-1][2], self.writer)
        interrupts.disarm()

    def test_the_library_hears_when_python_does_and_only_during_a_cell(self):
        # A program that a shell starts in the background ignores Ctrl-C.
        self.addCleanup(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        before = signal.getsignal(signal.SIGINT)
        interrupts = Interrupts(self.library)
        for _ in range(2):
            interrupts.arm()
            with self.assertRaises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            self.assertEqual(self.library.calls[-1], "over")
            interrupts.rest()
            self.assertEqual(signal.getsignal(signal.SIGINT), before)
        interrupts.disarm()

    def test_a_forked_child_does_not_write_into_the_pipe_of_its_parent(self):
        interrupts = Interrupts(self.library)
        interrupts.arm()
        if (child := os.fork()) == 0:
            os._exit(0 if signal.set_wakeup_fd(-1) == -1 else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        interrupts.disarm()


if __name__ == "__main__":
    unittest.main()
