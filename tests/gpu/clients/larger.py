"""A program that may be larger than the card: blocks of 1 GiB, each with known values.

    larger.py BLOCKS       fills them, then obeys each line of stdin: `add` adds 1 to all of them, `check` reads them,
                           `again NUMBER ROUNDS PAUSE` adds 1 to the last ones in each round, and rests for PAUSE seconds

An answer says how many blocks are right, and how long each took. It knows nothing of gpushare.
"""

import sys
import time

import torch

from obey import orders, say

WORDS = 1 << 28


def block(number):
    return torch.arange(WORDS, dtype=torch.int32, device="cuda").mul_(3).add_(number)


def expected(number, added):
    """The sum of a block to which 1 was added so many times, and its last value."""
    return 3 * WORDS * (WORDS - 1) // 2 + (number + added) * WORDS, 3 * (WORDS - 1) + number + added


def is_right(values, number, added):
    return (values.sum(dtype=torch.int64).item(), values[-1].item()) == expected(number, added)


def timed(work):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    result = work()
    torch.cuda.synchronize()
    return result, time.perf_counter() - begin


def main():
    blocks = [block(number) for number in range(int(sys.argv[1]))]
    added = [0] * len(blocks)

    def add(number):
        added[number] += 1
        return timed(lambda: blocks[number].add_(1))[1]

    torch.cuda.synchronize()
    say(ready=True, blocks=len(blocks))
    for order in orders():
        if order == ["add"]:
            say(seconds=[add(number) for number in range(len(blocks))])
        elif order[0] == "again":
            last, rounds, pause = range(len(blocks))[-int(order[1]) :], int(order[2]), float(order[3])
            seconds = []
            for _ in range(rounds):
                seconds.append(sum(add(number) for number in last))
                time.sleep(pause)
            say(seconds=seconds)
        elif order == ["check"]:
            answers = [
                timed(lambda number=number, values=values: is_right(values, number, added[number]))
                for number, values in enumerate(blocks)
            ]
            say(right=sum(right for right, _ in answers), seconds=[seconds for _, seconds in answers])


main()
