// Frees memory of one context while another one is current, and prints whether the first one's work had ended by then.
#include "driver.h"
#include <unistd.h>

static volatile int ended;

static void work(void *unused) {
    (void)unused;
    usleep(300000);
    ended = 1;
}

int main(void) {
    void *other, *stream;
    address memory;
    start(0);
    must("cuStreamCreate", DRIVER(cuStreamCreate, void **, unsigned)(&stream, 1));
    memory = filled(64 << 20, 7);
    must("cuLaunchHostFunc", DRIVER(cuLaunchHostFunc, void *, void (*)(void *), void *)(stream, work, NULL));
    must("cuMemsetD32Async", DRIVER(cuMemsetD32Async, address, unsigned, size_t, void *)(memory, 8, 16 << 20, stream));
    must("cuCtxCreate_v2", DRIVER(cuCtxCreate_v2, void **, unsigned, int)(&other, 0, 0));
    must("cuMemFree_v2", DRIVER(cuMemFree_v2, address)(memory));
    printf("ended %d\n", ended);
    return 0;
}
