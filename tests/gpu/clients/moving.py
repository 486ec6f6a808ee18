"""How fast managed memory moves on this card: a GiB, to the host and back, by the driver's own prefetch, and how long it takes
to bring in what is there already. Knows nothing of gpushare. Prints one JSON line, rates in bytes a second.
"""

import ctypes
import statistics
import sys
import time
from ctypes import c_int, c_size_t, c_ulonglong, c_void_p
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent / "limit"))
from obey import say
from runtime import MIB, Runtime

SIZE = 1024 * MIB
ROUNDS = 3
HOST, CARD = -1, 0


def main():
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    runtime = Runtime()
    error, address = runtime.managed(SIZE)
    if error:
        raise SystemExit(f"cudaMallocManaged of {SIZE} bytes answered {error}")
    runtime.set_all(address, 7, SIZE)

    def seconds(place):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        prefetch = runtime.driver.cuMemPrefetchAsync
        error = prefetch(c_ulonglong(address), c_size_t(SIZE), c_int(place), c_void_p())
        torch.cuda.synchronize()
        if error:
            raise SystemExit(f"cuMemPrefetchAsync to {place} answered {error}")
        return time.perf_counter() - begin

    seconds(CARD)
    out, back, stay = [], [], []
    # The first time to the host makes its pages; it is not the card's rate.
    for number in range(ROUNDS + 1):
        times = [seconds(place) for place in (HOST, CARD, CARD)]
        if number:
            for kept, value in zip((out, back, stay), times):
                kept.append(value)
    right = runtime.byte_at(address) == runtime.byte_at(address + SIZE - 1) == 7
    runtime.cuda.cudaFree(ctypes.c_void_p(address))
    say(
        bytes=SIZE,
        out=SIZE / statistics.median(out),
        back=SIZE / statistics.median(back),
        stay_ms=1e3 * statistics.median(stay),
        right=right,
    )


if __name__ == "__main__":
    main()
