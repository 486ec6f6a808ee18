"""What all our PyTorch programs have in common: they answer in lines of JSON, obey lines of stdin, and print their
stacks at SIGUSR1, so that the suite can see where a hung one is. Nothing here knows of gpushare."""

import faulthandler
import json
import signal
import sys

faulthandler.register(signal.SIGUSR1, all_threads=True)


def say(**values):
    print(json.dumps(values), flush=True)


def orders():
    """The lines of stdin, as lists of words. Read unbuffered, so that nothing runs ahead."""
    for line in iter(sys.stdin.readline, ""):
        yield line.split()
