"""Array libraries and kernel compilers other than PyTorch, case by case.

    arrays.py CASE

Prints one JSON line with `values`. Everything is seeded and exact or deterministic.
"""

import argparse
import os

import numpy

from values import digest, say


def numbers(*shape, seed=5):
    return numpy.random.default_rng(seed).standard_normal(shape).astype(numpy.float32)


def cupy_work(cupy):
    a, b = cupy.asarray(numbers(512, 512)), cupy.asarray(numbers(512, 512, seed=6))
    product = a @ b
    kernel = cupy.RawKernel(
        r"""extern "C" __global__ void twice(float* x, int n) {
            int i = blockDim.x * blockIdx.x + threadIdx.x;
            if (i < n) x[i] = 2 * x[i] + 1;
        }""",
        "twice",
    )
    kernel((1024,), (256,), (product, product.size))
    side = cupy.cuda.Stream(non_blocking=True)
    with side:
        spectrum = cupy.fft.rfft2(a)
        order = cupy.argsort(b.ravel())
        side.synchronize()
    blocks = [cupy.full(1 << 20, number, dtype=cupy.int32) for number in range(24)]
    sums = [int(block.sum(dtype=cupy.int64)) for block in blocks]
    del blocks[::3]
    cupy.get_default_memory_pool().free_all_blocks()
    return {"product": digest(product), "spectrum": digest(spectrum), "order": digest(order), "sums": sums}


def cupy_pool():
    import cupy

    return cupy_work(cupy)


def cupy_async():
    import cupy

    cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    return cupy_work(cupy)


def cupy_managed():
    import cupy

    cupy.cuda.set_allocator(cupy.cuda.MemoryPool(cupy.cuda.malloc_managed).malloc)
    return cupy_work(cupy)


def jax():
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    os.environ["XLA_FLAGS"] = "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_default_matmul_precision", "highest")

    @jax.jit
    def step(weights, batch):
        def loss(weights):
            return jnp.mean((jnp.tanh(batch @ weights[0]) @ weights[1] - batch) ** 2)

        value, slopes = jax.value_and_grad(loss)(weights)
        return value, [w - 0.1 * slope for w, slope in zip(weights, slopes)]

    weights = [jnp.asarray(numbers(256, 512)) / 16, jnp.asarray(numbers(512, 256, seed=6)) / 22]
    losses = []
    for seed in range(10):
        value, weights = step(weights, jnp.asarray(numbers(128, 256, seed=seed)))
        losses.append(float(value))
    return {"losses": losses, "weights": digest(*weights), "platform": jax.devices()[0].platform}


def numba():
    # Names that numba-cuda still imports and that newer NumPy no longer has.
    for old, new in (("row_stack", "vstack"), ("in1d", "isin"), ("trapz", "trapezoid")):
        if not hasattr(numpy, old):
            setattr(numpy, old, getattr(numpy, new))
    from numba import cuda

    @cuda.jit
    def histogram(values, counts):
        local = cuda.shared.array(64, "int32")
        lane = cuda.threadIdx.x
        if lane < 64:
            local[lane] = 0
        cuda.syncthreads()
        at = cuda.grid(1)
        if at < values.size:
            cuda.atomic.add(local, values[at] % 64, 1)
        cuda.syncthreads()
        if lane < 64:
            cuda.atomic.add(counts, lane, local[lane])

    values = numpy.random.default_rng(3).integers(0, 1 << 20, 1 << 20, dtype=numpy.int32)
    stream = cuda.stream()
    on_card = cuda.to_device(values, stream=stream)
    counts = cuda.to_device(numpy.zeros(64, dtype=numpy.int32), stream=stream)
    histogram[values.size // 256, 256, stream](on_card, counts)
    said = counts.copy_to_host(stream=stream)
    stream.synchronize()
    return {"counts": digest(said), "right": bool((said == numpy.bincount(values % 64, minlength=64)).all())}


def triton():
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def softmax(out, given, columns, BLOCK: tl.constexpr):
        row, at = tl.program_id(0), tl.arange(0, BLOCK)
        values = tl.load(given + row * columns + at, mask=at < columns, other=-float("inf"))
        powers = tl.exp(values - tl.max(values, axis=0))
        tl.store(out + row * columns + at, powers / tl.sum(powers, axis=0), mask=at < columns)

    given = torch.from_numpy(numbers(1024, 1000)).cuda()
    out = torch.empty_like(given)
    softmax[(1024,)](out, given, 1000, BLOCK=1024)
    return {"out": digest(out), "rows": float(out.sum())}


CASES = {case.__name__: case for case in (cupy_pool, cupy_async, cupy_managed, jax, numba, triton)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    say(CASES[parser.parse_args().case]())


if __name__ == "__main__":
    main()
