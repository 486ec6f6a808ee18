"""A PyTorch program that meets a memory limit the ordinary way: it asks, is told OutOfMemoryError, and goes on.

    limits.py --limit-mib 2048

Asks for the limit and 2 MiB, never for more. Prints one JSON line, then keeps its memory until the end of stdin.
"""

import argparse

import torch

from obey import orders, say

BLOCK_MIB = 128
# The smallest step over a limit that the driver's pages and PyTorch's allocator can tell from none.
STEP_MIB = 2


def bytes_of(mib):
    return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")


def is_refused(mib):
    """Whether PyTorch says out of memory, and nothing else."""
    try:
        bytes_of(mib)
    except torch.cuda.OutOfMemoryError:
        return True
    return False


def memory():
    free, total = torch.cuda.mem_get_info()
    return {"free_mib": free / 2**20, "total_mib": total / 2**20}


def product_is_right():
    """A matrix product on the card against one on the host, in integers that are exact in float32."""
    a, b = (torch.randint(-8, 8, (256, 256), generator=torch.Generator().manual_seed(seed)).float() for seed in (1, 2))
    return torch.equal((a.cuda() @ b.cuda()).cpu(), a @ b)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit-mib", type=int, required=True)
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.cuda.init()

    before = memory()
    properties_mib = torch.cuda.get_device_properties(0).total_memory / 2**20
    over = is_refused(args.limit_mib + STEP_MIB)
    right_after_refusal = product_is_right()

    # Fill until the next block is refused. There are never more blocks than the limit holds.
    blocks, refused = [], False
    while not refused and len(blocks) <= args.limit_mib // BLOCK_MIB:
        try:
            blocks.append(bytes_of(BLOCK_MIB).fill_(len(blocks)))
        except torch.cuda.OutOfMemoryError:
            refused = True
    full = memory()
    kept = all(int(block[-1]) == number for number, block in enumerate(blocks))

    held = len(blocks)
    del blocks[held // 2 :]
    torch.cuda.empty_cache()
    half = memory()
    again = bytes_of((held - held // 2) * BLOCK_MIB).fill_(1)
    right_at_end = product_is_right() and int(again[-1]) == 1

    say(
        before=before,
        properties_mib=properties_mib,
        over_is_refused=over,
        right_after_refusal=right_after_refusal,
        blocks_mib=held * BLOCK_MIB,
        full_is_refused=refused,
        full=full,
        contents_kept=kept,
        half=half,
        right_at_end=right_at_end,
        reserved_mib=torch.cuda.memory_reserved() / 2**20,
    )
    for _ in orders():
        pass


if __name__ == "__main__":
    main()
