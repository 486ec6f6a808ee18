"""NCCL over two cards, one process each: collectives and point-to-point messages, by value.

    two_cards.py

Prints one JSON line with `values` of every rank.
"""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from values import digest, say

RANKS = 2


def rank_work(rank, port, answers):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=RANKS, device_id=torch.device("cuda", rank))
    torch.manual_seed(rank)
    mine = torch.arange(1 << 22, device="cuda", dtype=torch.float32) * (rank + 1)
    dist.all_reduce(mine)
    gathered = [torch.empty(1 << 16, device="cuda") for _ in range(RANKS)]
    dist.all_gather(gathered, torch.full((1 << 16,), float(rank), device="cuda"))
    scattered = torch.empty(1 << 16, device="cuda")
    dist.reduce_scatter_tensor(scattered, torch.ones(RANKS << 16, device="cuda") * (rank + 2))
    message = torch.full((1 << 20,), 7.0 + rank, device="cuda")
    if rank == 0:
        dist.send(message, 1)
    else:
        dist.recv(message, 0)
    torch.cuda.synchronize()
    answers.put((rank, [digest(mine), digest(*gathered), digest(scattered), digest(message)]))
    dist.barrier()
    dist.destroy_process_group()


def main():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = mp.get_context("spawn")
    answers = context.SimpleQueue()
    mp.spawn(rank_work, args=(port, answers), nprocs=RANKS)
    say(dict(answers.get() for _ in range(RANKS)))


if __name__ == "__main__":
    main()
