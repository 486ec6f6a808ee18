"""Trains the same small model eagerly and through torch.compile, and compares what they learn.

Prints one JSON line: the steps, and the largest relative difference of a loss.
"""

import argparse

import torch
from torch import nn

from obey import say


def losses(steps, compiled):
    """The losses of a training from the same beginning."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.LayerNorm(2048), nn.Linear(2048, 512)).cuda()
    inputs = torch.randn(256, 512, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    function = torch.compile(model) if compiled else model
    seen = []
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(function(inputs), inputs)
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    eager, compiled = losses(args.steps, False), losses(args.steps, True)
    difference = max(abs(a - b) / abs(a) for a, b in zip(eager, compiled, strict=True))
    say(steps=args.steps, difference=difference, eager=eager, compiled=compiled)


if __name__ == "__main__":
    main()
