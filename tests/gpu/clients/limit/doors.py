"""A PyTorch program that fills its card through every door of the CUDA runtime, meets the end of it at each to the byte, and
goes on: PyTorch is told out of memory in its own way while the card is full, and computes when something was freed.

    doors.py --limit-mib 4096 [--doors cudaMalloc,cuMemCreate]

Asks for the limit and 2 MiB, never for more. Prints one JSON line: what each door said, by its name.
"""

import argparse
import sys
from pathlib import Path

import torch

from runtime import MIB, Runtime

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from obey import say

OVER = 2 * MIB
BLOCKS = 8
COUNT = 1 << 20


def left():
    return list(torch.cuda.mem_get_info())


def torch_is_refused():
    try:
        torch.ones(1, device="cuda")
    except torch.OutOfMemoryError:
        return True
    return False


def torch_computes():
    """A checksum on the card, of which nothing stays."""
    right = torch.arange(COUNT, device="cuda").sum().item() == COUNT * (COUNT - 1) // 2
    torch.cuda.empty_cache()
    return right


def at(runtime, door, limit):
    """What a door says on the way to the limit and past it. Errors are CUDA's codes; 0 is success."""
    said, block = {"before": left()}, limit // BLOCKS

    def refusal(size):
        error, taken = door.take(size)
        runtime.forget_error()
        if not error:
            door.free(taken)
        return error

    said["limit and 2 MiB"] = refusal(limit + OVER)
    held, errors = [], []
    for _ in range(BLOCKS):
        error, taken = door.take(block)
        errors.append(error)
        if error:
            break
        held.append(taken)
    said["blocks"], said["full"] = errors, left()
    said["the least more"] = refusal(door.least)
    said["PyTorch is refused"] = torch_is_refused()
    runtime.forget_error()

    # The last block is the largest that fits, to the step.
    said["frees one"] = door.free(held.pop())
    said["a block and a step"] = refusal(block + door.step)
    error, taken = door.take(block)
    said["the block again"] = error
    if not error:
        held.append(taken)

    said["contents"] = contents(runtime, door, held, block)
    said["frees"] = [door.free(held.pop())]
    said["PyTorch computes"] = torch_computes()
    said["frees"] += [door.free(taken) for taken in held]
    said["after"] = left()
    return said


def contents(runtime, door, held, block):
    """How many blocks do not hold what was written; none where there is no address to write to."""
    if door.address is None:
        return 0
    addresses = [door.address(taken) for taken in held]
    errors = [runtime.set_all(address, number + 1, block) for number, address in enumerate(addresses)]
    ends = [[runtime.byte_at(address), runtime.byte_at(address + block - 1)] for address in addresses]
    return sum(error != 0 or end != [number + 1] * 2 for number, (error, end) in enumerate(zip(errors, ends)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit-mib", type=int, required=True)
    parser.add_argument("--doors", help="some of them, by commas")
    args = parser.parse_args()
    torch.cuda.init()
    torch_computes()
    runtime = Runtime()
    doors = runtime.doors()
    names = args.doors.split(",") if args.doors else doors
    say(doors={name: at(runtime, doors[name], args.limit_mib * MIB) for name in names})


if __name__ == "__main__":
    main()
