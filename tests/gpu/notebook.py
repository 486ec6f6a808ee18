"""A notebook's kernel, driven by `jupyter_client` as Jupyter drives it: cells in, replies and shown texts out."""

import contextlib
import os
import queue
import time

# Longest time from a cell to its answer, in seconds. A kernel that still shows something gets no more.
PATIENCE = 60


class NotebookFailed(Exception):
    pass


def until(what, fact, limit=PATIENCE):
    """Waits for a fact, and returns it."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        found = fact()
        if found:
            return found
        time.sleep(0.01)
    raise NotebookFailed(f"never happened: {what}")


class Notebook:
    """A kernel, and what its cells showed. It ends with the block: it is killed, or ends by itself."""

    def __init__(self, number, kernel, environment=None, *, ends_by_itself=False, log=None):
        from jupyter_client import KernelManager

        self.number, self.ends_by_itself = number, ends_by_itself
        self.manager = KernelManager(kernel_name=kernel)
        # Without a file, what the kernel says on its standard error goes where this process's goes.
        self.log = log
        with open(log, "wb") if log else contextlib.nullcontext() as stderr:
            self.manager.start_kernel(env=dict(environment or os.environ), stderr=stderr)
        self.client = self.manager.client()
        self.pid = self.manager.provisioner.pid
        # Point in time of the last reply, by the kernel's clock, which is that of this machine.
        self.answered = None
        # What cells printed, and the displays under them, by the cell's message.
        self.printed, self.shown = {}, {}

    def __enter__(self):
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)
        return self

    def __exit__(self, *_):
        if not self.ends_by_itself:
            self.client.stop_channels()
            return self.manager.shutdown_kernel(now=True)
        # The manager's own way to end a kernel kills it after a while.
        self.manager.request_shutdown()
        self.client.stop_channels()
        until(f"notebook {self.number} ends", lambda: not self.manager.is_alive())
        self.manager.cleanup_resources()

    def missed(self):
        """Whether it was told that its work was in flight while gpushare took it for idle. The kernel may show that as a cell's."""
        said = self.log.read_text(errors="replace") if self.log else ""
        return "gpushare: paranoid: " in said + "".join(text for texts in self.printed.values() for text in texts)

    def send(self, code):
        """Gives the kernel a cell."""
        return self.client.execute(code, stop_on_error=False)

    def answer(self, cell):
        """The reply to the oldest cell without one, which must be this one, and what the cell printed."""
        end = time.monotonic() + PATIENCE
        reply = self.next_message("shell", end)
        # The client may have asked more than once whether the kernel is there.
        while reply["msg_type"] != "execute_reply":
            reply = self.next_message("shell", end)
        self.answered = reply["header"]["date"]
        if reply["parent_header"]["msg_id"] != cell:
            raise NotebookFailed(f"notebook {self.number} answered another cell first")
        ended = ("status", "idle", cell)
        self.listen(lambda kind, content, parent: (kind, content.get("execution_state"), parent) == ended)
        return reply["content"], "".join(self.printed.get(cell, []))

    def listen(self, done):
        """Reads what the kernel shows until `done`."""
        end = time.monotonic() + PATIENCE
        while True:
            message = self.next_message("iopub", end)
            kind, content = message["msg_type"], message["content"]
            parent = message["parent_header"].get("msg_id")
            if kind == "stream":
                self.printed.setdefault(parent, []).append(content["text"])
            elif kind in ("display_data", "update_display_data", "execute_result"):
                self.shown.setdefault(parent, []).append(content["data"]["text/plain"])
            if done(kind, content, parent):
                return content

    def next_message(self, channel, end):
        """The kernel's next message on a channel, which must come before `end`."""
        get = {"shell": self.client.get_shell_msg, "iopub": self.client.get_iopub_msg}[channel]
        try:
            return get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            shown = [texts[-1] for texts in self.shown.values()]
            raise NotebookFailed(f"notebook {self.number} did not answer within {PATIENCE} s; it shows {shown}") from None

    def run(self, code):
        """Runs a cell to its good end, and returns what it printed."""
        content, printed = self.answer(self.send(code))
        if content["status"] != "ok":
            raise NotebookFailed(f"notebook {self.number}: {code!r} ended with {content['ename']}: {content['evalue']}")
        return printed

    def result(self, code):
        """Runs a cell to its good end, and returns the last line that it printed."""
        return self.run(code).splitlines()[-1]

    def session(self, sessions):
        """The kernel's session among those of the daemon; None without one."""
        of = (one for one in sessions if any(client["pid"] == self.pid for client in one["clients"]))
        return next(of, None)


def holds(session):
    return isinstance(session["lock"], dict) and "holding" in session["lock"]


def waits(session):
    return any(client["waiting"] for client in session["clients"])


def interrupted(notebook, cell):
    """Interrupts a cell that waits; the reply, and the seconds until then."""
    began = time.monotonic()
    notebook.manager.interrupt_kernel()
    content, _ = notebook.answer(cell)
    return content, time.monotonic() - began
