"""Programs under test: started alone or by gpushare-ctl, told by lines on stdin, heard by JSON lines on stdout.

Every one runs under `timeout -k 5`. Whoever does not answer in time is a hang: what everybody was waiting for is
written down (hang.py), and the group ends.
"""

import json
import queue
import subprocess
import sys
import threading
from pathlib import Path

import hang
from daemon import clean_environment

CLIENTS = Path(__file__).resolve().parent / "clients"
LIFE_LIMIT = 400
ANSWER_LIMIT = 90


class ProgramFailed(Exception):
    pass


def client(script, *arguments):
    """The command of one of our PyTorch programs."""
    return [sys.executable, CLIENTS / script, *arguments]


class Program:
    """One running program."""

    def __init__(self, programs, name, process, log, is_checked):
        self.programs, self.name, self.process, self.log = programs, name, process, log
        # Whether work that is in flight while memory leaves is a mistake of gpushare's.
        self.is_checked = is_checked
        # Whether it is left alone if it has not ended.
        self.is_spared = False
        self.lines = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def tell(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._failed(f"was gone when told `{line}`") from None

    def hear(self, limit=ANSWER_LIMIT):
        """The next line of JSON. Other lines are skipped: libraries print as they like."""
        while True:
            line = self._line(limit)
            if line is None:
                raise self._failed("ended without an answer")
            if line.startswith("{"):
                return json.loads(line)

    def ask(self, line, limit=ANSWER_LIMIT):
        self.tell(line)
        return self.hear(limit)

    def finish(self, limit=ANSWER_LIMIT):
        """Closes its stdin and waits for its end; the last line of JSON it had not been heard of, or None."""
        self.process.stdin.close()
        last = None
        while (line := self._line(limit)) is not None:
            if line.startswith("{"):
                last = json.loads(line)
        if self.process.wait(timeout=10) != 0:
            raise self._failed("failed at its end")
        return last

    def result(self, limit=ANSWER_LIMIT):
        """The answer of a program that ends by itself."""
        last = self.finish(limit)
        if last is None:
            raise self._failed("said nothing")
        return last

    def missed(self):
        """Whether it was told that its work was in flight while gpushare took it for idle."""
        return "gpushare: paranoid: " in self.log.read_text(errors="replace")

    def end(self):
        """Ends it, however it is; `timeout` passes the signal on, and follows with SIGKILL."""
        if self.process.poll() is None and not self.is_spared:
            self.process.terminate()
            try:
                self.process.wait(timeout=8)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def _line(self, limit):
        try:
            return self.lines.get(timeout=self.programs.stand.deadline.at_most(limit))
        except queue.Empty:
            report = self.programs.report_hang(self)
            raise ProgramFailed(f"{self.name} did not answer; what everybody waited for is in {report}") from None

    def _failed(self, how):
        self.end()
        tail = self.log.read_text(errors="replace")[-1500:].strip()
        return ProgramFailed(f"{self.name} {how} (exit code {self.process.returncode}); its stderr ends:\n{tail}")


class Programs:
    """The programs of one group; all end with the block."""

    def __init__(self, stand, daemon=None):
        self.stand, self.daemon, self.running = stand, daemon, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for program in self.running:
            program.end()
        for program in self.running:
            if program.is_checked:
                self.stand.figures.check(f"{program.name}: no work was in flight while memory left", not program.missed())

    def start(
        self,
        name,
        command,
        *,
        shared,
        memory=None,
        session=None,
        backend=None,
        options=(),
        environment=None,
        paranoid=True,
        prefix=(),
    ):
        """Starts a program: `shared` by gpushare-ctl, with a quota of `memory` or in a `session` that there is, by a
        memory `backend` or the suite's own, and more `options` of `run`; else it meets the driver alone. Moves of remapped
        memory are checked unless their time is measured (`paranoid`). All of it runs under `prefix`, such as `setpriv`."""
        inner = ["timeout", "-k", "5", str(LIFE_LIMIT), *command]
        # On a machine with several cards, too, all share one unless they say otherwise.
        values = clean_environment() | {"PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": "0"} | (environment or {})
        paranoid = paranoid and shared and (backend or self.stand.backend) == "remap"
        if shared:
            values |= {"GPUSHARE_RUNTIME_DIR": str(self.daemon.runtime), "GPUSHARE_SUMMARY": "1"}
            quota = ["--memory", memory] if memory else []
            whose = ["--session", session] if session else ["--name", name, *quota]
            whose += ["--backend", backend or self.stand.backend]
            whose += ["--paranoid"] if paranoid else []
            inner = [self.stand.stage / "gpushare-ctl", "run", *whose, *options, "--", *inner]
        inner = list(map(str, [*prefix, *inner]))
        self.stand.figures.command(name, inner)
        log = self.stand.logs / f"{name}.err"
        with open(log, "ab") as stderr:
            process = subprocess.Popen(
                inner, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True, env=values
            )
        program = Program(self, name, process, log, paranoid)
        self.running.append(program)
        return program

    def report_hang(self, culprit):
        path = self.stand.logs / f"hang-{culprit.name}.txt"
        path.write_text(
            hang.report(self.daemon, [program for program in self.running if program.process.poll() is None])
        )
        return f"logs/{path.name}"


def ask_together(asked, limit=ANSWER_LIMIT):
    """Tells several programs at once, then hears them all."""
    for program, line in asked:
        program.tell(line)
    return [program.hear(limit) for program, _ in asked]
