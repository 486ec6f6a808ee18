// Gives work to the card through one door after the other, each time from a new thread.
//
// Each line of stdin names a door. Printed is "DOOR asked" before the call, and "DOOR CODE WORD" when its stream is done:
// what the call answered, and what it left in memory.
#include "driver.h"
#include <pthread.h>
#include <string.h>

#define WORDS 1024

static void *context, *stream, *graph;
static address memory, source;

typedef void host_function(void *);
typedef struct { int kind, id; } location;
typedef struct { unsigned kind; address at; uint64_t value; unsigned flags; uint64_t rest[2]; } operation;

static void from_host(void *word) {
    *(unsigned *)(uintptr_t)memory = (unsigned)(uintptr_t)word;
}

static void from_callback(void *on, int status, void *word) {
    (void)on;
    from_host(status ? NULL : word);
}

static int call(const char *door) {
    address to[2] = {memory, memory + 4}, from[2] = {source, source};
    size_t sizes[2] = {4, 4}, first = 0, failed = 0, all = WORDS * 4;
    location card = {1, 0};
    operation write = {2, memory, 31, 0, {0}};
    struct { int order; location hints[2]; unsigned flags; } attributes = {1, {{0}}, 0};

    if (!strcmp(door, "host-function"))
        return DRIVER(cuLaunchHostFunc, void *, host_function *, void *)(stream, from_host, (void *)21);
    if (!strcmp(door, "callback"))
        return DRIVER(cuStreamAddCallback, void *, void (*)(void *, int, void *), void *, unsigned)(
            stream, from_callback, (void *)22, 0);
    if (!strcmp(door, "write-32"))
        return DRIVER(cuStreamWriteValue32, void *, address, uint32_t, unsigned)(stream, memory, 23, 0);
    if (!strcmp(door, "write-64"))
        return DRIVER(cuStreamWriteValue64_v2, void *, address, uint64_t, unsigned)(stream, memory, 24, 0);
    if (!strcmp(door, "wait-32"))
        return DRIVER(cuStreamWaitValue32_v2, void *, address, uint32_t, unsigned)(stream, memory, 0, 0);
    if (!strcmp(door, "wait-64"))
        return DRIVER(cuStreamWaitValue64_ptsz, void *, address, uint64_t, unsigned)(stream, memory, 0, 0);
    if (!strcmp(door, "batch"))
        return DRIVER(cuStreamBatchMemOp_v2, void *, unsigned, operation *, unsigned)(stream, 1, &write, 0);
    if (!strcmp(door, "attach"))
        return DRIVER(cuStreamAttachMemAsync, void *, address, size_t, unsigned)(stream, memory, 0, 1);
    if (!strcmp(door, "prefetch"))
        return DRIVER(cuMemPrefetchBatchAsync, address *, size_t *, size_t, location *, size_t *, size_t, uint64_t, void *)(
            &memory, &all, 1, &card, &first, 1, 0, stream);
    if (!strcmp(door, "discard"))
        return DRIVER(cuMemDiscardBatchAsync, address *, size_t *, size_t, uint64_t, void *)(&memory, &all, 1, 0, stream);
    if (!strcmp(door, "discard-and-prefetch"))
        return DRIVER(cuMemDiscardAndPrefetchBatchAsync, address *, size_t *, size_t, location *, size_t *, size_t, uint64_t,
            void *)(&memory, &all, 1, &card, &first, 1, 0, stream);
    if (!strcmp(door, "copies-12"))
        return DRIVER(cuMemcpyBatchAsync, address *, address *, size_t *, size_t, void *, size_t *, size_t, size_t *, void *)(
            to, from, sizes, 2, &attributes, &first, 1, &failed, stream);
    if (!strcmp(door, "copies-13"))
        return DRIVER(cuMemcpyBatchAsync_v2, address *, address *, size_t *, size_t, void *, size_t *, size_t, void *)(
            to, from, sizes, 2, &attributes, &first, 1, stream);
    if (!strcmp(door, "upload"))
        return DRIVER(cuGraphUpload, void *, void *)(graph, stream);
    if (!strcmp(door, "several-cards"))
        return DRIVER(cuLaunchCooperativeKernelMultiDevice, void *, unsigned, unsigned)(NULL, 0, 0);
    fprintf(stderr, "doors does not know `%s`\n", door);
    exit(2);
}

static void *enter(void *door) {
    unsigned word = 77;
    must("cuCtxSetCurrent", DRIVER(cuCtxSetCurrent, void *)(context));
    printf("%s asked\n", (char *)door);
    int code = call(door);
    must("cuStreamSynchronize", DRIVER(cuStreamSynchronize, void *)(stream));
    word = *(unsigned *)(uintptr_t)memory;
    printf("%s %d %u\n", (char *)door, code, word);
    return NULL;
}

int main(void) {
    char door[64];
    void *empty, *node;
    setvbuf(stdout, NULL, _IOLBF, 0);
    start(0);
    must("cuCtxGetCurrent", DRIVER(cuCtxGetCurrent, void **)(&context));
    must("cuMemAllocManaged", DRIVER(cuMemAllocManaged, address *, size_t, unsigned)(&memory, WORDS * 4, 1));
    source = filled(40 << 20, 33);
    must("cuMemsetD32_v2", DRIVER(cuMemsetD32_v2, address, unsigned, size_t)(memory, 0, WORDS));
    must("cuCtxSynchronize", DRIVER(cuCtxSynchronize, void)());
    must("cuStreamCreate", DRIVER(cuStreamCreate, void **, unsigned)(&stream, 1));
    must("cuGraphCreate", DRIVER(cuGraphCreate, void **, unsigned)(&empty, 0));
    must("cuGraphAddEmptyNode", DRIVER(cuGraphAddEmptyNode, void **, void *, void *, size_t)(&node, empty, NULL, 0));
    must("cuGraphInstantiateWithFlags", DRIVER(cuGraphInstantiateWithFlags, void **, void *, uint64_t)(&graph, empty, 0));
    printf("ready\n");
    while (scanf("%63s", door) == 1) {
        pthread_t thread;
        pthread_create(&thread, NULL, enter, door);
        pthread_join(thread, NULL);
    }
    return 0;
}
