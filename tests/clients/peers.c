// Memory of the second device that kernels of the first one may use, allocated before and after they may. Answers
// each line of stdin; the first one enables peer access.
#include "driver.h"

static void *retained(int ordinal) {
    int device;
    void *context;
    must("cuDeviceGet", DRIVER(cuDeviceGet, int *, int)(&device, ordinal));
    must("cuDevicePrimaryCtxRetain", DRIVER(cuDevicePrimaryCtxRetain, void **, int)(&context, device));
    return context;
}

static void allocate_in(void *context) {
    address memory;
    must("cuCtxSetCurrent", DRIVER(cuCtxSetCurrent, void *)(context));
    must("cuMemAlloc_v2", DRIVER(cuMemAlloc_v2, address *, size_t)(&memory, 4 << 20));
}

int main(void) {
    char line[16];
    must("cuInit", DRIVER(cuInit, unsigned)(0));
    void *first = retained(0), *second = retained(1);
    setvbuf(stdout, NULL, _IOLBF, 0);
    allocate_in(second);
    allocate_in(first);
    printf("two blocks\n");
    if (!fgets(line, sizeof line, stdin))
        return 1;
    must("cuCtxEnablePeerAccess", DRIVER(cuCtxEnablePeerAccess, void *, unsigned)(second, 0));
    printf("peers\n");
    if (!fgets(line, sizeof line, stdin))
        return 1;
    allocate_in(second);
    printf("three blocks\n");
    return !fgets(line, sizeof line, stdin);
}
