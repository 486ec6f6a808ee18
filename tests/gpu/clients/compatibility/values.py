"""What the programs of this folder say: values that must not differ between a run with gpushare and one without.
Nothing here knows of gpushare."""

import faulthandler
import hashlib
import json
import signal

faulthandler.register(signal.SIGUSR1, all_threads=True)


def say(values):
    print(json.dumps({"values": values}), flush=True)


def digest(*arrays):
    """One short name for the exact bytes of arrays, PyTorch's or anything that NumPy can read."""
    seen = hashlib.sha256()
    for array in arrays:
        seen.update(host(array).tobytes())
    return seen.hexdigest()[:16]


def host(array):
    """The array as NumPy sees it."""
    import numpy

    if hasattr(array, "detach"):
        array = array.detach().cpu()
    if hasattr(array, "get"):
        array = array.get()
    return numpy.ascontiguousarray(numpy.asarray(array))
