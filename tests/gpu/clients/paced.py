"""PyTorch programs that tell when each piece of their work began and ended, on the clock that all processes share.

    paced.py train [--batch 16 --ballast-mib 1024]   a training; obeys `train SECONDS`, and `paused SECONDS MILLISECONDS
                                                     MILLISECONDS`: groups of steps that take so long, and a sleep after each
    paced.py infer [--width 4096 --layers 4]         an inference; obeys `bursts COUNT SECONDS MILLISECONDS`: so many bursts,
                                                     one every so many seconds, each of so much work as takes so long alone

It prints {"ready": true} first, and does nothing at all on the card between orders. How much work a burst is, is measured at
the start, when nobody else should work.
"""

import argparse
import statistics
import time

import torch
from torch import nn

import train
from obey import orders, say

WARMUP_STEPS = 5
TRIALS = 20


class Trainer:
    def __init__(self, args):
        self.training = train.Training(*train.transformer(args))
        self.ballast = torch.zeros(args.ballast_mib << 18, device="cuda") if args.ballast_mib else None
        for _ in range(WARMUP_STEPS):
            self.step()
        self.about = {}

    def step(self):
        if self.ballast is not None:
            self.ballast.add_(1.0)
        self.training.step()

    def train(self, seconds):
        begin, ends = time.monotonic(), []
        while not ends or ends[-1] < begin + seconds:
            self.step()
            ends.append(time.monotonic())
        return {"begin": begin, "ends": ends}

    def paused(self, seconds, work_ms, sleep_ms):
        """Trains as if in turns: nothing is on the card in a sleep. The seconds of the steps of each group."""
        end, groups = time.monotonic() + seconds, []
        while not groups or time.monotonic() < end:
            at, steps = time.monotonic(), []
            while sum(steps) < work_ms / 1e3:
                self.step()
                before, at = at, time.monotonic()
                steps.append(at - before)
            groups.append(steps)
            time.sleep(sleep_ms / 1e3)
        return {"groups": groups}


class Inference:
    def __init__(self, args):
        layers = [nn.Linear(args.width, args.width, bias=False) for _ in range(args.layers)]
        self.model = nn.Sequential(*layers).cuda()
        self.inputs = torch.randn(args.batch, args.width, device="cuda")
        for _ in range(WARMUP_STEPS):
            self.infer(1)
        times = []
        for _ in range(TRIALS):
            begin = time.monotonic()
            self.infer(TRIALS)
            times.append((time.monotonic() - begin) / TRIALS)
        self.pass_seconds = statistics.median(times)
        self.about = {"pass_ms": 1e3 * self.pass_seconds}

    def infer(self, passes):
        with torch.no_grad():
            for _ in range(passes):
                answer = self.model(self.inputs)
            return answer.sum().item()

    def bursts(self, count, every, milliseconds):
        passes = max(1, round(milliseconds / 1e3 / self.pass_seconds))
        first = time.monotonic()
        begins, ends = [], []
        for number in range(count):
            # One that is late delays itself only; none begins before the last has ended.
            time.sleep(max(0.0, first + number * every - time.monotonic()))
            begins.append(time.monotonic())
            self.infer(passes)
            ends.append(time.monotonic())
        return {"begins": begins, "ends": ends, "passes": passes}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["train", "infer"])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--ballast-mib", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(7)
    program = {"train": Trainer, "infer": Inference}[args.what](args)
    say(ready=True, reserved_mib=torch.cuda.memory_reserved() >> 20, **program.about)
    for word, *values in orders():
        if word == "train":
            said = program.train(float(values[0]))
        elif word == "paused":
            said = program.paused(*map(float, values))
        elif word == "bursts":
            said = program.bursts(int(values[0]), float(values[1]), float(values[2]))
        else:
            raise SystemExit(f"{word}: expected `train`, `paused` or `bursts` with their numbers")
        say(**said)


if __name__ == "__main__":
    main()
