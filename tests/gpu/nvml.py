"""What NVML says is used of the card, asked often enough to see memory come back. It only asks."""

import contextlib
import ctypes
import threading
import time

INTERVAL = 0.0005


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class NvmlFailed(Exception):
    pass


class Nvml:
    """The first card."""

    def __init__(self):
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._call("nvmlInit_v2")
        self._card = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(0), ctypes.byref(self._card))

    def used(self):
        memory = Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._card, ctypes.byref(memory))
        return memory.used

    def close(self):
        self._call("nvmlShutdown")

    def _call(self, name, *arguments):
        if error := getattr(self._library, name)(*arguments):
            raise NvmlFailed(f"{name} answered {error}")


@contextlib.contextmanager
def watched(nvml):
    """Samples of (time, bytes used), taken while the block runs."""
    samples, stop = [], threading.Event()

    def look():
        while not stop.is_set():
            used = nvml.used()
            samples.append((time.time(), used))
            time.sleep(INTERVAL)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()
