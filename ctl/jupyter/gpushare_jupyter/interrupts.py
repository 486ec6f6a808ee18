"""Ctrl-C while a cell waits for the card.

Python's own handler of SIGINT writes the signal's number into a descriptor (`signal.set_wakeup_fd`). It is a
pipe here, which a thread of libgpushare.so reads: all calls that wait for the card then fail, in any thread.
That thread needs no lock of the interpreter, so Ctrl-C works also in a call that holds it. Python raises
KeyboardInterrupt as soon as the main thread is back. Until then no new wait begins: PyTorch may try a failed
call in another way. From then on one may, as in an `except` block.
"""

import os
import signal


class Interrupts:
    """The pipe between Python's signal handler and libgpushare.so."""

    def __init__(self, library):
        self._library = library
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        # Descriptor that was set before, which gets all signals after us; -1 for none.
        self._next = -1
        # Handler of SIGINT that ours calls, while ours is set.
        self._handler = None
        os.register_at_fork(after_in_child=self._in_child)

    def arm(self):
        """Makes Ctrl-C end waits, also if another package has taken Python's descriptor meanwhile."""
        if self._writer is None:
            return
        try:
            before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        except ValueError:
            return  # Not the main thread.
        if before != self._writer:
            self._next = before
        # Also forgets a Ctrl-C that met no wait: it was for the last cell.
        self._library.interrupt_on(self._reader, signal.SIGINT, self._next)
        handler = signal.getsignal(signal.SIGINT)
        if self._library.interrupt_over and callable(handler) and handler != self._heard:
            self._handler = handler
            signal.signal(signal.SIGINT, self._heard)

    def rest(self):
        """Gives the handler of SIGINT back, at the end of a cell."""
        if self._handler and signal.getsignal(signal.SIGINT) == self._heard:
            signal.signal(signal.SIGINT, self._handler)
        self._handler = None

    def _heard(self, number, frame):
        self._library.interrupt_over()
        return self._handler(number, frame)

    def disarm(self):
        """Gives Python's descriptor back, and ends the library's thread."""
        if self._writer is None:
            return
        self.rest()
        if signal.set_wakeup_fd(-1) == self._writer and self._next >= 0:
            signal.set_wakeup_fd(self._next, warn_on_full_buffer=False)
        os.close(self._writer)
        os.close(self._reader)
        self._writer = None

    def _in_child(self):
        # The signals of a forked child would end the waits of its parent.
        if self._writer is None:
            return
        try:
            before = signal.set_wakeup_fd(-1)
            if before != self._writer:
                signal.set_wakeup_fd(before, warn_on_full_buffer=False)
        except ValueError:
            pass
        self._writer = None
