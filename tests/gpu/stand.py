"""What a group works with: the staged builds, the card, a daemon, programs, and somewhere to say what it found."""

from dataclasses import dataclass
from pathlib import Path

import daemon
from card import Card
from deadline import Deadline
from figures import Figures
from programs import Programs


# The least managed limit that the daemon takes.
LEAST_LIMIT_MIB = 1


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
    # Folder that holds PyTorch's own tests, if there is one.
    pytorch_tests: Path | None

    @property
    def backends(self):
        return (self.backend, "native")

    def daemon(self, allows_managed=True, **options):
        """A fresh daemon with the managed limit that is safe for this card. Without `allows_managed` no program gets managed memory,
        which must not lie beside a card that remapped memory fills."""
        limit = self.card.managed_limit_mib if allows_managed else LEAST_LIMIT_MIB
        return daemon.running(self.stage, self.logs, limit, **options)

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
