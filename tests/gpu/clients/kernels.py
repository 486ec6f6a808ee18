"""A program of kernels that record when they ran, on the card's own clock. No PyTorch: the driver API by ctypes.

    kernels.py --in-flight 6     prints {"ready": true}, then obeys `loop SECONDS`: kernels without a pause, so many in flight
                                 at most

A kernel does a fixed amount of arithmetic on every multiprocessor. How much takes MILLISECONDS is measured at the start, when
nobody else should work. The answer to an order has all its kernels, in nanoseconds of %globaltimer, which all processes share:
{"kernels": [[begin, end, [[paused, resumed], ...]], ...]}. A pause is a hole of PAUSE_NS or more in the middle of a kernel, seen
by the thread that records: the driver ran another program.

The driver compiles the PTX below, so neither NVRTC nor nvcc is needed.
"""

import argparse
import ctypes
import time

from obey import orders, say

MILLISECONDS = 1.6
PAUSE_NS = 50_000
# Of one kernel; later ones are not recorded.
PAUSES = 6
# In words of eight bytes: begin, end, number of pauses, and two for each pause.
RECORD = 16
# Kernels of one order.
CAPACITY = 8192
THREADS = 256
WARMUP_KERNELS, WARMUP_CHUNKS = 100, 500

DISABLE_TIMING = 2
MULTIPROCESSOR_COUNT = 16

# One chunk is a thousand multiplications, one after the other: a few microseconds. The result never is -1, but the compiler
# cannot know that, so it keeps the arithmetic.
PTX = f"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry work(.param .u64 record, .param .u64 chunks) {{
    .reg .pred %records, %paused, %free, %more;
    .reg .b32 %thread, %block, %step;
    .reg .b64 %at, %left, %now, %last, %hole, %pauses, %slot;
    .reg .f32 %x;
    ld.param.u64 %at, [record];
    ld.param.u64 %left, [chunks];
    mov.u32 %thread, %tid.x;
    mov.u32 %block, %ctaid.x;
    or.b32 %thread, %thread, %block;
    setp.eq.u32 %records, %thread, 0;
    cvt.rn.f32.u32 %x, %thread;
    mov.u64 %pauses, 0;
    mov.u64 %last, %globaltimer;
    @%records st.global.u64 [%at], %last;
chunk:
    mov.u32 %step, 0;
multiply:
    fma.rn.f32 %x, %x, 0f3F7FFFFE, 0f3F800000;
    add.u32 %step, %step, 1;
    setp.lt.u32 %more, %step, 1000;
    @%more bra multiply;
    mov.u64 %now, %globaltimer;
    sub.u64 %hole, %now, %last;
    setp.ge.u64 %paused, %hole, {PAUSE_NS};
    setp.lt.u64 %free, %pauses, {PAUSES};
    and.pred %paused, %paused, %free;
    and.pred %paused, %paused, %records;
    @!%paused bra next;
    shl.b64 %slot, %pauses, 4;
    add.u64 %slot, %slot, %at;
    st.global.u64 [%slot+24], %last;
    st.global.u64 [%slot+32], %now;
    add.u64 %pauses, %pauses, 1;
next:
    mov.u64 %last, %now;
    sub.u64 %left, %left, 1;
    setp.ne.u64 %more, %left, 0;
    @%more bra chunk;
    @%records st.global.u64 [%at+8], %now;
    @%records st.global.u64 [%at+16], %pauses;
    setp.eq.f32 %more, %x, 0fBF800000;
    @%more st.global.f32 [%at], %x;
    ret;
}}
"""


class Driver:
    """The functions of libcuda, by name."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")

    def call(self, name, *arguments):
        if error := getattr(self.library, name)(*arguments):
            raise SystemExit(f"{name} failed with {error}")

    def made(self, name, *arguments):
        """The handle that a function returns through its first argument."""
        handle = ctypes.c_void_p()
        self.call(name, ctypes.byref(handle), *arguments)
        return handle


class Kernels:
    def __init__(self, in_flight):
        self.in_flight, self.driver = in_flight, Driver()
        driver, processors = self.driver, ctypes.c_int()
        driver.call("cuInit", 0)
        driver.call("cuCtxSetCurrent", driver.made("cuDevicePrimaryCtxRetain", 0))
        driver.call("cuDeviceGetAttribute", ctypes.byref(processors), MULTIPROCESSOR_COUNT, 0)
        self.blocks = processors.value
        self.work = driver.made("cuModuleGetFunction", driver.made("cuModuleLoadData", PTX.encode()), b"work")
        self.records = driver.made("cuMemAlloc_v2", ctypes.c_size_t(CAPACITY * RECORD * 8)).value
        self.events = [driver.made("cuEventCreate", DISABLE_TIMING) for _ in range(in_flight)]
        self.chunks = WARMUP_CHUNKS
        for number in range(WARMUP_KERNELS):
            self.launch(number)
        begin, end, _ = self.read(WARMUP_KERNELS)[-1]
        self.chunks = max(1, round(WARMUP_CHUNKS * MILLISECONDS * 1e6 / (end - begin)))

    def launch(self, number):
        """Launches a kernel after a wait for the one that is `in_flight` before it."""
        event = self.events[number % self.in_flight]
        if number >= self.in_flight:
            self.driver.call("cuEventSynchronize", event)
        values = ctypes.c_uint64(self.records + number * RECORD * 8), ctypes.c_uint64(self.chunks)
        addresses = (ctypes.c_void_p * 2)(*map(ctypes.addressof, values))
        self.driver.call("cuLaunchKernel", self.work, self.blocks, 1, 1, THREADS, 1, 1, 0, None, addresses, None)
        self.driver.call("cuEventRecord", event, None)

    def read(self, count):
        """The records of the first kernels, once all have ended."""
        self.driver.call("cuCtxSynchronize")
        words = (ctypes.c_uint64 * (count * RECORD))()
        self.driver.call("cuMemcpyDtoH_v2", words, ctypes.c_uint64(self.records), ctypes.c_size_t(ctypes.sizeof(words)))
        return [record(words[at : at + RECORD]) for at in range(0, len(words), RECORD)]

    def loop(self, seconds):
        number, end = 0, time.monotonic() + seconds
        while number < CAPACITY and (number == 0 or time.monotonic() < end):
            self.launch(number)
            number += 1
        return {"kernels": self.read(number)}


def record(words):
    """[begin, end, pauses] of one kernel."""
    begin, end, pauses, *times = words
    return [begin, end, [times[at : at + 2] for at in range(0, 2 * pauses, 2)]]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--in-flight", type=int, default=6)
    args = parser.parse_args()

    program = Kernels(args.in_flight)
    say(ready=True, chunks=program.chunks, blocks=program.blocks)
    for word, *values in orders():
        if word != "loop":
            raise SystemExit(f"{word}: expected `loop SECONDS`")
        say(**program.loop(float(values[0])))


if __name__ == "__main__":
    main()
