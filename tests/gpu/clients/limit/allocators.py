"""A program that fills its card through an allocator of PyTorch or CuPy until that says out of memory, in ever smaller blocks,
and goes on. PyTorch's allocator is that of the environment.

    allocators.py torch --limit-mib 4096

Asks for the limit and 2 MiB, never for more. Prints one JSON line.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from obey import say

MIB = 1 << 20
OVER_MIB = 2
# From large to small; PyTorch has a pool of its own for 1 MiB and less.
BLOCKS_MIB = (128, 64, 32, 16, 8, 4, 2, 1)
COUNT = 1 << 20


class Torch:
    def __init__(self):
        import torch

        self.torch, self.refused = torch, torch.OutOfMemoryError
        torch.cuda.init()
        self.backend = torch.cuda.get_allocator_backend()

    def filled(self, mib, value):
        return self.torch.empty(mib << 20, dtype=self.torch.uint8, device="cuda").fill_(value)

    def checksum(self):
        return self.torch.arange(COUNT, device="cuda").sum().item()

    def give_back(self):
        self.torch.cuda.empty_cache()

    def reserved(self):
        return self.torch.cuda.memory_reserved()

    def left(self):
        return list(self.torch.cuda.mem_get_info())


class CuPy:
    backend = "CuPy's pool"

    def __init__(self):
        import cupy

        self.cupy, self.refused = cupy, cupy.cuda.memory.OutOfMemoryError
        self.pool = cupy.get_default_memory_pool()

    def filled(self, mib, value):
        block = self.cupy.empty(mib << 20, dtype=self.cupy.uint8)
        block.data.memset(value, block.nbytes)
        return block

    def checksum(self):
        return int(self.cupy.arange(COUNT, dtype=self.cupy.int64).sum())

    def give_back(self):
        self.pool.free_all_blocks()

    def reserved(self):
        return self.pool.total_bytes()

    def left(self):
        return list(self.cupy.cuda.runtime.memGetInfo())


def fill(library, limit_mib):
    """Blocks until even the smallest is refused, and the sentence that refused it. Never more than the limit holds."""
    blocks, sentence = [], ""
    for mib in BLOCKS_MIB:
        while sum(size for size, _ in blocks) <= limit_mib:
            try:
                blocks.append((mib, library.filled(mib, len(blocks) % 251)))
            except library.refused as error:
                sentence = str(error)
                break
    return blocks, sentence


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library", choices=["torch", "cupy"])
    parser.add_argument("--limit-mib", type=int, required=True)
    args = parser.parse_args()
    library = {"torch": Torch, "cupy": CuPy}[args.library]()
    right = COUNT * (COUNT - 1) // 2

    over = False
    try:
        library.filled(args.limit_mib + OVER_MIB, 0)
    except library.refused:
        over = True
    computes = [library.checksum() == right]
    library.give_back()
    before = library.left()

    blocks, sentence = fill(library, args.limit_mib)
    full, reserved = library.left(), library.reserved()
    kept = all(int(block[0]) == int(block[-1]) == number % 251 for number, (_, block) in enumerate(blocks))

    # One large block less is enough to compute, and to have it again.
    given = sum(size for size, _ in blocks)
    del blocks[0]
    library.give_back()
    computes.append(library.checksum() == right)
    library.give_back()
    blocks.append((BLOCKS_MIB[1], library.filled(BLOCKS_MIB[1], 7)))
    again = int(blocks[-1][1][-1]) == 7

    blocks.clear()
    library.give_back()
    say(
        backend=library.backend,
        before=before,
        over_is_refused=over,
        given_mib=given,
        reserved_mib=reserved / MIB,
        full=full,
        sentence=sentence,
        contents_kept=kept,
        computes=computes,
        again=again,
        after=library.left(),
    )


if __name__ == "__main__":
    main()
