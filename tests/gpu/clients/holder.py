"""A block of card memory whose every byte is written by each step and can be checked; and the plain copies of this card.

    hold MIB     allocates and fills it; answers with the seconds to the end of the first kernel that uses it, and of all
    step         adds one to every word; answers with the seconds from its launch to its end
    read         reads every word; the same answer
    check        whether every word is what it must be
    copies MIB   without any of this: pinned copies of so many MiB out, in, and both ways at once, best of five
    both         after that: both ways at once, once more

A word is its own number, plus one for each step.
"""

import time

import torch

from obey import orders, say

PIECE_WORDS = (16 << 20) // 8
COPIES = 5


class Block:
    def __init__(self, mib):
        self.allocation = seconds_of(lambda: self.allocate(mib))
        self.steps = 0
        # Piece by piece, since one call numbers no more than 2^32 words.
        for begin, piece in self.pieces():
            torch.arange(begin, begin + piece.numel(), out=piece)
        torch.cuda.synchronize()

    def allocate(self, mib):
        self.words = torch.empty(mib << 17, dtype=torch.int64, device="cuda")
        # All of it must be on the card for that.
        self.words[:1].fill_(0)
        torch.cuda.synchronize()

    def step(self):
        self.words += 1
        self.steps += 1
        torch.cuda.synchronize()

    def read(self):
        self.words.max()
        torch.cuda.synchronize()

    def pieces(self):
        return ((begin, self.words[begin : begin + PIECE_WORDS]) for begin in range(0, self.words.numel(), PIECE_WORDS))

    def is_right(self):
        """Compared piece by piece, so that it needs little memory beside the block."""
        for begin, piece in self.pieces():
            first = begin + self.steps
            if not torch.equal(piece, torch.arange(first, first + piece.numel(), dtype=torch.int64, device="cuda")):
                return False
        return True


def seconds_of(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


class Copies:
    """Plain copies between the card and pinned memory. `of` has the seconds of each kind, the best of some."""

    def __init__(self, mib):
        here, there = (torch.empty(mib << 20, dtype=torch.uint8, device="cuda") for _ in range(2))
        out, back = (torch.empty(mib << 20, dtype=torch.uint8, pin_memory=True) for _ in range(2))
        self.streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        self.kinds = {"out": [(out, here)], "in": [(there, back)], "both": [(out, here), (there, back)]}
        self.of = {kind: min(self.seconds(kind) for _ in range(COPIES)) for kind in self.kinds}

    def seconds(self, kind):
        return seconds_of(lambda: self.run(self.kinds[kind]))

    def run(self, ways):
        for stream, (to, source) in zip(self.streams, ways):
            with torch.cuda.stream(stream):
                to.copy_(source, non_blocking=True)
        torch.cuda.synchronize()


def main():
    # Makes the context and loads the kernels, for which no block has to wait.
    torch.arange(2, dtype=torch.int64, device="cuda")[:1].fill_(0)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    block = copies = None
    say(ready=True)
    for word, *values in orders():
        if word == "hold":
            began = time.perf_counter()
            block = Block(int(values[0]))
            say(seconds=time.perf_counter() - began, allocation=block.allocation)
        elif word == "step":
            say(seconds=seconds_of(block.step))
        elif word == "read":
            say(seconds=seconds_of(block.read))
        elif word == "check":
            say(right=block.is_right())
        elif word == "copies":
            copies = Copies(int(values[0]))
            say(**copies.of)
        elif word == "both":
            say(seconds=copies.seconds("both"))
        else:
            raise SystemExit(f"{word}: expected hold, step, read, check, copies or both")


if __name__ == "__main__":
    main()
