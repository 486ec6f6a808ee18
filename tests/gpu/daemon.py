"""The daemon under test, in a folder of its own, with the limit that keeps a real card safe."""

import contextlib
import json
import os
import select
import subprocess
import tempfile
import time
from pathlib import Path

START_LIMIT = 20
ANSWER_LIMIT = 10
# Memory of a user's sessions with a system's daemon.
SELF_SERVICE = "16GiB"


class DaemonFailed(Exception):
    pass


class Daemon:
    def __init__(self, stage, runtime, log):
        self.ctl, self.runtime, self.log = stage / "gpushare-ctl", runtime, log

    def tell(self, *words):
        """Runs gpushare-ctl; its stdout."""
        command = [self.ctl, "--runtime-dir", self.runtime, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_LIMIT)
        if done.returncode != 0:
            raise DaemonFailed(f"gpushare-ctl {' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def status(self):
        return json.loads(self.tell("status", "--json"))

    def gpu(self):
        return self.status()["gpus"][0]

    def session(self, name):
        """The session's view, or None."""
        return next((session for session in self.status()["sessions"] if session["name"] == name), None)

    def allocated(self, name):
        """Bytes that a session has allocated."""
        return sum(gpu["allocated_bytes"] for gpu in self.session(name)["gpus"])

    def used_mib(self, name):
        """What a session has allocated."""
        return self.allocated(name) >> 20

    def usage(self, name):
        """What a session has used so far."""
        (usage,) = json.loads(self.tell("usage", "--since", "1h", "--session", name, "--json"))
        return usage

    @contextlib.contextmanager
    def kept_session(self, name, memory):
        """A session that an administrator made, for as long as the block runs."""
        print(f"       {self.tell('session', 'create', name, '--memory', memory).strip()}", flush=True)
        yield name
        end = time.monotonic() + ANSWER_LIMIT
        while True:
            try:
                return self.tell("session", "delete", name)
            except DaemonFailed as failed:
                # The driver needs a moment for the memory of a process that has just ended.
                if "takes its memory back" not in str(failed) or time.monotonic() > end:
                    raise
            time.sleep(0.1)

    def set(self, *words):
        print(f"       {self.tell('set', *words).strip()}", flush=True)

    def freeze(self, session):
        """Freezes an idle session; the seconds that it took."""
        began = time.monotonic()
        self.tell("session", "freeze", session)
        return time.monotonic() - began

    def frost(self, session):
        """How far a session is frozen, and why it cannot be."""
        return json.loads(self.tell("explain", session, "--json"))["frost"]

    def handoff_since(self, moment, limit=10):
        """The last handoff, once one has ended that had not at a moment of time.monotonic() and no memory moves.

        The number of handoffs that a card counts does not tell, since it is of those of the lock: memory also leaves for a
        program that shares the lock already.
        """
        end = time.monotonic() + limit
        while True:
            asked = time.monotonic()
            (moves,) = self.status()["handoffs"]
            last = moves["last"]
            if moves["running"] is None and last is not None and asked - last["ago_ns"] / 1e9 > moment:
                return last["handoff"]
            if asked > end:
                raise DaemonFailed(f"no handoff ended within {limit} s")
            time.sleep(0.01)

    def wait_for_mode(self, mode, limit=10):
        """Waits until the card is shared this way; whether it came to that."""
        end = time.monotonic() + limit
        while self.gpu()["mode"] != mode:
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True


@contextlib.contextmanager
def running(
    stage,
    logs,
    managed_limit_mib,
    *,
    flags=(),
    environment=None,
    log_name="scheduler",
    log_filter="info",
    is_systems=False,
    owner=None,
    prefix=(),
):
    """A daemon for as long as the block runs: the user's own, that of the user `owner`, or the system's, with which all users may
    register sessions. It runs under the command `prefix`, if there is one."""
    log_path = logs / f"{log_name}.err"
    with tempfile.TemporaryDirectory(prefix="gpushare-") as folder, open(log_path, "ab") as log:
        ready, told = os.pipe()
        if owner is not None:
            os.chown(folder, owner, owner)
            os.fchown(told, owner, owner)
        whose = systems(Path(folder)) if is_systems else ["--user"]
        command = [*prefix, stage / "gpushare-scheduler", *whose, "--runtime-dir", folder, "--lock-dir", folder]
        command += ["--managed-limit", f"{managed_limit_mib}MiB", "--ready-fd", str(told), *flags]
        process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[told],
            env=clean_environment() | {"GPUSHARE_LOG": log_filter} | (environment or {}),
        )
        os.close(told)
        try:
            heard = select.select([ready], [], [], START_LIMIT)[0] and os.read(ready, 1)
            if not heard:
                raise DaemonFailed(f"the scheduler did not start; see {log_path}")
            yield Daemon(stage, Path(folder), log_path)
        finally:
            os.close(ready)
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def systems(folder):
    """The flags of a system's daemon in a folder that all users can read."""
    folder.chmod(0o755)
    config = folder / "config.toml"
    config.write_text(f'[self_service]\nmax_memory = "{SELF_SERVICE}"\n')
    return ["--system", "--config", config, "--state-dir", folder / "state", "--metrics", "off"]


def clean_environment():
    """This process' environment without anything of gpushare in it."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith("GPUSHARE_") and name != "LD_PRELOAD"
    }
