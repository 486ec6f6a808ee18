"""Programs that are frozen and come back on a real card: one of the driver API on the backends `remap` and `native`, and PyTorch. With
a daemon of the system also programs of another user and with process numbers of their own, as containers have them.

    freeze ──▶ NVML shows at most 4 MiB of it ──▶ its next call waits for the thaw ──▶ right values ──▶ again ──▶ it ends by itself

Nobody kills a process that the driver has restored: that hung a machine elsewhere. A program that must be given up is frozen
first, and left alone if that fails.
"""

import contextlib
import os
import re
import statistics
import subprocess
import time
from pathlib import Path

from daemon import DaemonFailed
from nvml import Nvml
from programs import client

NEEDS = 180

MIB = 1 << 20
HELD_MIB = 1024
ROUNDS = 5
# What a frozen process leaves on the card, and what NVML's figure may be off.
LEFT_MIB, SLACK_MIB = 4, 4
# The daemon freezes with any driver here: with which ones it works is what this group finds out.
ENVIRONMENT = {"GPUSHARE_FREEZE_UNTRIED": "1"}
# Commands under which a program is another user's, or has process numbers of its own.
USER = ("setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups")
CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
# The unit of systemd, with whose capabilities the daemon runs.
UNIT = Path(__file__).resolve().parents[3] / "scheduler" / "systemd" / "gpushare-scheduler.service"
STRANGERS = {"user": USER, "container": CONTAINER, "user-in-container": CONTAINER + USER}


def run(stand):
    nvml = Nvml()
    with stand.daemon(environment=ENVIRONMENT) as daemon, stand.programs(daemon) as programs:
        for backend in ("remap", "native"):
            of_the_driver(stand, daemon, programs, nvml, backend)
        of_pytorch(stand, daemon, programs, nvml)
    of_strangers(stand, nvml)
    nvml.close()


def of_strangers(stand, nvml):
    """Programs of other users and in other namespaces, which the daemon's helper reaches with the capabilities of the unit."""
    unit = of_the_unit()
    strangers = {name: prefix for name, prefix in STRANGERS.items() if may_run(stand, unit) and may_run(stand, prefix)}
    for name in STRANGERS.keys() - strangers.keys():
        stand.figures.row(f"freezing: {name}", "not run: it needs root, setpriv, unshare, and a stage that all users can read")
    if not strangers:
        return
    with stand.daemon(environment=ENVIRONMENT, is_systems=True, log_name="scheduler-system", prefix=unit) as daemon:
        with stand.programs(daemon) as programs:
            for name, prefix in strangers.items():
                for backend in ("remap", "native"):
                    of_the_driver(stand, daemon, programs, nvml, backend, f"freezing-{name}", prefix)


def of_the_unit():
    """The command under which root has no other capabilities than a daemon that systemd starts."""
    (names,) = re.findall(r"^CapabilityBoundingSet=(.*)$", UNIT.read_text(), re.MULTILINE)
    left = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in names.split())
    return ("setpriv", "--no-new-privs", "--bounding-set", f"-all,{left}")


@contextlib.contextmanager
def frozen_in_the_end(daemon, program, session):
    """Freezes a program that did not end by itself, as the block has failed, or leaves it alone."""
    try:
        yield
    except BaseException:
        program.is_spared = not froze(daemon, session)
        raise


def froze(daemon, session):
    """Tries to freeze a session; whether it is frozen."""
    try:
        daemon.freeze(session)
        return daemon.frost(session)["stage"] == "frozen"
    except (DaemonFailed, subprocess.TimeoutExpired):
        return False


def may_run(stand, prefix):
    """Whether a program of the stage runs under a command here."""
    command = [*prefix, stand.stage / "gpushare-ctl", "--version"]
    try:
        return os.geteuid() == 0 and subprocess.run(command, capture_output=True, timeout=10).returncode == 0
    except FileNotFoundError:
        return False


def of_the_driver(stand, daemon, programs, nvml, backend, whose="freezing", prefix=()):
    name = f"{whose}-{backend}"
    before = nvml.used()
    command = stand.workload("hold")
    program = programs.start(
        name, command, shared=True, memory=f"{2 * HELD_MIB}MiB", backend=backend, paranoid=False, prefix=prefix
    )
    program.hear()
    with frozen_in_the_end(daemon, program, name):
        took = [program.ask(line)["ok"] for line in (f"alloc a {HELD_MIB}MiB", "fill a 7", "sync")]
        stand.figures.check(f"{name}: its memory is filled", all(took), took)
        rounds(stand, daemon, nvml, before, name, lambda: program.ask("check a 7").get("matches"))
        program.finish()


def of_pytorch(stand, daemon, programs, nvml):
    name = "freezing-pytorch"
    before = nvml.used()
    program = programs.start(name, client("holder.py"), shared=True, backend="remap", paranoid=False)
    program.hear()
    with frozen_in_the_end(daemon, program, name):
        program.ask(f"hold {HELD_MIB}")

        def is_right():
            program.ask("step")
            return program.ask("check")["right"]

        rounds(stand, daemon, nvml, before, name, is_right)
        program.finish()


def rounds(stand, daemon, nvml, before, name, is_right):
    """Freezes a session and asks its program for its values, several times."""
    figures, freezes, answers, left = stand.figures, [], [], []
    held = (nvml.used() - before) / MIB
    figures.check(f"{name}: it has its memory on the card", held >= HELD_MIB, f"{held:.0f} MiB")
    figures.equal(f"{name}: nothing keeps it from being frozen", daemon.frost(name)["obstacle"], None)
    for number in range(ROUNDS):
        freezes.append(daemon.freeze(name))
        figures.equal(f"{name} {number}: it is frozen", daemon.frost(name)["stage"], "frozen")
        left.append((nvml.used() - before) / MIB)
        stays = f"{name} {number}: at most {LEFT_MIB} MiB stay on the card, and {SLACK_MIB} by which NVML may be off"
        figures.check(stays, left[-1] <= LEFT_MIB + SLACK_MIB, f"{left[-1]:.1f} MiB")
        began = time.monotonic()
        figures.check(f"{name} {number}: its values are right", is_right())
        answers.append(time.monotonic() - began)
    seconds = lambda times: f"{statistics.median(times):.2f} s, {max(times):.2f} s"
    figures.sample(name, {"held_mib": held, "left_mib": left, "freezes": freezes, "answers": answers})
    figures.row(f"{name}: on the card, frozen", f"{held:.0f} MiB, at most {max(left):.1f} MiB")
    figures.row(f"{name}: freeze, median and longest of {ROUNDS}", seconds(freezes))
    figures.row(f"{name}: the next answer, median and longest of {ROUNDS}", seconds(answers))
