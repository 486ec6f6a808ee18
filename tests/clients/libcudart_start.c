// Starts as libcudart does: takes cuGetProcAddress_v2 from libcuda.so.1 by dlsym and everything else from it.
//
//   libcudart_start NAMES [LIBRARY]
//
// The file NAMES has a base name and CUDA versions on each line. Each is asked with every flag, and so is
// the version just before it, which must get an older variant or none. Printed is the answer:
//
//   NAME VERSION FLAGS CODE STATUS FILE SYMBOL PAST
//
// FILE and SYMBOL are where the pointer points to, PAST is how many bytes after the symbol; "- - -" for no pointer. With a
// preloaded LIBRARY an answer that is the driver's though LIBRARY exports its name ends in "missed".
#include "driver.h"
#include <stdbool.h>
#include <string.h>

typedef int (*first_form)(const char *, void **, int, uint64_t);
typedef int (*second_form)(const char *, void **, int, uint64_t, int *);

static second_form ask;
static void *preloaded;

static void tell(void *found) {
    Dl_info where;
    if (!found) {
        printf(" - - -\n");
        return;
    }
    // A function that is not hooked is answered with an entry point, which leads to the driver's.
    void *(*behind)(void *) = preloaded ? dlsym(preloaded, "gpushare_function_behind") : NULL;
    if (behind)
        found = behind(found);
    if (!dladdr(found, &where) || !where.dli_sname) {
        printf(" unknown - -\n");
        return;
    }
    const char *file = strrchr(where.dli_fname, '/');
    long past = (char *)found - (char *)where.dli_saddr;
    printf(" %s %s %ld", file ? file + 1 : where.dli_fname, where.dli_sname, past);
    bool foreign = preloaded && !strstr(where.dli_fname, "libgpushare");
    printf(foreign && dlsym(preloaded, where.dli_sname) ? " missed\n" : "\n");
}

static void *look_up(const char *name, int version, uint64_t flags) {
    void *found = (void *)&found;
    int status = -1;
    int code = ask(name, &found, version, flags, &status);
    printf("%s %d %d %d %d", *name ? name : "\"\"", version, (int)flags, code, status);
    if (found == (void *)&found) {
        printf(" untouched - -\n");
        return NULL;
    }
    tell(found);
    return code ? NULL : found;
}

// What is asked in ways that only a broken program would.
static void look_up_badly(void) {
    void *found;
    printf("null-name 0 0 %d -1 - - -\n", ask(NULL, &found, 12000, 0, NULL));
    printf("null-answer 0 0 %d -1 - - -\n", ask("cuMemAlloc", NULL, 12000, 0, NULL));
    printf("no-status 0 0 %d -1", ask("cuMemAlloc", &found, 12000, 0, NULL));
    tell(found);
}

// The first form has four arguments: with the second form in its place everything after would go wrong.
static void use_first_form(first_form first) {
    void *found = NULL;
    int code = first("cuMemAlloc", &found, 11030, 0);
    printf("first-form 11030 0 %d -1", code);
    tell(found);
    found = NULL;
    code = first("cuNoSuchFunction", &found, 11030, 0);
    printf("first-form-unknown 11030 0 %d -1", code);
    tell(found);
}

// Does a little work with what was found, as the runtime would.
static void work(void) {
    int device;
    void *context;
    address memory;
    unsigned word = 0;
#define FOUND(name, version, flags, ...) ((int (*)(__VA_ARGS__))look_up(#name, version, flags))
    must("cuInit", FOUND(cuInit, 2000, 0, unsigned)(0));
    must("cuDeviceGet", FOUND(cuDeviceGet, 2000, 0, int *, int)(&device, 0));
    must("cuDevicePrimaryCtxRetain", FOUND(cuDevicePrimaryCtxRetain, 7000, 0, void **, int)(&context, device));
    must("cuCtxSetCurrent", FOUND(cuCtxSetCurrent, 4000, 0, void *)(context));
    must("cuMemAlloc", FOUND(cuMemAlloc, 3020, 0, address *, size_t)(&memory, 1 << 20));
    must("cuMemsetD32", FOUND(cuMemsetD32, 7000, 2, address, unsigned, size_t)(memory, 77, 1 << 18));
    must("cuMemcpyDtoH", FOUND(cuMemcpyDtoH, 3020, 0, void *, address, size_t)(&word, memory + (1 << 20) - 4, 4));
    must("cuMemFree", FOUND(cuMemFree, 3020, 0, address)(memory));
    printf("word 0 0 0 %u - - -\n", word);
}

int main(int argc, char **arguments) {
    FILE *names = argc > 1 ? fopen(arguments[1], "r") : NULL;
    if (!names) {
        fprintf(stderr, "a file with names is needed\n");
        return 2;
    }
    if (argc > 2 && !(preloaded = dlopen(arguments[2], RTLD_NOW | RTLD_NOLOAD))) {
        fprintf(stderr, "%s is not loaded\n", arguments[2]);
        return 2;
    }
    ask = (second_form)driver_symbol("cuGetProcAddress_v2");
    printf("dlsym 0 0 0 0");
    tell((void *)ask);
    look_up("", 0, 0);
    use_first_form((first_form)look_up("cuGetProcAddress", 11030, 0));
    ask = (second_form)look_up("cuGetProcAddress", 12000, 0);
    look_up_badly();

    char line[256];
    while (fgets(line, sizeof line, names)) {
        char *rest = line;
        char *name = strsep(&rest, " \n");
        if (!*name || *name == '#')
            continue;
        for (char *version; (version = strsep(&rest, " \n"));)
            for (uint64_t flags = 0; *version && flags < 3; flags++) {
                look_up(name, atoi(version), flags);
                look_up(name, atoi(version) - 1, flags);
            }
    }
    work();
    return 0;
}
