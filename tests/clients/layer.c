// A library in front of others that define the same functions, as profilers, OpenMP's tools and allocators put themselves:
// each function finds the next one by RTLD_NEXT, which means "after the library that asks".
//
// Compiled more than once; LAYER is the name of this copy.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

#define PASTE(a, b) a##b
#define NAMED(a, b) PASTE(a, b)

// How many layers there are from here on; negative if asking twice gives two answers.
int layers(void) {
    int (*next)(void) = (int (*)(void))dlsym(RTLD_NEXT, "layers");
    if (next != (int (*)(void))dlsym(RTLD_NEXT, "layers"))
        return -1000;
    return next ? next() + 1 : 1;
}

// What is next after this layer.
void *NAMED(next_in_, LAYER)(const char *name) {
    return dlsym(RTLD_NEXT, name);
}

#ifdef WITH_MALLOC
// An allocator in front of the C library's: it looks for the next one when it is first called, from wherever that is.
static void *(*next_malloc)(size_t);
int mallocs;

void *malloc(size_t size) {
    if (!next_malloc)
        next_malloc = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    mallocs++;
    return next_malloc(size);
}
#endif
