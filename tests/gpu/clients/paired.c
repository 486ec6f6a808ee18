/* What a hook costs, in one process: the same call through the function that an application is given and through the
   driver's own, in alternating batches.

       paired [BATCHES]

   The driver's own function is read from the symbol table of libcuda as it is mapped, past any interposed lookup.
   Built with any C compiler; needs no CUDA headers. Prints one JSON line: nanoseconds a call, batch by batch. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int (*Init)(unsigned);
typedef int (*Retain)(void **, int);
typedef int (*SetCurrent)(void *);
typedef int (*Load)(void **, const void *);
typedef int (*GetFunction)(void **, void *, const char *);
typedef int (*Launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
typedef int (*GetInfo)(size_t *, size_t *);
typedef int (*Synchronize)(void);
typedef int (*Allocate)(uint64_t *, size_t);
typedef int (*Release)(uint64_t);
typedef int (*Copy)(uint64_t, const void *, size_t);

static const char KERNEL[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n";

static void check(int result, const char *what) {
    if (result != 0) {
        fprintf(stderr, "paired: %s failed with %d\n", what, result);
        exit(1);
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

/* The address of `name` in the symbol table of a mapped library. */
static void *own(void *library, const char *name) {
    struct link_map *map;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return NULL;
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    const uint32_t *hash = NULL;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB) symbols = (void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_STRTAB) names = (void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_GNU_HASH) hash = (void *)entry->d_un.d_ptr;
    }
    if (!symbols || !names || !hash) return NULL;
    uint32_t buckets = hash[0], first = hash[1], bloom = hash[2];
    const uint32_t *bucket = hash + 4 + bloom * (sizeof(ElfW(Addr)) / 4), *chain = bucket + buckets;
    uint32_t wanted = 5381;
    for (const char *at = name; *at; at++) wanted = wanted * 33 + (unsigned char)*at;
    for (uint32_t at = bucket[wanted % buckets]; at >= first; at++) {
        if ((chain[at - first] | 1) == (wanted | 1) && strcmp(names + symbols[at].st_name, name) == 0)
            return (void *)(map->l_addr + symbols[at].st_value);
        if (chain[at - first] & 1) break;
    }
    return NULL;
}

static void *library;

static void *given(const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "paired: no %s\n", name);
        exit(1);
    }
    return found;
}

/* The functions of one way to the driver, and memory that was allocated by it. */
struct Way {
    Launch launch;
    GetInfo get_info;
    Allocate allocate;
    Release release;
    Copy copy;
    uint64_t memory;
};

/* What is being measured: `calls` calls by one of two ways. */
struct Subject {
    const char *name;
    int calls;
    void (*run)(const struct Way *way, int calls);
};

enum { ALLOCATION = 4 << 20, COPY = 4 << 10 };

static void *function;
static Synchronize synchronize;
static struct Way given_way, own_way;

static void launches(const struct Way *way, int calls) {
    for (int call = 0; call < calls; call++)
        if (way->launch(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL) != 0) exit(1);
}

static void questions(const struct Way *way, int calls) {
    size_t left, all;
    for (int call = 0; call < calls; call++)
        if (way->get_info(&left, &all) != 0) exit(1);
}

static void allocations(const struct Way *way, int calls) {
    uint64_t memory;
    for (int call = 0; call < calls; call++)
        if (way->allocate(&memory, ALLOCATION) != 0 || way->release(memory) != 0) exit(1);
}

static void copies(const struct Way *way, int calls) {
    static char bytes[COPY];
    for (int call = 0; call < calls; call++)
        if (way->copy(way->memory, bytes, COPY) != 0) exit(1);
}

static struct Way way(void *(*find)(const char *)) {
    struct Way found = {
        (Launch)find("cuLaunchKernel"), (GetInfo)find("cuMemGetInfo_v2"), (Allocate)find("cuMemAlloc_v2"),
        (Release)find("cuMemFree_v2"), (Copy)find("cuMemcpyHtoD_v2"), 0,
    };
    if (!found.launch || !found.get_info || !found.allocate || !found.release || !found.copy) {
        fprintf(stderr, "paired: libcuda's symbol table could not be read\n");
        exit(1);
    }
    check(found.allocate(&found.memory, ALLOCATION), "cuMemAlloc");
    return found;
}

static void *own_of_driver(const char *name) {
    return own(library, name);
}

static double batch(const struct Subject *subject, const struct Way *way) {
    check(synchronize(), "cuCtxSynchronize");
    double begin = now();
    subject->run(way, subject->calls);
    double each = (now() - begin) / subject->calls;
    check(synchronize(), "cuCtxSynchronize");
    return each;
}

static void measure(const struct Subject *subject, int batches, const char *end) {
    double *first = calloc(batches, sizeof *first), *second = calloc(batches, sizeof *second);
    batch(subject, &given_way);
    batch(subject, &own_way);
    for (int number = 0; number < batches; number++) {
        /* Which of the two comes first changes, so that neither profits from the other. */
        if (number & 1) second[number] = batch(subject, &own_way);
        first[number] = batch(subject, &given_way);
        if (!(number & 1)) second[number] = batch(subject, &own_way);
    }
    printf("\"%s\": {\"distinct\": %s, \"given_ns\": [", subject->name, given_way.launch != own_way.launch ? "true" : "false");
    for (int number = 0; number < batches; number++) printf("%s%.1f", number ? ", " : "", first[number]);
    printf("], \"own_ns\": [");
    for (int number = 0; number < batches; number++) printf("%s%.1f", number ? ", " : "", second[number]);
    printf("]}%s", end);
    free(first);
    free(second);
}

int main(int count, char **arguments) {
    int batches = count > 1 ? atoi(arguments[1]) : 200;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library || batches <= 0) {
        fprintf(stderr, "paired: %s\n", library ? "BATCHES must be positive" : dlerror());
        return 2;
    }
    void *context, *module;
    check(((Init)given("cuInit"))(0), "cuInit");
    double begin = now();
    check(((Retain)given("cuDevicePrimaryCtxRetain"))(&context, 0), "cuDevicePrimaryCtxRetain");
    double first_context = now() - begin;
    check(((SetCurrent)given("cuCtxSetCurrent"))(context), "cuCtxSetCurrent");
    check(((Load)given("cuModuleLoadData"))(&module, KERNEL), "cuModuleLoadData");
    check(((GetFunction)given("cuModuleGetFunction"))(&function, module, "nothing"), "cuModuleGetFunction");
    synchronize = (Synchronize)own(library, "cuCtxSynchronize");
    if (!synchronize) {
        fprintf(stderr, "paired: libcuda's symbol table could not be read\n");
        return 1;
    }
    given_way = way(given);
    own_way = way(own_of_driver);
    const struct Subject subjects[] = {
        {"launch", 500, launches},
        {"get_info", 100, questions},
        {"allocation", 20, allocations},
        {"copy", 100, copies},
    };
    const int last = sizeof subjects / sizeof *subjects - 1;
    printf("{\"first_context_ns\": %.0f, ", first_context);
    for (int number = 0; number <= last; number++)
        measure(&subjects[number], batches, number < last ? ", " : "}\n");
    return 0;
}
