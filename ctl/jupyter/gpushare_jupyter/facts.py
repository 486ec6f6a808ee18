"""Facts about this kernel's session, from the daemon by way of `gpushare-ctl own --json`."""

import json
import os
import shutil
import subprocess

# Longest wait for an answer of the daemon, in seconds.
PATIENCE = 20


class Unavailable(Exception):
    """No answer, with the reason in one sentence."""


def own(*flags):
    """The session of this process and its wait, after a change that the flags ask for."""
    program = os.environ.get("GPUSHARE_CTL") or shutil.which("gpushare-ctl")
    if not program:
        raise Unavailable("gpushare-ctl is not in PATH; add its folder, or set GPUSHARE_CTL to its path")
    # The tool needs no GPU.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    try:
        done = subprocess.run(
            [program, "own", "--json", *flags],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=PATIENCE,
            # Ctrl-C is for the cell.
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{program} gave no answer: {error}") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise Unavailable(said.split("gpushare-ctl: ", 1)[-1] or f"{program} ended with {done.returncode}")
    return json.loads(done.stdout)


def size(count):
    """A number of bytes as gpushare writes it, like 20GiB."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f}".rstrip("0").rstrip(".") + name
    return f"{count}B"


def span(nanoseconds):
    """A duration with the precision that a person needs."""
    seconds = nanoseconds / 1e9
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min"
