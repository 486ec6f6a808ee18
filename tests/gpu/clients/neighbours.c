/* What a program feels while another one moves memory by handle. Two of these meet at a file, in which the mover says what it does:

       neighbours mover FILE SECONDS      creates, maps, unmaps and releases 4 GiB of the card in pieces of 128 MiB, and registers
                                          and unregisters 512 MiB of host memory, again and again; with a fourth word `create`,
                                          `map` or `register` that alone and what undoes it
       neighbours kernel FILE SECONDS     launches an empty kernel and waits for it
       neighbours allocation FILE SECONDS allocates and frees 4 MiB
       neighbours context FILE SECONDS    creates and destroys a context

   Prints one JSON line: of the mover how often it did each, of the others count, median, 99th percentile and maximum in
   microseconds, by what the mover did when the call began. Needs no CUDA headers. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { NOTHING, CREATE, MAP, UNMAP, RELEASE, REGISTER, UNREGISTER, KINDS };
static const char *NAMES[KINDS] = {"nothing", "create", "map", "unmap", "release", "register", "unregister"};

enum { PIECES = 32, HOST = 512 << 20, MOST = 1 << 20 };
static const size_t PIECE = 128 << 20;
static const char KERNEL[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n";

struct Properties {
    int type, handles, location, device;
    void *windows;
    unsigned char flags[8];
};

struct Access {
    int location, device, flags;
};

static void *library;
static _Atomic int *present;

static void check(int result, const char *what) {
    if (result != 0) {
        fprintf(stderr, "neighbours: %s answered %d\n", what, result);
        exit(1);
    }
}

static void *find(const char *name) {
    void *found = dlsym(library, name);
    if (!found) check(-1, name);
    return found;
}

#define CALL(name, types, ...) check(((int(*) types)find(#name))(__VA_ARGS__), #name)

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void move(double end, int only) {
    struct Properties properties = {.type = 1, .location = 1};
    struct Access access = {.location = 1, .flags = 3};
    uint64_t address, handles[PIECES];
    long rounds = 0;
    char *host = mmap(NULL, HOST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (host == MAP_FAILED) check(-1, "mmap");
    memset(host, 1, HOST);
    CALL(cuMemAddressReserve, (uint64_t *, size_t, size_t, uint64_t, uint64_t), &address, PIECES * PIECE, 0, 0, 0);
    for (; now() < end; rounds++) {
        /* A pair of calls that is repeated alone has the name of its first one. */
        for (int at = 0; at < PIECES && (only != MAP || !rounds) && only != REGISTER; at++) {
            atomic_store(present, CREATE);
            CALL(cuMemCreate, (uint64_t *, size_t, struct Properties *, uint64_t), &handles[at], PIECE, &properties, 0);
        }
        for (int at = 0; at < PIECES && only != CREATE && only != REGISTER; at++) {
            atomic_store(present, MAP);
            CALL(cuMemMap, (uint64_t, size_t, size_t, uint64_t, uint64_t), address + at * PIECE, PIECE, 0, handles[at], 0);
            CALL(cuMemSetAccess, (uint64_t, size_t, struct Access *, size_t), address + at * PIECE, PIECE, &access, 1);
        }
        if (!only || only == REGISTER) {
            atomic_store(present, REGISTER);
            CALL(cuMemHostRegister_v2, (void *, size_t, unsigned), host, HOST, 1);
            if (!only) atomic_store(present, UNREGISTER);
            CALL(cuMemHostUnregister, (void *), host);
        }
        for (int at = 0; at < PIECES && only != CREATE && only != REGISTER; at++) {
            if (!only) atomic_store(present, UNMAP);
            CALL(cuMemUnmap, (uint64_t, size_t), address + at * PIECE, PIECE);
        }
        for (int at = 0; at < PIECES && only != MAP && only != REGISTER; at++) {
            if (!only) atomic_store(present, RELEASE);
            CALL(cuMemRelease, (uint64_t), handles[at]);
        }
    }
    atomic_store(present, NOTHING);
    printf("{\"rounds\": %ld}\n", rounds);
}

static float *samples[KINDS];
static size_t counts[KINDS];

static int by_size(const void *one, const void *other) {
    float difference = *(const float *)one - *(const float *)other;
    return (difference > 0) - (difference < 0);
}

static void feel(const char *what, void *context, double end) {
    void *module, *function;
    CALL(cuModuleLoadData, (void **, const void *), &module, KERNEL);
    CALL(cuModuleGetFunction, (void **, void *, const char *), &function, module, "nothing");
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **) =
        find("cuLaunchKernel");
    int (*wait)(void) = find("cuCtxSynchronize"), (*allocate)(uint64_t *, size_t) = find("cuMemAlloc_v2");
    int (*release)(uint64_t) = find("cuMemFree_v2"), (*create)(void **, unsigned, int) = find("cuCtxCreate_v2");
    int (*destroy)(void *) = find("cuCtxDestroy_v2"), (*set)(void *) = find("cuCtxSetCurrent");
    for (int kind = 0; kind < KINDS; kind++) samples[kind] = malloc(MOST * sizeof(float));
    while (now() < end) {
        uint64_t memory;
        void *fresh;
        int kind = atomic_load(present);
        double begin = now();
        if (!strcmp(what, "kernel")) {
            check(launch(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
            check(wait(), "cuCtxSynchronize");
        } else if (!strcmp(what, "allocation")) {
            check(allocate(&memory, 4 << 20), "cuMemAlloc");
            check(release(memory), "cuMemFree");
        } else {
            check(create(&fresh, 0, 0), "cuCtxCreate");
            check(destroy(fresh), "cuCtxDestroy");
            check(set(context), "cuCtxSetCurrent");
        }
        if (counts[kind] < MOST) samples[kind][counts[kind]++] = now() - begin;
    }
    const char *between = "{";
    for (int kind = 0; kind < KINDS; kind++) {
        size_t count = counts[kind];
        if (!count) continue;
        qsort(samples[kind], count, sizeof(float), by_size);
        printf("%s\"%s\": {\"count\": %zu, \"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f}", between, NAMES[kind], count,
               samples[kind][count / 2], samples[kind][count * 99 / 100], samples[kind][count - 1]);
        between = ", ";
    }
    printf("}\n");
}

int main(int count, char **arguments) {
    int only = NOTHING;
    for (int kind = CREATE; count == 5 && kind < KINDS; kind++)
        if (!strcmp(arguments[4], NAMES[kind])) only = kind;
    if (count != 4 && only != CREATE && only != MAP && only != REGISTER) {
        fprintf(stderr, "neighbours: expected mover, kernel, allocation or context, a file, seconds, and perhaps create, map or register\n");
        return 2;
    }
    int file = open(arguments[2], O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, 4096) != 0) check(-1, arguments[2]);
    present = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (present == MAP_FAILED || !library) check(-1, "libcuda.so.1");
    void *context;
    CALL(cuInit, (unsigned), 0);
    CALL(cuDevicePrimaryCtxRetain, (void **, int), &context, 0);
    CALL(cuCtxSetCurrent, (void *), context);
    printf("{\"ready\": true}\n");
    fflush(stdout);
    double end = now() + 1e6 * atof(arguments[3]);
    if (!strcmp(arguments[1], "mover"))
        move(end, only);
    else
        feel(arguments[1], context, end);
    return 0;
}
