"""The doors to memory of the CUDA runtime that PyTorch uses, and of the driver below it, as C functions. Nothing here knows
of gpushare. A door's `take` answers CUDA's error code and what was taken; `free` answers the error code."""

import ctypes
from ctypes import POINTER, byref, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass
from typing import Callable

MIB = 1 << 20
OUT_OF_MEMORY = 2
DEVICE_TO_HOST = 2
# Bytes of a row of rows, and of an array's row of float4.
ROW, ARRAY_ROW = 1024, 16 << 10
ARRAY_DEPTH = 256


class Extent(ctypes.Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("depth", c_size_t)]


class Pitched(ctypes.Structure):
    _fields_ = [("address", c_void_p), ("pitch", c_size_t), ("width", c_size_t), ("height", c_size_t)]


class Channels(ctypes.Structure):
    _fields_ = [("bits", c_int * 4), ("kind", c_int)]


class PoolProperties(ctypes.Structure):
    _fields_ = [("kind", c_int), ("handles", c_int), ("place", c_int * 2), ("rest", c_ulonglong * 9)]


class AllocationNode(ctypes.Structure):
    _fields_ = [
        ("pool", PoolProperties),
        ("access", c_void_p),
        ("access_count", c_size_t),
        ("bytes", c_size_t),
        ("address", c_void_p),
    ]


class HandleProperties(ctypes.Structure):
    _fields_ = [("kind", c_int), ("handles", c_int), ("place", c_int * 2), ("rest", c_ulonglong * 2)]


class Access(ctypes.Structure):
    _fields_ = [("place", c_int * 2), ("flags", c_int)]


FLOAT4 = Channels((c_int * 4)(32, 32, 32, 32), 2)
ON_THE_CARD = (1, 0)


@dataclass(frozen=True)
class Door:
    take: Callable
    free: Callable
    # The least that can be asked for, and the step in which more can be asked for.
    least: int = 1
    step: int = 1
    # Where the first byte is, of what can be written by address.
    address: Callable | None = lambda taken: taken


class Runtime:
    """The runtime that this process has loaded."""

    def __init__(self):
        with open("/proc/self/maps") as maps:
            path = next(line.split()[-1] for line in maps if "libcudart.so" in line)
        self.cuda, self.driver = ctypes.CDLL(path), ctypes.CDLL("libcuda.so.1")
        self._pool = None

    def forget_error(self):
        self.cuda.cudaGetLastError()

    def set_all(self, address, value, size):
        return self.cuda.cudaMemset(c_void_p(address), value, c_size_t(size))

    def byte_at(self, address):
        seen = (ctypes.c_ubyte * 1)()
        error = self.cuda.cudaMemcpy(seen, c_void_p(address), c_size_t(1), DEVICE_TO_HOST)
        return -error if error else seen[0]

    def doors(self):
        free = lambda address: self.cuda.cudaFree(c_void_p(address))
        end = lambda array: self.cuda.cudaFreeArray(c_void_p(array))
        rows, texels = dict(least=ROW, step=ROW), dict(least=ARRAY_ROW, step=2 * MIB, address=None)
        return {
            "cudaMalloc": Door(self.malloc, free),
            "cudaMallocManaged": Door(self.managed, free),
            "cudaMallocPitch": Door(self.pitch, free, **rows),
            "cudaMalloc3D": Door(self.solid, free, **rows),
            "cudaMallocAsync": Door(self.ordered, self.free_ordered),
            "cudaMallocFromPoolAsync": Door(self.from_pool, self.free_ordered),
            "cudaMallocArray": Door(self.array, end, **texels),
            "cudaMalloc3DArray": Door(self.solid_array, end, **texels | {"step": ARRAY_DEPTH * ARRAY_ROW}),
            "cudaGraphAddMemAllocNode": Door(self.in_graph, self.free_of_graph),
            "cuMemCreate": Door(self.handle, self.unmap, least=2 * MIB, step=2 * MIB, address=lambda taken: taken[0]),
        }

    def malloc(self, size):
        address = c_void_p()
        return self.cuda.cudaMalloc(byref(address), c_size_t(size)), address.value

    def managed(self, size):
        address = c_void_p()
        return self.cuda.cudaMallocManaged(byref(address), c_size_t(size), c_uint(1)), address.value

    def pitch(self, size):
        address, pitch = c_void_p(), c_size_t()
        error = self.cuda.cudaMallocPitch(byref(address), byref(pitch), c_size_t(ROW), c_size_t(size // ROW))
        return error, address.value

    def solid(self, size):
        made = Pitched()
        take = self.cuda.cudaMalloc3D
        take.argtypes = [POINTER(Pitched), Extent]
        return take(byref(made), Extent(ROW, size // ROW, 1)), made.address

    def ordered(self, size):
        address = c_void_p()
        return self.cuda.cudaMallocAsync(byref(address), c_size_t(size), None), address.value

    def from_pool(self, size):
        if self._pool is None:
            pool, properties = c_void_p(), PoolProperties(1, 0, ON_THE_CARD)
            if error := self.cuda.cudaMemPoolCreate(byref(pool), byref(properties)):
                return error, None
            self._pool = pool
        address = c_void_p()
        return self.cuda.cudaMallocFromPoolAsync(byref(address), c_size_t(size), self._pool, None), address.value

    def free_ordered(self, address):
        return self.cuda.cudaFreeAsync(c_void_p(address), None) or self.cuda.cudaStreamSynchronize(None)

    def array(self, size):
        made = c_void_p()
        take = self.cuda.cudaMallocArray
        return take(byref(made), byref(FLOAT4), c_size_t(1024), c_size_t(size // ARRAY_ROW), c_uint(0)), made.value

    def solid_array(self, size):
        """As many slices as fit a whole row each; what is small has one."""
        made = c_void_p()
        take = self.cuda.cudaMalloc3DArray
        take.argtypes = [POINTER(c_void_p), POINTER(Channels), Extent, c_uint]
        rows = size // ARRAY_ROW
        extent = Extent(1024, -(-rows // ARRAY_DEPTH), ARRAY_DEPTH) if rows >= ARRAY_DEPTH else Extent(1024, rows, 1)
        return take(byref(made), byref(FLOAT4), extent, 0), made.value

    def in_graph(self, size):
        """Memory of a graph that was launched and is not needed any more."""
        graph, node, ready = c_void_p(), c_void_p(), c_void_p()
        parameters = AllocationNode(pool=PoolProperties(1, 0, ON_THE_CARD), bytes=size)
        add, cuda = self.cuda.cudaGraphAddMemAllocNode, self.cuda
        if error := cuda.cudaGraphCreate(byref(graph), c_uint(0)):
            return error, None
        error = add(byref(node), graph, None, c_size_t(0), byref(parameters))
        if error:
            cuda.cudaGraphDestroy(graph)
            return error, None
        error = (
            cuda.cudaGraphInstantiate(byref(ready), graph, c_ulonglong(0))
            or cuda.cudaGraphLaunch(ready, None)
            or cuda.cudaStreamSynchronize(None)
        )
        return error, parameters.address

    def free_of_graph(self, address):
        # What graphs keep for their next launch is the driver's until it is told to give it back.
        return self.cuda.cudaFree(c_void_p(address)) or self.cuda.cudaDeviceGraphMemTrim(0)

    def handle(self, size):
        """Memory by handle, which only its mapping keeps."""
        driver, handle, address = self.driver, c_ulonglong(), c_ulonglong()
        properties = HandleProperties(1, 0, ON_THE_CARD)
        if error := driver.cuMemCreate(byref(handle), c_size_t(size), byref(properties), c_ulonglong(0)):
            return error, None
        none, access = c_ulonglong(0), Access(ON_THE_CARD, 3)
        error = (
            driver.cuMemAddressReserve(byref(address), c_size_t(size), c_size_t(0), none, none)
            or driver.cuMemMap(address, c_size_t(size), c_size_t(0), handle, none)
            or driver.cuMemSetAccess(address, c_size_t(size), byref(access), c_size_t(1))
            or driver.cuMemRelease(handle)
        )
        return error, (address.value, size)

    def unmap(self, taken):
        address, size = map(c_ulonglong, taken)
        return self.driver.cuMemUnmap(address, size) or self.driver.cuMemAddressFree(address, size)
