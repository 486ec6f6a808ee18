"""Programs that are frozen and come back on a real card: one of the driver API on the backends `remap` and `native`, and PyTorch. With
daemons of other rights also programs of other users and with process numbers of their own, as containers have them.

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
# The unit of systemd, with whose capabilities a daemon of the system runs.
UNIT = Path(__file__).resolve().parents[3] / "scheduler" / "systemd" / "gpushare-scheduler.service"
# Which processes a process may read, by the kernel's module Yama.
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


def bounded(*capabilities):
    """The command under which root has no other capabilities."""
    return ("setpriv", "--no-new-privs", "--bounding-set", ",".join(["-all", *(f"+{name}" for name in capabilities)]))


def of_the_unit():
    """The capabilities of a daemon that systemd starts."""
    (names,) = re.findall(r"^CapabilityBoundingSet=(.*)$", UNIT.read_text(), re.MULTILINE)
    return [name.removeprefix("CAP_").lower() for name in names.split()]


# Commands under which a program is another user's, or has process numbers of its own. That user has no capabilities.
OTHER = 1000
USER = ("setpriv", "--reuid", str(OTHER), "--regid", str(OTHER), "--clear-groups")
CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
# What the common runtimes of containers leave root by default. The unit lacks some of it.
OF_RUNTIMES = (
    *("chown", "dac_override", "fsetid", "fowner", "mknod", "net_raw", "setgid", "setuid", "setfcap", "setpcap"),
    *("net_bind_service", "sys_chroot", "kill", "audit_write"),
)
# Programs, by what they are under.
STRANGERS = {
    "user": USER,
    "container": CONTAINER,
    "user-in-container": CONTAINER + USER,
    "root-of-a-runtime": CONTAINER + bounded(*OF_RUNTIMES),
}
# Daemons, by what they may do, and the programs that each of them freezes. The least one may only become another user.
DAEMONS = {
    "unit": (bounded(*of_the_unit()), STRANGERS),
    "least": (bounded("setuid", "setgid"), ("user", "user-in-container")),
    "users": (USER, ("user",)),
}


def run(stand):
    nvml = Nvml()
    with stand.daemon(environment=ENVIRONMENT) as daemon, stand.programs(daemon) as programs:
        for backend in ("remap", "native"):
            of_the_driver(stand, daemon, programs, nvml, backend)
        of_pytorch(stand, daemon, programs, nvml)
    of_strangers(stand, nvml)
    nvml.close()


def of_strangers(stand, nvml):
    """Programs that a daemon's helper reaches with few capabilities, or with none."""
    scope = YAMA.read_text().strip() if YAMA.exists() else "none"
    stand.figures.row("freezing: Yama's ptrace_scope", scope)
    for whose, (rights, strangers) in DAEMONS.items():
        may = [name for name in strangers if may_run(stand, rights) and may_run(stand, STRANGERS[name])]
        for name in sorted(set(strangers) - set(may)):
            why = "not run: it needs root, setpriv, unshare, and a stage that all users can read"
            stand.figures.row(f"freezing: {whose}, {name}", why)
        if may:
            of_daemon(stand, nvml, whose, rights, may)


def of_daemon(stand, nvml, whose, rights, strangers):
    """Programs that one daemon freezes: the system's, or that of the other user."""
    owner = {"owner": OTHER} if rights == USER else {"is_systems": True}
    with stand.daemon(environment=ENVIRONMENT, log_name=f"scheduler-{whose}", prefix=rights, **owner) as daemon:
        with stand.programs(daemon) as programs:
            for name in strangers:
                for backend in ("remap", "native"):
                    of_the_driver(stand, daemon, programs, nvml, backend, f"freezing-{whose}-{name}", STRANGERS[name])


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
