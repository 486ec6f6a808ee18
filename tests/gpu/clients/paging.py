"""A block of managed memory that can be sent to the host, and comes back to the card by page faults or as gpushare brings it.

    hold MIB     allocates and fills it
    away         sends it to host memory
    step         adds one to every word; answers with the seconds from its launch to its end
    check        whether every word is what it must be
"""

import ctypes
import time

import torch

from obey import orders, say

CUDA = ctypes.CDLL("libcuda.so.1")
ATTACH_GLOBAL, HOST = 1, -1


def call(name, *arguments):
    code = getattr(CUDA, name)(*arguments)
    if code != 0:
        raise SystemExit(f"{name} answered {code}")


class Block:
    def __init__(self, mib):
        self.size, address = mib << 20, ctypes.c_uint64()
        call("cuMemAllocManaged", ctypes.byref(address), ctypes.c_size_t(self.size), ATTACH_GLOBAL)
        self.address = address.value
        self.__cuda_array_interface__ = {"shape": (mib << 17,), "typestr": "<i8", "data": (self.address, False), "version": 3}
        self.words = torch.as_tensor(self, device="cuda")
        self.words.fill_(0)
        self.steps = 0
        torch.cuda.synchronize()

    def away(self):
        call("cuMemPrefetchAsync", ctypes.c_uint64(self.address), ctypes.c_size_t(self.size), HOST, None)
        torch.cuda.synchronize()

    def step(self):
        began = time.perf_counter()
        self.words += 1
        torch.cuda.synchronize()
        self.steps += 1
        return time.perf_counter() - began

    def is_right(self):
        return bool((self.words == self.steps).all())


def main():
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    block = None
    say(ready=True)
    for word, *values in orders():
        if word == "hold":
            block = Block(int(values[0]))
            say(held=block.size)
        elif word == "away":
            block.away()
            say(away=block.size)
        elif word == "step":
            say(seconds=block.step())
        elif word == "check":
            say(right=block.is_right())
        else:
            raise SystemExit(f"{word}: expected hold, away, step or check")


if __name__ == "__main__":
    main()
