"""A PyTorch training whose whole step is a CUDA graph, captured once.

    graphed.py --ahead 0       waits for the loss of every step
    graphed.py --ahead 4       runs so many steps ahead of the card
    graphed.py --replays 30    a step is so many replays of the graph

Prints {"ready": true}, then obeys each line of stdin: `steps 20`. Between blocks it does nothing at all on the card.
"""

import argparse
import time
from collections import deque

import torch
from torch import nn

from obey import orders, say


class Graphed:
    """Forward, backward and update of a transformer in one graph. Its input is no text, since nothing may wait in a capture."""

    def __init__(self, args):
        self.ahead, self.replays = args.ahead, args.replays
        layer = nn.TransformerEncoderLayer(args.width, args.heads, 4 * args.width, dropout=0.0, batch_first=True)
        model = nn.TransformerEncoder(layer, args.layers, enable_nested_tensor=False).cuda()
        inputs = torch.randn(args.batch, args.length, args.width, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def step():
            loss = nn.functional.mse_loss(model(inputs), inputs)
            loss.backward()
            optimizer.step()
            return loss

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                optimizer.zero_grad(set_to_none=True)
                step()
        torch.cuda.current_stream().wait_stream(stream)
        optimizer.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = step()

    def block(self, steps):
        """Trains for some steps; what came of it. When a step ended is the card's own time: a host that runs ahead and is held up
        meanwhile learns of several ends at once."""
        in_flight, marks = deque(), [torch.cuda.Event(enable_timing=True)]
        torch.cuda.synchronize()
        begin = time.perf_counter()
        marks[0].record()
        for _ in range(steps):
            for _ in range(self.replays):
                self.graph.replay()
            marks.append(torch.cuda.Event(enable_timing=True))
            marks[-1].record()
            in_flight.append(marks[-1])
            if len(in_flight) > self.ahead:
                in_flight.popleft().synchronize()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        times = [before.elapsed_time(after) for before, after in zip(marks, marks[1:])]
        return {
            "steps": steps,
            "seconds": seconds,
            "step_ms_max": max(times),
            "step_ms": [round(milliseconds, 2) for milliseconds in times],
            "loss": self.loss.item(),
        }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ahead", type=int, default=0)
    parser.add_argument("--replays", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    args = parser.parse_args()

    torch.manual_seed(7)
    graphed = Graphed(args)
    graphed.block(3)
    say(ready=True, reserved_mib=torch.cuda.memory_reserved() >> 20)
    for word, steps in orders():
        if word != "steps":
            raise SystemExit(f"{word}: expected `steps N`")
        say(**graphed.block(int(steps)))


if __name__ == "__main__":
    main()
