"""What IPython calls when the extension is loaded and unloaded."""

from .interrupts import Interrupts
from .library import Library
from .magic import Magic
from .notice import Notice


class Extension:
    """The parts of the extension in one shell."""

    def __init__(self, shell):
        library = Library()
        self._shell = shell
        self._interrupts = Interrupts(library) if library.interrupt_on else None
        self._notice = Notice(library, shell) if library.waiting else None
        shell.register_magic_function(Magic(library), magic_kind="line", magic_name="gpushare")
        for event, callback in self._events():
            shell.events.register(event, callback)
        if self._interrupts:
            self._interrupts.arm()

    def close(self):
        for event, callback in self._events():
            self._shell.events.unregister(event, callback)
        if self._interrupts:
            self._interrupts.disarm()
        if self._notice:
            self._notice.close()

    def _events(self):
        return [("pre_run_cell", self._before), ("post_run_cell", self._after)]

    def _before(self, _info):
        if self._interrupts:
            self._interrupts.arm()
        if self._notice:
            self._notice.begin()

    def _after(self, _result):
        if self._interrupts:
            self._interrupts.rest()
        if self._notice:
            self._notice.end()


# The extension of this process's only shell, while it is loaded.
_loaded = None


def load_ipython_extension(shell):
    global _loaded
    if _loaded is None:
        _loaded = Extension(shell)


def unload_ipython_extension(_shell):
    global _loaded
    if _loaded is not None:
        _loaded.close()
        _loaded = None
