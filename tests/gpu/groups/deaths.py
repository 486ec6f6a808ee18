"""`kill -9` of a program that holds its session's whole quota, on each backend: how long until the daemon knows, until a sibling
can have the quota, until the driver has the memory back; and of one that holds the lock: how long until a waiter goes on. Last of one
that forked a child, which has the card's files open: what it had is its session's until the child ends.

    SIGKILL ──▶ the kernel hangs up its socket ──▶ the daemon's record `process.leave` ──▶ a sibling's allocation is not refused
       │                                                                 └──▶ `lock.grant` ──▶ the waiter's work is done
       └──▶ the driver takes its context down ──▶ NVML's figure falls to what it was before

Times are of one clock, the system's: the daemon's records carry it.
"""

import datetime
import json
import os
import signal
import statistics
import time

import hang
from nvml import Nvml, watched

NEEDS = 40

MIB = 1 << 20
KILLS = 10
QUOTA_MIB, BLOCKS = 4096, 8
# The bound of a report; the driver's own time is only told.
REPORT_MS = 50
# What each of two has in turns: together more than may be resident.
WORK_MIB = 64
# What NVML's figure may be off from what it was.
SLACK = 64 * MIB
WAIT_LIMIT = 10
# Longer than a death takes, and than NVML's usual answer.
KEPT_SECONDS = 1.5


def run(stand):
    log = {"flags": ["--log-format", "json"], "log_name": "scheduler-deaths", "log_filter": "info,gpushare_scheduler=debug"}
    nvml = Nvml()
    with stand.daemon(**log) as daemon, stand.programs(daemon) as programs:
        for backend in stand.backends:
            with daemon.kept_session(f"deaths-{backend}", f"{QUOTA_MIB}MiB") as session:
                of_owners(stand, daemon, programs, nvml, session, backend)
                of_parents(stand, daemon, programs, nvml, session, backend)
        with daemon.kept_session("deaths-first", f"{QUOTA_MIB}MiB") as first, daemon.kept_session("deaths-second", "1GiB") as second:
            of_holders(stand, daemon, programs, first, second)
    nvml.close()


def of_owners(stand, daemon, programs, nvml, session, backend):
    figures, name = stand.figures, f"kill -9, --backend {backend}"
    sibling = start(stand, programs, session, "sibling", backend)
    sibling.ask("mem-info")
    times = {"report": [], "quota": [], "memory": []}
    for number in range(KILLS):
        before = nvml.used()
        victim = start(stand, programs, session, f"victim-{number}", backend)
        block = f"{QUOTA_MIB // BLOCKS}MiB"
        took = [victim.ask(f"{verb} b{number} {what}")["ok"] for number in range(BLOCKS) for verb, what in (("alloc", block), ("fill", 3))]
        victim.ask("sync")
        held = nvml.used() - before
        refused = sibling.ask("alloc mine 2MiB")
        whole = all(took) and not refused["ok"] and held >= QUOTA_MIB * MIB
        figures.check(f"{name} {number}: it held the whole quota on the card", whole, [took, refused, held])
        records = Records(daemon.log)
        with watched(nvml) as samples:
            pid, killed = kill(victim)
            quota = until(lambda: sibling.ask("alloc mine 2MiB")["ok"])
            back = until(lambda: samples and samples[-1][1] <= before + SLACK)
        report = records.until("process.leave", lambda record: record["pid"] == pid)
        sibling.ask("free mine")
        memory = next((at for at, used in samples if used <= before + SLACK), None)
        good = figures.check(f"{name} {number}: its report, its quota and its memory came", report and quota and back and memory)
        if good:
            for kind, at in (("report", report), ("quota", quota), ("memory", memory)):
                times[kind].append(1e3 * (at - killed))
    sibling.finish()
    figures.sample(name, times)
    row(figures, f"{name} → the daemon's report", times["report"], REPORT_MS)
    row(figures, f"{name} → a sibling has quota", times["quota"])
    row(figures, f"{name} → NVML has the memory back", times["memory"])


def of_parents(stand, daemon, programs, nvml, session, backend):
    figures, name = stand.figures, f"kill -9 of a parent, --backend {backend}"
    sibling = start(stand, programs, session, "sibling-of-parent", backend)
    sibling.ask("mem-info")
    before = nvml.used()
    parent = start(stand, programs, session, "parent", backend)
    took = [parent.ask(line)["ok"] for line in (f"alloc x {QUOTA_MIB - 64}MiB", "fill x 3", "sync")]
    child = parent.ask("fork")["pid"]
    pid = next(pid for pid in reversed(hang.family(parent.process.pid)) if pid != child)
    os.kill(pid, signal.SIGKILL)
    time.sleep(KEPT_SECONDS)
    kept = nvml.used() - before
    figures.check(f"{name}: the card keeps what it had", all(took) and kept >= (QUOTA_MIB - 64) * MIB, [took, kept])
    refused, rest = sibling.ask("alloc much 66MiB"), sibling.ask("alloc mine 64MiB")
    figures.check(f"{name}: its quota is not to be had, and the rest is", not refused["ok"] and rest["ok"], [refused, rest])
    (orphan,) = json.loads(daemon.tell("explain", session, "--json"))["orphaned"]
    figures.equal(f"{name}: explain says whose it was", [orphan["pid"], orphan["bytes"]], [pid, (QUOTA_MIB - 64) * MIB])
    os.kill(child, signal.SIGKILL)
    killed = time.time()
    back = until(lambda: sibling.ask("alloc much 66MiB")["ok"])
    if figures.check(f"{name}: its child's death gives it back", back, back):
        figures.row(f"{name} → its child's death gives the quota back", f"{1e3 * (back - killed):.0f} ms; NVML is asked every second")
    sibling.finish()


def of_holders(stand, daemon, programs, first, second):
    """In turns of ten minutes, which a small capacity forces: what ends one is its holder's death."""
    figures, name = stand.figures, "kill -9 of a lock's holder"
    daemon.set("capacity", f"{WORK_MIB + WORK_MIB // 2}MiB", "--gpu", "0")
    daemon.set("mode", "serialized")
    daemon.set("quantum", "10min")
    waiter = start(stand, programs, second, "waiter")
    waiter.ask(f"alloc w {WORK_MIB}MiB")
    times = {"grant": [], "done": []}
    for number in range(KILLS):
        waiter.ask("sync")
        holder = start(stand, programs, first, f"holder-{number}")
        # The waiter has nothing in flight and gives way; the holder's work will never end.
        ready = [holder.ask(line)["ok"] for line in (f"alloc h {WORK_MIB}MiB", "latch l", "fill h 3")]
        held = until(lambda: lock(daemon, first) == "holding")
        waiter.tell(f"fill w {number}")
        waits = until(lambda: lock(daemon, second) == "waiting")
        good = figures.check(f"{name} {number}: one holds, the other waits", all(ready) and held and waits, [ready, daemon.status()["sessions"]])
        records = Records(daemon.log)
        _, killed = kill(holder)
        answered, done = waiter.hear()["ok"], time.time()
        right = waiter.ask(f"check w {number}").get("matches")
        grant = records.until("lock.grant", lambda record: record["session"] == second)
        good = figures.check(f"{name} {number}: the waiter got the lock, and works", good and answered and right and grant) and good
        if good:
            times["grant"].append(1e3 * (grant - killed))
            times["done"].append(1e3 * (done - killed))
    waiter.finish()
    figures.sample(name, times)
    row(figures, f"{name} → the waiter's grant", times["grant"], REPORT_MS)
    row(figures, f"{name} → the waiter's launch has returned", times["done"])


def start(stand, programs, session, name, backend=None):
    program = programs.start(f"{session}-{name}", stand.workload("hold"), shared=True, session=session, backend=backend)
    program.hear()
    return program


def kill(program):
    """Kills the program that `timeout` runs; its pid, and when."""
    pid = hang.family(program.process.pid)[-1]
    now = time.time()
    os.kill(pid, signal.SIGKILL)
    return pid, now


def lock(daemon, session):
    """The word for what a session's lock does: some have values beside it."""
    said = daemon.session(session)["lock"]
    return said if isinstance(said, str) else next(iter(said))


def until(happened):
    """When it was first seen to have happened, or None."""
    end = time.monotonic() + WAIT_LIMIT
    while not happened():
        if time.monotonic() > end:
            return None
    return time.time()


class Records:
    """The daemon's log in JSON from here on."""

    def __init__(self, path):
        self.path, self.begin = path, path.stat().st_size

    def until(self, operation, matches):
        """When the daemon wrote the first record of this operation that matches, by its own clock; None if it does not."""
        end = time.monotonic() + WAIT_LIMIT
        while time.monotonic() < end:
            for record in self.all():
                if record.get("operation") == operation and matches(record):
                    return datetime.datetime.fromisoformat(record["timestamp"]).timestamp()
            time.sleep(0.01)
        return None

    def all(self):
        with open(self.path, "rb") as log:
            log.seek(self.begin)
            whole = log.read().rpartition(b"\n")[0]
        return [json.loads(line) for line in whole.splitlines() if line.startswith(b"{")]


def row(figures, name, times, bound=None):
    if not times:
        figures.row(name, "FAILED: nothing was measured")
        return
    said = f"median {statistics.median(times):.1f} ms, max {max(times):.1f} ms of {len(times)}"
    if bound is not None:
        figures.check(f"{name} within {bound} ms", max(times) <= bound, times)
        said += f"; bound {bound} ms"
    figures.row(name, said)
