// What the C programs here need of the driver, found as a program finds it that has no CUDA headers: by dlsym.
#pragma once

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef uint64_t address;

static inline void *libcuda(void) {
    static void *library;
    if (!library)
        library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    return library;
}

static inline void *driver_symbol(const char *name) {
    void *found = dlsym(libcuda(), name);
    if (!found) {
        fprintf(stderr, "libcuda.so.1 has no %s\n", name);
        exit(2);
    }
    return found;
}

// A function of the driver: its export and the types of its arguments.
#define DRIVER(name, ...) ((int (*)(__VA_ARGS__))driver_symbol(#name))

static inline void must(const char *what, int code) {
    if (code) {
        fprintf(stderr, "%s answered %d\n", what, code);
        exit(1);
    }
}

// Makes the primary context of a device current.
static inline void start(int ordinal) {
    int device;
    void *context;
    must("cuInit", DRIVER(cuInit, unsigned)(0));
    must("cuDeviceGet", DRIVER(cuDeviceGet, int *, int)(&device, ordinal));
    must("cuDevicePrimaryCtxRetain", DRIVER(cuDevicePrimaryCtxRetain, void **, int)(&context, device));
    must("cuCtxSetCurrent", DRIVER(cuCtxSetCurrent, void *)(context));
}

// Memory of which every word is `word`.
static inline address filled(size_t bytes, unsigned word) {
    address memory;
    must("cuMemAlloc_v2", DRIVER(cuMemAlloc_v2, address *, size_t)(&memory, bytes));
    must("cuMemsetD32_v2", DRIVER(cuMemsetD32_v2, address, unsigned, size_t)(memory, word, bytes / 4));
    return memory;
}

static inline unsigned word_at(address memory) {
    unsigned word = 0;
    must("cuMemcpyDtoH_v2", DRIVER(cuMemcpyDtoH_v2, void *, address, size_t)(&word, memory, 4));
    return word;
}
