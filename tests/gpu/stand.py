"""What a group works with: the staged builds, the card, a daemon, programs, and somewhere to say what it found."""

from dataclasses import dataclass
from pathlib import Path

import daemon
from card import Card
from deadline import Deadline
from figures import Figures
from programs import Programs


@dataclass(frozen=True)
class Stand:
    stage: Path
    logs: Path
    card: Card
    figures: Figures
    deadline: Deadline
    rounds: int
    # Memory backend of the programs that choose none.
    backend: str
    # Folder of PyTorch's own tests, if there is one.
    pytorch_tests: Path | None

    @property
    def backends(self):
        return (self.backend, "native")

    def daemon(self, **options):
        """A fresh daemon with the managed limit that is safe for this card."""
        return daemon.running(self.stage, self.logs, self.card.managed_limit_mib, **options)

    def programs(self, daemon=None):
        return Programs(self, daemon)

    def workload(self, *arguments):
        """The command of the driver-API program."""
        return [self.stage / "gpushare-workload", *arguments]

    def more_rounds(self, wanted, seconds_each):
        """Counts rounds while there is time for another."""
        for number in range(wanted):
            if not self.deadline.allows(seconds_each):
                return
            yield number
