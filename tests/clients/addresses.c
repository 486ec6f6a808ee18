// Calls in which the driver looks at the address of device memory and which give the card no work.
//
// Each line of stdin names a call. Printed is "CALL CODE VALUE": what the call answered, and what it is about: an
// attribute, or for `launch` the word that the executable graph has left in the memory.
#include "driver.h"
#include <string.h>

#define WORDS (1 << 20)

// CUDA_MEMSET_NODE_PARAMS, CUDA_MEMCPY3D and CUgraphNodeParams.
typedef struct { address to; size_t pitch; unsigned value, element; size_t width, height; } fill;
typedef struct { size_t place[4]; unsigned kind; void *host; address device; void *array, *more; size_t pitch, height; } side;
typedef struct { side from, to; size_t width, height, depth; } copy;
typedef struct { unsigned kind; int reserved[3]; fill fill; uint64_t rest[20]; } any;
typedef struct { unsigned kind; address at; unsigned format, channels; size_t bytes; uint64_t rest[15]; } resource;

static void *context, *graph, *child, *exec, *filling, *copying;
static address memory;

static fill fills(unsigned word) {
    return (fill){memory, 0, word, 4, 1, 1};
}

static copy copies(void) {
    side one = {.kind = 2, .device = memory + 4}, other = {.kind = 2, .device = memory + 8};
    return (copy){one, other, 4, 1, 1};
}

static int call(const char *name, uint64_t *value) {
    void *made;
    unsigned result, attributes[2] = {2, 18};
    struct { unsigned result; void *node, *from; } update;
    struct { int kind, id; } card = {1, 0};
    fill set = fills(5);
    copy move = copies();
    any node = {.kind = 2, .fill = set};
    resource linear = {.kind = 2, .at = memory, .format = 32, .channels = 1, .bytes = 4096};
    uint64_t texture[13] = {0}, kind = 0;
    void *slots[2] = {&kind, value};

    if (!strcmp(name, "add-memset"))
        return DRIVER(cuGraphAddMemsetNode, void **, void *, void *, size_t, fill *, void *)(&made, graph, NULL, 0, &set, context);
    if (!strcmp(name, "add-memcpy"))
        return DRIVER(cuGraphAddMemcpyNode, void **, void *, void *, size_t, copy *, void *)(&made, graph, NULL, 0, &move, context);
    if (!strcmp(name, "add-any"))
        return DRIVER(cuGraphAddNode, void **, void *, void *, size_t, any *)(&made, graph, NULL, 0, &node);
    if (!strcmp(name, "set-memset"))
        return DRIVER(cuGraphMemsetNodeSetParams, void *, fill *)(filling, &set);
    if (!strcmp(name, "set-memcpy"))
        return DRIVER(cuGraphMemcpyNodeSetParams, void *, copy *)(copying, &move);
    if (!strcmp(name, "exec-memset"))
        return DRIVER(cuGraphExecMemsetNodeSetParams, void *, void *, fill *, void *)(exec, filling, &set, context);
    if (!strcmp(name, "exec-memcpy"))
        return DRIVER(cuGraphExecMemcpyNodeSetParams, void *, void *, copy *, void *)(exec, copying, &move, context);
    if (!strcmp(name, "update-11"))
        return DRIVER(cuGraphExecUpdate, void *, void *, void **, unsigned *)(exec, child, &made, &result);
    if (!strcmp(name, "update-12"))
        return DRIVER(cuGraphExecUpdate_v2, void *, void *, void *)(exec, child, &update);
    if (!strcmp(name, "instantiate-11"))
        return DRIVER(cuGraphInstantiate_v2, void **, void *, void *, char *, size_t)(&exec, child, NULL, NULL, 0);
    if (!strcmp(name, "instantiate-12"))
        return DRIVER(cuGraphInstantiateWithFlags, void **, void *, uint64_t)(&exec, child, 0);
    if (!strcmp(name, "texture"))
        return DRIVER(cuTexObjectCreate, uint64_t *, resource *, void *, void *)(value, &linear, texture, NULL);
    if (!strcmp(name, "attribute"))
        return DRIVER(cuPointerGetAttribute, void *, unsigned, address)(value, 18, memory);
    if (!strcmp(name, "attributes"))
        return DRIVER(cuPointerGetAttributes, unsigned, unsigned *, void **, address)(2, attributes, slots, memory);
    if (!strcmp(name, "access"))
        return DRIVER(cuMemGetAccess, uint64_t *, void *, address)(value, &card, memory);
    if (!strcmp(name, "set-attribute")) {
        unsigned on = 1;
        return DRIVER(cuPointerSetAttribute, void *, unsigned, address)(&on, 6, memory);
    }
    if (!strcmp(name, "launch")) {
        int code = DRIVER(cuGraphLaunch, void *, void *)(exec, NULL);
        *value = word_at(memory);
        return code;
    }
    fprintf(stderr, "addresses does not know `%s`\n", name);
    exit(2);
}

int main(void) {
    char name[64];
    setvbuf(stdout, NULL, _IOLBF, 0);
    start(0);
    must("cuCtxGetCurrent", DRIVER(cuCtxGetCurrent, void **)(&context));
    memory = filled(WORDS * 4 * 4, 1);
    fill set = fills(3);
    copy move = copies();
    must("cuGraphCreate", DRIVER(cuGraphCreate, void **, unsigned)(&graph, 0));
    must("cuGraphCreate", DRIVER(cuGraphCreate, void **, unsigned)(&child, 0));
    must("cuGraphAddMemsetNode", DRIVER(cuGraphAddMemsetNode, void **, void *, void *, size_t, fill *, void *)(
        &filling, child, NULL, 0, &set, context));
    must("cuGraphAddMemcpyNode", DRIVER(cuGraphAddMemcpyNode, void **, void *, void *, size_t, copy *, void *)(
        &copying, child, NULL, 0, &move, context));
    must("cuGraphInstantiateWithFlags", DRIVER(cuGraphInstantiateWithFlags, void **, void *, uint64_t)(&exec, child, 0));
    must("cuCtxSynchronize", DRIVER(cuCtxSynchronize, void)());
    printf("ready\n");
    while (scanf("%63s", name) == 1) {
        uint64_t value = 0;
        int code = call(name, &value);
        printf("%s %d %llu\n", name, code, (unsigned long long)value);
    }
    return 0;
}
