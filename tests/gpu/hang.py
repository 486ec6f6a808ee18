"""What everybody was waiting for, when somebody did not answer: the daemon's status, every thread of every
program as the kernel sees it, and the Python stacks of those that print them at SIGUSR1."""

import os
import signal
import subprocess
import time
from pathlib import Path

PROC = Path("/proc")


def report(daemon, programs):
    parts = [f"$ nvidia-smi\n{output_of('nvidia-smi')}"]
    if daemon is not None:
        command = [daemon.ctl, "--runtime-dir", daemon.runtime, "status", "--json"]
        parts.append(f"$ gpushare-ctl status --json\n{output_of(*command)}")
    for program in programs:
        pids = family(program.process.pid)
        parts.append(f"# {program.name}\n" + "".join(map(process, pids)))
        if any([ask_for_python_stacks(pid) for pid in pids]):
            time.sleep(0.5)  # faulthandler writes from a signal handler; nothing tells when it is done
        parts.append(f"its stderr ends:\n{read(program.log)[-6000:]}")
    return "\n\n".join(parts)


def family(pid):
    """A process and all its descendants."""
    children = {}
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            words = read(folder / "stat").rpartition(")")[2].split()
            if len(words) > 1:
                children.setdefault(int(words[1]), []).append(int(folder.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found


def process(pid):
    command = read(PROC / str(pid) / "cmdline").replace("\0", " ")
    lines = [f"process {pid}: {command}\n"]
    for task in sorted((PROC / str(pid) / "task").glob("*"), key=lambda task: int(task.name)):
        state = next((line for line in read(task / "status").splitlines() if line.startswith("State")), "")
        waits = ", ".join(f"{name} {read(task / name)}" for name in ("wchan", "syscall"))
        lines.append(f"  thread {task.name} {read(task / 'comm')}: {state}, {waits}\n")
        lines += [f"      {frame}\n" for frame in read(task / "stack").splitlines()]
    return "".join(lines)


def ask_for_python_stacks(pid):
    """Only of those that handle the signal: others it would end."""
    caught = next((line for line in read(PROC / str(pid) / "status").splitlines() if line.startswith("SigCgt:")), None)
    if caught is None or not int(caught.split()[1], 16) & 1 << (signal.SIGUSR1 - 1):
        return False
    try:
        os.kill(pid, signal.SIGUSR1)
    except ProcessLookupError:
        return False
    return True


def read(path):
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError as error:
        return f"({error.strerror})"


def output_of(*command):
    try:
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=10)
        return done.stdout + done.stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"({error})"
