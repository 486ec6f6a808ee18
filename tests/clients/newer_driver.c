// A driver of a CUDA release to come, 14.0, on top of the one it is linked with: a new function, and a new variant of an old one.
#include "driver.h"
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int cuConjure(int *answer) {
    *answer = 14;
    return 0;
}

// Not an export of that name, as most drivers would have it: only cuGetProcAddress hands it out.
static int newest_launch(void) {
    return 14;
}

static int look_up(const char *symbol, void **found, int version) {
    if (symbol && found && version >= 14000 && !strcmp(symbol, "cuLaunchKernel")) {
        *found = (void *)newest_launch;
        return 1;
    }
    return 0;
}

EXPORT int cuGetProcAddress(const char *symbol, void **found, int version, uint64_t flags) {
    typedef int (*form)(const char *, void **, int, uint64_t);
    if (look_up(symbol, found, version))
        return 0;
    return ((form)dlsym(RTLD_NEXT, "cuGetProcAddress"))(symbol, found, version, flags);
}

EXPORT int cuGetProcAddress_v2(const char *symbol, void **found, int version, uint64_t flags, int *status) {
    typedef int (*form)(const char *, void **, int, uint64_t, int *);
    if (look_up(symbol, found, version)) {
        if (status)
            *status = 0;
        return 0;
    }
    return ((form)dlsym(RTLD_NEXT, "cuGetProcAddress_v2"))(symbol, found, version, flags, status);
}

EXPORT int cuDriverGetVersion(int *version) {
    *version = 14000;
    return 0;
}
