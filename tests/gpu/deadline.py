"""The time that the whole suite has. Groups ask before they begin, and loops before each round."""

import time


class Deadline:
    def __init__(self, seconds):
        self.begin = time.monotonic()
        self.end = self.begin + seconds

    def passed(self):
        return time.monotonic() - self.begin

    def left(self):
        return self.end - time.monotonic()

    def allows(self, seconds):
        return self.left() >= seconds

    def at_most(self, seconds):
        """A wait's limit: what it may take, but not beyond the end."""
        return max(1.0, min(seconds, self.left()))
