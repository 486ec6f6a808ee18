"""The card under test, as nvidia-smi tells it. Only asked: no setting of the card is ever changed."""

import subprocess
from dataclasses import dataclass

FIELDS = ("name", "driver_version", "memory.total", "memory.free")


@dataclass(frozen=True)
class Card:
    name: str
    driver: str
    total_mib: int
    free_mib: int

    @property
    def managed_limit_mib(self):
        """What all programs together may allocate: an eighth of what is free, so never near oversubscription."""
        return self.free_mib // 8


def ask(*fields):
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", "--id=0"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout.strip().split(", ")


def find():
    name, driver, total, free = ask(*FIELDS)
    return Card(name, driver, int(total), int(free))


def count():
    """How many cards this machine has."""
    return len(subprocess.run(["nvidia-smi", "-L"], check=True, capture_output=True, text=True, timeout=30).stdout.splitlines())
