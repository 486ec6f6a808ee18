"""What nvidia-smi says inside this process' session, while this process holds memory on the card.

    smi.py --hold-mib 512

Prints one JSON line: the totals that NVML's own tool prints, its process list, and who we are.
"""

import argparse
import json
import os
import subprocess

import torch


def smi(*arguments):
    done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=60, check=True)
    return [[field.strip() for field in line.split(",")] for line in done.stdout.strip().splitlines()]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hold-mib", type=int, default=512)
    held = torch.zeros(parser.parse_args().hold_mib << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    csv = "--format=csv,noheader,nounits"
    [[smi_total, smi_used, smi_free]] = smi("--query-gpu=memory.total,memory.used,memory.free", csv, "--id=0")
    processes = smi("--query-compute-apps=pid,used_memory", csv)
    picture = subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=60)
    said = {
        "pid": os.getpid(),
        "properties_mib": torch.cuda.get_device_properties(0).total_memory >> 20,
        "cuda_mib": [total >> 20, free >> 20],
        "smi_mib": [int(smi_total), int(smi_used), int(smi_free)],
        "processes": processes,
        "plain": picture.returncode,
        "held": int(held[-1]),
    }
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
