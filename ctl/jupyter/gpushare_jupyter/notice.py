"""Line under a cell that waits for the card: for how long, how many are before it, about how long still."""

import sys
import threading
import uuid

from . import facts

# Pause between two looks at the library while a cell runs, in seconds. A look costs less than a microsecond.
LOOK = 0.2
# Length of a wait after which a line appears, and the pause between two questions to the daemon, in seconds.
SHOW_AFTER = 1.0
ASK_EVERY = 2.0


def words(waited, wait):
    """The line for a wait of so many nanoseconds; `wait` is the daemon's answer, None without one."""
    line = f"waiting for the GPU for {facts.span(waited)}"
    if wait is None:
        return line
    ahead = wait["ahead"]
    if ahead:
        line += f", {ahead} before this notebook"
        if wait["own"]:
            line += f" (of yours: {', '.join(wait['own'])})"
    elif wait["own"]:
        line += f", next after {', '.join(wait['own'])}"
    if wait["about_ns"] is not None:
        line += f", about {facts.span(wait['about_ns'])} still"
    return line


class Notice:
    """Watches one cell at a time from a thread of its own."""

    def __init__(self, library, shell, own=facts.own):
        self._library, self._shell, self._own = library, shell, own
        self._changed = threading.Condition()
        # Number of the present cell; None between cells.
        self._cell = None
        self._count = 0
        self._line = None
        self._thread = None
        self._ended = False

    def begin(self):
        """A cell begins."""
        with self._changed:
            self._count += 1
            self._cell, self._line = self._count, Line(self._shell)
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="gpushare-notice", daemon=True)
            self._thread.start()

    def end(self):
        """The cell is over."""
        with self._changed:
            self._cell = None

    def close(self):
        with self._changed:
            self._ended, self._cell = True, None
            self._changed.notify()

    def _watch(self):
        while True:
            with self._changed:
                while self._cell is None and not self._ended:
                    self._changed.wait()
                if self._ended:
                    return
                cell, line = self._cell, self._line
            self._follow(cell, line)

    def _follow(self, cell, line):
        pause, last, asked = threading.Event(), 0, None
        while self._cell == cell:
            waited = self._library.waiting()
            if waited >= SHOW_AFTER * 1e9:
                if asked is None or waited - asked >= ASK_EVERY * 1e9:
                    asked = waited
                    line.show(words(waited, self._wait()))
                last = waited
            elif last:
                line.show(f"waited {facts.span(last)} for the GPU")
                last, asked = 0, None
            pause.wait(LOOK)
        if last:
            line.show(f"waited {facts.span(last)} for the GPU")

    def _wait(self):
        try:
            return self._own()["wait"]
        except (facts.Unavailable, KeyError):
            return None


class Line:
    """One line under a cell, which later ones replace."""

    def __init__(self, shell):
        self._kernel, self._topic = getattr(shell, "kernel", None), getattr(shell.display_pub, "topic", None)
        self._parent = self._kernel.get_parent("shell") if self._kernel else None
        self._id = uuid.uuid4().hex
        self._shown = False

    def show(self, text):
        kernel, kind = self._kernel, "update_display_data" if self._shown else "display_data"
        self._shown = True
        if kernel is None:
            print(text, file=sys.stderr)
            return
        # The message names its cell, which the display functions find only in the cell's own thread.
        kernel.session.send(
            kernel.iopub_socket,
            kind,
            {"data": {"text/plain": text}, "metadata": {}, "transient": {"display_id": self._id}},
            parent=self._parent,
            ident=self._topic,
        )
