"""A PyTorch program of square matrix products in float16, of one size.

    products.py --size 8192 --in-flight 6    obeys `loop SECONDS`: products without a pause, so many in flight at most
    products.py --size 2048                  obeys `bursts COUNT SECONDS PRODUCTS`: so many bursts of so many products, one
                                             every so many seconds, each with a wait for its last product

It prints {"ready": true} first. Times are on the clock that all processes share. The end of a product in a loop is the card's
own time of it: a host that runs ahead of the card learns of several ends at once.
"""

import argparse
import random
import time

import torch

from obey import orders, say

WARMUP_PRODUCTS = 20
# Latest begin of a burst, as part of the interval. So no burst keeps step with the loop or with turns.
JITTER = 0.1
DIGITS = 5


class Products:
    def __init__(self, size, in_flight):
        self.in_flight = in_flight
        self.a, self.b = (torch.randn(size, size, device="cuda", dtype=torch.float16) for _ in range(2))
        self.product = torch.empty_like(self.a)
        self.multiply(WARMUP_PRODUCTS)
        torch.cuda.synchronize()

    def multiply(self, times=1):
        for _ in range(times):
            torch.mm(self.a, self.b, out=self.product)

    def loop(self, seconds):
        torch.cuda.synchronize()
        marks = [mark()]
        marks[0].synchronize()
        begin = time.monotonic()
        while time.monotonic() < begin + seconds:
            if len(marks) > self.in_flight:
                marks[-self.in_flight].synchronize()
            self.multiply()
            marks.append(mark())
        torch.cuda.synchronize()
        ends = [round(begin + marks[0].elapsed_time(end) / 1e3, DIGITS) for end in marks[1:]]
        return {"begin": begin, "ends": ends}

    def bursts(self, count, every, products):
        late, first = random.Random(7), time.monotonic()
        begins, ends = [], []
        for number in range(count):
            due = first + (number + JITTER * late.random()) * every
            # One that is late delays itself only; none begins before the last has ended.
            time.sleep(max(0.0, due - time.monotonic()))
            begins.append(time.monotonic())
            self.multiply(products)
            torch.cuda.synchronize()
            ends.append(time.monotonic())
        return {"begins": begins, "ends": ends}


def mark():
    """A timing event after all that was launched so far."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--in-flight", type=int, default=6)
    args = parser.parse_args()

    torch.manual_seed(7)
    program = Products(args.size, args.in_flight)
    say(ready=True, reserved_mib=torch.cuda.memory_reserved() >> 20)
    for word, *values in orders():
        if word == "loop":
            said = program.loop(float(values[0]))
        elif word == "bursts":
            said = program.bursts(int(values[0]), float(values[1]), int(values[2]))
        else:
            raise SystemExit(f"{word}: expected `loop SECONDS` or `bursts COUNT SECONDS PRODUCTS`")
        say(**said)


if __name__ == "__main__":
    main()
