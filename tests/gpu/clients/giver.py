"""Memory by handle, never mapped, that goes back to the driver piece by piece at an even rate.

    make MIB        creates it
    give SECONDS    gives all of it back in so many seconds; answers with those that it took
"""

import ctypes
import time

import torch

from obey import orders, say

CUDA = ctypes.CDLL("libcuda.so.1")
PIECE_MIB = 64
PINNED, DEVICE = 1, 1


class Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", ctypes.c_int),
        ("device", ctypes.c_int),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


def call(name, *arguments):
    code = getattr(CUDA, name)(*arguments)
    if code != 0:
        raise SystemExit(f"{name} answered {code}")


def make():
    properties, handle = Properties(type=PINNED, location=DEVICE), ctypes.c_uint64()
    call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(PIECE_MIB << 20), ctypes.byref(properties), ctypes.c_uint64())
    return handle


def give(pieces, seconds):
    began, each = time.perf_counter(), seconds / len(pieces)
    for number, piece in enumerate(pieces):
        while time.perf_counter() < began + number * each:
            pass
        call("cuMemRelease", piece)
    return time.perf_counter() - began


def main():
    torch.zeros(1, device="cuda")
    pieces = []
    say(ready=True)
    for word, value in orders():
        if word == "make":
            pieces = [make() for _ in range(int(value) // PIECE_MIB)]
            say(pieces=len(pieces))
        elif word == "give":
            say(seconds=give(pieces, float(value)))
        else:
            raise SystemExit(f"{word}: expected make or give")


if __name__ == "__main__":
    main()
