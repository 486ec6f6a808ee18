# Allocates, sets and reads memory through ctypes, then waits for the end of stdin.
import ctypes
import sys

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        sys.exit(f"{name} answered {code}")


SIZE = 16 << 20
WORD = 0xABCD1234

device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(SIZE))
call("cuMemsetD32_v2", address, ctypes.c_uint(WORD), ctypes.c_size_t(SIZE // 4))
words = (ctypes.c_uint32 * (SIZE // 4))()
call("cuMemcpyDtoH_v2", words, address, ctypes.c_size_t(SIZE))
if any(word != WORD for word in words):
    sys.exit("the memory is wrong")
print(f"{SIZE} bytes hold {WORD:#x}", flush=True)
sys.stdin.read()
call("cuMemFree_v2", address)
