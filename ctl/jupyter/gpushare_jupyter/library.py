"""Functions of libgpushare.so, which `gpushare-ctl run` has loaded into this process."""

import ctypes


class Library:
    """The functions that the extension calls; each is None where the library is missing or older."""

    def __init__(self):
        self._all = ctypes.CDLL(None)
        self.version = self._version()
        self.interrupt_on = self._function("gpushare_interrupt_on", ctypes.c_int, [ctypes.c_int] * 3)
        self.interrupt_over = self._function("gpushare_interrupt_over", ctypes.c_int, [])
        self.waiting = self._function("gpushare_waiting", ctypes.c_uint64, [])
        self.release = self._function("gpushare_release", ctypes.c_int, [])

    @property
    def is_loaded(self):
        return self.version is not None

    def _version(self):
        """Version of the library, which every release states; None without the library."""
        try:
            text = (ctypes.c_char * 64).in_dll(self._all, "gpushare_version")
        except ValueError:
            return None
        return bytes(text).split(b"\0", 1)[0].decode(errors="replace")

    def _function(self, name, result, arguments):
        try:
            function = getattr(self._all, name)
        except AttributeError:
            return None
        function.restype, function.argtypes = result, arguments
        return function
