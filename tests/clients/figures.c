// What cuMemGetInfo says while memory comes and goes, and where it has nothing to say.
//
// Each line is a moment, the code of the answer, and in the moments that have one free and total in KiB.
#include "driver.h"

#define BYTES (4 << 20)

// CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
#define RELEASE_THRESHOLD 4

static void look(const char *moment) {
    size_t left = 0, all = 0;
    int code = DRIVER(cuMemGetInfo_v2, size_t *, size_t *)(&left, &all);
    if (code)
        printf("%s %d\n", moment, code);
    else
        printf("%s 0 %zu %zu\n", moment, left >> 10, all >> 10);
}

static void synchronize(void) {
    must("cuStreamSynchronize", DRIVER(cuStreamSynchronize, void *)(NULL));
}

static void keep(void *pool, uint64_t bytes) {
    must("cuMemPoolSetAttribute", DRIVER(cuMemPoolSetAttribute, void *, int, void *)(pool, RELEASE_THRESHOLD, &bytes));
}

int main(void) {
    size_t all;
    address memory;
    void *pool, *context;
    must("cuInit", DRIVER(cuInit, unsigned)(0));
    look("before-a-context");
    start(0);
    look("empty");
    look("again");
    must("cuMemAlloc_v2", DRIVER(cuMemAlloc_v2, address *, size_t)(&memory, BYTES));
    look("allocated");
    must("cuMemFree_v2", DRIVER(cuMemFree_v2, address)(memory));
    look("freed");

    must("cuDeviceGetDefaultMemPool", DRIVER(cuDeviceGetDefaultMemPool, void **, int)(&pool, 0));
    for (int times = 0; times < 2; times++) {
        keep(pool, UINT64_MAX);
        must("cuMemAllocAsync", DRIVER(cuMemAllocAsync, address *, size_t, void *)(&memory, BYTES, NULL));
        look("in-a-pool");
        must("cuMemFreeAsync", DRIVER(cuMemFreeAsync, address, void *)(memory, NULL));
        synchronize();
        look("kept");
        // The pool gives back by a trim, and at a wait that nobody of ours sees.
        if (times == 0)
            must("cuMemPoolTrimTo", DRIVER(cuMemPoolTrimTo, void *, size_t)(pool, 0));
        else
            keep(pool, 0);
        synchronize();
        look("given-back");
    }

    printf("nowhere-to-write %d\n", DRIVER(cuMemGetInfo_v2, size_t *, size_t *)(NULL, &all));
    must("cuCtxGetCurrent", DRIVER(cuCtxGetCurrent, void **)(&context));
    must("cuCtxSetCurrent", DRIVER(cuCtxSetCurrent, void *)(NULL));
    look("without-a-context");
    must("cuCtxSetCurrent", DRIVER(cuCtxSetCurrent, void *)(context));
    look("back");
    must("cuDevicePrimaryCtxReset_v2", DRIVER(cuDevicePrimaryCtxReset_v2, int)(0));
    look("after-a-reset");
    return 0;
}
