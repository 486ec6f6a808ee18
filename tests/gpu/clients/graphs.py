"""Captures a CUDA graph of a forward and backward pass and replays it, over and over, checking every result
against the same work done eagerly. Captures anew every so often, so that captures meet contention too.

Prints one JSON line: how many captures and replays, and how many results were wrong.
"""

import argparse
import time

import torch
from torch import nn

from obey import say


def capture(model, inputs):
    """The graph, and where it leaves its output."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            model(inputs).sum().backward()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    model.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        output = model(inputs)
        output.sum().backward()
    return graph, output


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--captures", type=int, default=10)
    parser.add_argument("--replays", type=int, default=50)
    args = parser.parse_args()

    torch.manual_seed(7)
    torch.backends.cuda.matmul.allow_tf32 = False
    model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
    inputs = torch.zeros(256, 1024, device="cuda")
    begin, wrong, replays = time.perf_counter(), 0, 0

    for _ in range(args.captures):
        graph, output = capture(model, inputs)
        for replay in range(args.replays):
            fresh = torch.randn(256, 1024, device="cuda")
            inputs.copy_(fresh)
            graph.replay()
            replays += 1
            if replay % 10 == 0:
                with torch.no_grad():
                    wrong += not torch.allclose(output, model(fresh), rtol=1e-4, atol=1e-4)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    say(captures=args.captures, replays=replays, wrong=wrong, seconds=seconds)


if __name__ == "__main__":
    main()
