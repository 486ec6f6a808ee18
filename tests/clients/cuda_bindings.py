# NVIDIA's own cuda-bindings: finds libcuda by itself and looks everything up through cuGetProcAddress.
from cuda.bindings import driver


def call(function, *arguments):
    code, *values = function(*arguments)
    if code != driver.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"{function.__name__} answered {code}")
    return values[0] if values else None


SIZE = 1 << 20

call(driver.cuInit, 0)
device = call(driver.cuDeviceGet, 0)
context = call(driver.cuDevicePrimaryCtxRetain, device)
call(driver.cuCtxSetCurrent, context)
stream = call(driver.cuStreamCreate, 0)
address = call(driver.cuMemAlloc, SIZE)
call(driver.cuMemsetD32Async, address, 77, SIZE // 4, stream)
call(driver.cuStreamSynchronize, stream)
words = bytearray(SIZE)
call(driver.cuMemcpyDtoH, words, address, SIZE)
print("all words are 77:", words == (77).to_bytes(4, "little") * (SIZE // 4))
base_and_size = driver.cuMemGetAddressRange(int(address) + 4096)
print("the range is", base_and_size[2], "bytes from", int(base_and_size[1]) - int(address))
call(driver.cuMemFree, address)
print("freed again:", driver.cuMemFree(address)[0])
