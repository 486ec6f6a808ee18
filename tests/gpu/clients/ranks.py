"""A training over two cards, one process each, whose gradients NCCL adds up: it obeys lines of stdin as train.py does.

    ranks.py            prints {"ready": true}, then obeys `steps 20`

A block answers with its seconds and a checksum of each rank's weights, which are the same after every step.
"""

import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from obey import orders, say

RANKS = 2
WIDTH, LAYERS, BATCH = 4096, 6, 2048
WARMUP_STEPS = 5


class Rank:
    def __init__(self, rank, port):
        torch.cuda.set_device(rank)
        dist.init_process_group(
            "nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS, device_id=torch.device("cuda", rank)
        )
        torch.manual_seed(7)
        self.model = nn.Sequential(*[layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]).cuda()
        torch.manual_seed(rank)
        self.input = torch.randn(BATCH, WIDTH, device="cuda")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.model(self.input).square().mean().backward()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        self.optimizer.step()

    def block(self, steps):
        """Seconds of some steps, and the sum of all weights."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(steps):
            self.step()
        end.record()
        end.synchronize()
        weights = sum(parameter.detach().double().sum().item() for parameter in self.model.parameters())
        return begin.elapsed_time(end) / 1e3, weights


def work(number, port, orders, answers):
    rank = Rank(number, port)
    rank.block(WARMUP_STEPS)
    answers.put(None)
    while steps := orders.get():
        answers.put(rank.block(steps))
    dist.destroy_process_group()


def main():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = mp.get_context("spawn")
    queues = [(context.SimpleQueue(), context.SimpleQueue()) for _ in range(RANKS)]
    ranks = [context.Process(target=work, args=(number, port, *queue), daemon=True) for number, queue in enumerate(queues)]
    for rank in ranks:
        rank.start()
    for _, answers in queues:
        answers.get()
    say(ready=True)
    for word, steps in orders():
        if word != "steps":
            raise SystemExit(f"{word}: expected `steps N`")
        for told, _ in queues:
            told.put(int(steps))
        heard = [answers.get() for _, answers in queues]
        say(steps=int(steps), seconds=max(seconds for seconds, _ in heard), weights=[weights for _, weights in heard])
    for told, _ in queues:
        told.put(0)
    for rank in ranks:
        rank.join()


if __name__ == "__main__":
    main()
