"""A tensor on the card, handed to another process by CUDA IPC as PyTorch does it.

    handed_over.py

Prints one JSON line with `values`: what the other process read, or how the hand-over was refused.
"""

import torch
import torch.multiprocessing as mp

from values import say


def read(tensors, answers):
    tensor = tensors.get()
    answers.put(int(tensor.sum()))
    tensor += 1
    torch.cuda.synchronize()
    answers.put(0)
    tensors.get()


def main():
    context = mp.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    tensor = torch.arange(1 << 16, device="cuda", dtype=torch.int64)
    torch.cuda.synchronize()
    try:
        # Asked for here, in the open: a queue would do it in a thread of its own and print.
        tensor.untyped_storage()._share_cuda_()
    except RuntimeError as error:
        say({"refused": type(error).__name__, "next": int(tensor.sum())})
        return
    reader = context.Process(target=read, args=(tensors, answers))
    reader.start()
    tensors.put(tensor)
    seen = answers.get(timeout=60)
    answers.get(timeout=60)
    tensors.put(None)
    reader.join()
    say({"read": seen, "changed": int(tensor.sum()) - seen})


if __name__ == "__main__":
    main()
