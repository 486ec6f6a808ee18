"""An ordinary PyTorch training, the same every time: fixed seeds, deterministic kernels, no data loader.

    train.py transformer --steps 100      trains and prints one line of JSON
    train.py transformer                  prints {"ready": true}, then obeys each line of stdin: `steps 20`

A block of steps answers with its losses and seconds. Between blocks it does nothing at all on the GPU.
"""

import argparse
import os
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn

from obey import orders, say

VOCABULARY = 8192
WARMUP_STEPS = 5


class Transformer(nn.Module):
    """A small language model on random tokens."""

    def __init__(self, width, layers, heads, length):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.layers(self.tokens(tokens) + self.places))


def transformer(args):
    model = Transformer(args.width, args.layers, args.heads, args.length).cuda()
    tokens = torch.randint(0, VOCABULARY, (args.batch, args.length + 1), device="cuda")

    def loss():
        logits = model(tokens[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return model, loss


def resnet50(args):
    import torchvision

    model = torchvision.models.resnet50(weights=None).cuda()
    images = torch.randn(args.batch, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 1000, (args.batch,), device="cuda")
    return model, lambda: nn.functional.cross_entropy(model(images), labels)


class Wide(nn.Module):
    """Nothing but weights: square layers, each added to what it gets."""

    def __init__(self, width, layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, device="cuda") for _ in range(layers))

    def forward(self, values):
        for layer in self.layers:
            values = values + 0.1 * torch.relu(layer(values))
        return values


def wide(args):
    model = Wide(args.width, args.layers)
    values = torch.randn(args.batch, args.width, device="cuda")
    return model, lambda: model(values).square().mean()


class Training:
    def __init__(self, model, loss):
        self.loss = loss
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def block(self, steps):
        """Trains for some steps; what came of it."""
        losses, ends = [], []
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            losses.append(self.step())
            ends.append(time.perf_counter())
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        times = sorted(after - before for before, after in zip([begin, *ends], ends))
        free, total = torch.cuda.mem_get_info()
        return {
            "steps": steps,
            "seconds": seconds,
            "losses": losses,
            "step_ms_p50": 1e3 * times[steps // 2],
            "step_ms_max": 1e3 * times[-1],
            "reserved_mib": torch.cuda.memory_reserved() >> 20,
            "free_mib": free >> 20,
            "total_mib": total >> 20,
        }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["transformer", "resnet50", "wide"])
    parser.add_argument("--steps", type=int, help="train once for this long instead of obeying stdin")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    args = parser.parse_args()

    torch.manual_seed(7)
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True)

    training = Training(*{"transformer": transformer, "resnet50": resnet50, "wide": wide}[args.model](args))
    warmup = training.block(WARMUP_STEPS)["losses"]
    if args.steps:
        say(model=args.model, warmup=warmup, **training.block(args.steps))
        return
    say(ready=True, model=args.model, warmup=warmup)
    for word, steps in orders():
        if word != "steps":
            raise SystemExit(f"{word}: expected `steps N`")
        say(model=args.model, **training.block(int(steps)))


if __name__ == "__main__":
    main()
