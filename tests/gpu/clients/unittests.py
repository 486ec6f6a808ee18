"""Tests of others: those of a Python file whose names have one of some words. Prints one JSON line with the outcome of each, and
what failed to stderr.

    unittests.py FOLDER MODULE WORD...
"""

import sys
import unittest

from obey import say


class Outcomes(unittest.TextTestResult):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.of = {}

    def note(self, test, outcome):
        self.of[test.id().rsplit(".", 1)[-1]] = outcome

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note(test, "ok")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, f"skipped: {reason}")

    def addFailure(self, test, failure):
        super().addFailure(test, failure)
        self.note(test, "failed")

    def addError(self, test, error):
        super().addError(test, error)
        self.note(test, "failed")


def main(folder, module, *words):
    # Processes that a test spawns find its module there, too.
    sys.path.insert(0, folder)
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{word}*" for word in words]
    tests = loader.loadTestsFromName(module)
    runner = unittest.TextTestRunner(sys.stderr, resultclass=Outcomes, verbosity=2)
    say(outcomes=runner.run(tests).of)


if __name__ == "__main__":
    main(*sys.argv[1:])
