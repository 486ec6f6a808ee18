"""What PyTorch programs do with the driver, case by case, each from the same beginning and with deterministic algorithms.

    pytorch.py CASE

Prints one JSON line with `values`: losses, and the digest of every parameter at the end. Allocator settings come by PyTorch's
own environment.
"""

import argparse
import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from values import digest, say

STEPS = 12


def model():
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 256)).cuda()


def batches(steps=STEPS, rows=128):
    """Inputs made on the host, of changing sizes, so that allocators have something to do."""
    source = torch.Generator().manual_seed(12)
    return [torch.randn(rows + 32 * (step % 4), 256, generator=source) for step in range(steps)]


def train(net, inputs, function=None):
    """The losses, and the digest of what was learnt."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    losses = []
    for batch in inputs:
        batch = batch.cuda(non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss((function or net)(batch), batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "parameters": digest(*net.parameters())}


def eager():
    return train(model(), batches())


def compiled():
    net = model()
    return train(net, [batch[:128] for batch in batches()], torch.compile(net))


def graphed():
    """`make_graphed_callables`: forward and backward as two graphs."""
    net = model()
    sample = torch.randn(128, 256, device="cuda", generator=torch.Generator("cuda").manual_seed(1), requires_grad=True)
    function = torch.cuda.make_graphed_callables(net, (sample,))
    return train(net, [batch[:128] for batch in batches()], function)


def allocator():
    """The caching allocator of the environment: segments grow, are given back, and are used again."""
    learnt = train(model(), batches())
    held = [torch.full((16 << 20,), number, dtype=torch.uint8, device="cuda") for number in range(12)]
    del held[::2]
    torch.cuda.empty_cache()
    held += [torch.full((24 << 20,), 100 + number, dtype=torch.uint8, device="cuda") for number in range(4)]
    return learnt | {"held": [int(block.long().sum()) for block in held], "backend": torch.cuda.get_allocator_backend()}


class Samples(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        return torch.randn(256, generator=torch.Generator().manual_seed(index))


def workers():
    """Workers forked before CUDA starts, and others after it."""
    loader = DataLoader(Samples(), batch_size=128, num_workers=2, multiprocessing_context="fork")
    before = list(loader)
    net = model()
    learnt = train(net, before)
    pinned = DataLoader(Samples(), batch_size=128, num_workers=2, multiprocessing_context="fork", pin_memory=True)
    return learnt | {"after": train(net, list(pinned))}


def amp():
    net = model()
    scaler = torch.amp.GradScaler("cuda")
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    losses = []
    for kind, batch in zip([torch.float16, torch.bfloat16] * STEPS, batches()):
        batch = batch.cuda()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=kind):
            loss = nn.functional.mse_loss(net(batch), batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return {"losses": losses, "parameters": digest(*net.parameters())}


def cudnn():
    torch.manual_seed(13)
    images = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 8, 3)).cuda()
    sequence = nn.LSTM(64, 128, num_layers=2, batch_first=True).cuda()
    source = torch.Generator().manual_seed(14)
    optimizer = torch.optim.SGD([*images.parameters(), *sequence.parameters()], lr=1e-2)
    losses = []
    for _ in range(6):
        picture = torch.randn(16, 3, 64, 64, generator=source).cuda()
        words = torch.randn(16, 20, 64, generator=source).cuda()
        optimizer.zero_grad(set_to_none=True)
        loss = images(picture).square().mean() + sequence(words)[0].square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    learnt = digest(*images.parameters(), *sequence.parameters())
    return {"losses": losses, "parameters": learnt, "version": torch.backends.cudnn.version()}


def streams():
    """Several streams, events between them, copies from pinned memory, and a host that reads while they run."""
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    host = torch.arange(1 << 20, dtype=torch.float32).pin_memory()
    with torch.cuda.stream(side):
        a = host.cuda(non_blocking=True)
        a *= 3
        ready = side.record_event()
    with torch.cuda.stream(other):
        other.wait_event(ready)
        b = a.flip(0).cumsum(0, dtype=torch.float64)
        back = b.to("cpu", non_blocking=True)
        other.synchronize()
    return {"sum": back[-1].item(), "all": digest(back)}


CASES = {case.__name__: case for case in (eager, compiled, graphed, allocator, workers, amp, cudnn, streams)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    case = CASES[parser.parse_args().case]
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    say(case())


if __name__ == "__main__":
    main()
