"""Runs the tests of a Python file that is not ours, those whose names contain one of the words. Prints one JSON line with the outcome
of each. What failed goes to stderr.

    unittests.py FOLDER MODULE WORD...
"""

import sys
import unittest

from obey import say


class Outcomes(unittest.TextTestResult):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.of = {}

    def addSuccess(self, test):
        super().addSuccess(test)
        # A test with a failed part may end well.
        self.of.setdefault(test.id(), "ok")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.of[test.id()] = f"skipped: {reason}"

    def addFailure(self, test, failure):
        super().addFailure(test, failure)
        self.of[test.id()] = "failed"

    def addError(self, test, error):
        super().addError(test, error)
        self.of[test.id()] = "failed"

    def addSubTest(self, test, part, error):
        super().addSubTest(test, part, error)
        if error is not None:
            self.of[test.id()] = "failed"

    def addExpectedFailure(self, test, failure):
        super().addExpectedFailure(test, failure)
        self.of[test.id()] = "ok"

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.of[test.id()] = "failed"


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
