"""Tensors on the card that processes hand to each other by PyTorch's queues (CUDA IPC).

    shared_tensors.py

Lines on stdin: `values` (tensors of several sizes go to another process, which changes them), `open MIB` (another
process makes a tensor of that size, which this one opens), `step` (both add one to every word of it), `kill` (the
process that made it is killed; the tensor is read afterwards), `close`. Answers each by one line of JSON.
"""

import gc
import json
import os
import signal
import sys

import torch
import torch.multiprocessing as mp

LIMIT = 60
# A piece of a small segment, a large segment, several chunks, and more than one large chunk of gpushare's.
WORDS = (1 << 10, 1 << 20, 24 << 20, 80 << 20)


def change(tensors, answers):
    """Reads each tensor, adds one to its words, and answers when that is done."""
    while (tensor := tensors.get()) is not None:
        seen = int(tensor.sum())
        tensor += 1
        torch.cuda.synchronize()
        answers.put((seen, list(tensor.shape)))
        del tensor


def make(words, tensors, orders, answers):
    """Makes a tensor, hands it out, and changes it on demand."""
    tensor = torch.full((words,), 7, device="cuda", dtype=torch.int32)
    tensors.put(tensor)
    while orders.get():
        tensor += 1
        torch.cuda.synchronize()
        answers.put(int(tensor[0]))


class Shared:
    def __init__(self):
        self.context = mp.get_context("spawn")

    def values(self):
        tensors, answers = self.context.Queue(), self.context.Queue()
        child = self.context.Process(target=change, args=(tensors, answers))
        child.start()
        found = []
        for words in WORDS:
            tensor = torch.arange(words, device="cuda", dtype=torch.int64)
            for part in (tensor, tensor[words // 4 : words // 2], tensor.view(2, -1)[1]):
                tensors.put(part)
                seen, shape = answers.get(timeout=LIMIT)
                found.append([seen, shape, int(part.sum()), int(tensor.sum())])
            del tensor, part
        tensors.put(None)
        child.join(LIMIT)
        gc.collect()
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
        # Memory that was shared is used again.
        again = torch.ones(WORDS[-1], device="cuda", dtype=torch.int64)
        return {"found": found, "again": int(again.sum()), "exit": child.exitcode}

    def open(self, mib):
        tensors, self.orders, self.answers = (self.context.Queue() for _ in range(3))
        words = int(mib) << 18
        self.child = self.context.Process(target=make, args=(words, tensors, self.orders, self.answers))
        self.child.start()
        self.tensor = tensors.get(timeout=LIMIT)
        return {"maker": self.child.pid, "opener": os.getpid(), "is_right": self.is_right(7)}

    def step(self):
        before = int(self.tensor[0])
        self.orders.put(True)
        theirs = self.answers.get(timeout=LIMIT)
        self.tensor += 1
        torch.cuda.synchronize()
        return {"is_right": theirs == before + 1 and self.is_right(before + 2)}

    def kill(self):
        before = int(self.tensor[0])
        os.kill(self.child.pid, signal.SIGKILL)
        self.child.join(LIMIT)
        return {"is_right": self.is_right(before), "exit": self.child.exitcode}

    def close(self):
        del self.tensor
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
        return {}

    def is_right(self, word):
        # Without memory for a comparison of each word.
        return int(self.tensor.min()) == int(self.tensor.max()) == word


def main():
    torch.cuda.init()
    shared = Shared()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order, *arguments = line.split()
        print(json.dumps(getattr(shared, order)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
