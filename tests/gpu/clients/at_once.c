/* How long a thread is in calls that natively return at once, while a kernel of KERNEL_NS runs; what becomes of memory
   of destroyed pools; and what a question for the card's utilization costs.

       at_once calls             microseconds of each call, idle and behind the kernel
       at_once pools             how many pools of POOL_BYTES could be filled and destroyed, at most 16
       at_once utilization       100 questions, ten a second, while the program computes, from its fifth second on

   Built with any C compiler; needs no CUDA headers. Prints one JSON line. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define KERNEL_NS 200000000ull
#define POOL_BYTES ((size_t)1 << 30)
#define BYTES 4096
#define TIMES 200
/* Seconds after which the figures are those of the program's work: NVML's samples and the parts that the daemon tells a
   session are of the last second each. */
#define SETTLED 4

typedef uint64_t address;

static const char KERNEL[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry spin(.param .u64 flag, .param .u64 limit) {\n.reg .pred %p;\n.reg .b64 %l, %s, %n;\n"
    "ld.param.u64 %l, [limit];\nmov.u64 %s, %globaltimer;\nagain:\nmov.u64 %n, %globaltimer;\n"
    "sub.u64 %n, %n, %s;\nsetp.lt.u64 %p, %n, %l;\n@%p bra again;\nret;\n}\n";

static void *library;

static void *found(void *of, const char *name) {
    void *function = dlsym(of, name);
    if (!function) {
        fprintf(stderr, "at_once: no %s\n", name);
        exit(1);
    }
    return function;
}

/* A function of the driver, looked up once in each place. */
#define CUDA(name, ...) \
    ({ \
        static void *function; \
        if (!function) function = found(library, #name); \
        (int (*)(__VA_ARGS__))function; \
    })

static void check(int result, const char *what) {
    if (result != 0) {
        fprintf(stderr, "at_once: %s failed with %d\n", what, result);
        exit(1);
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void *kernel;

static void spin(uint64_t nanoseconds) {
    uint64_t flag = 0;
    void *arguments[] = {&flag, &nanoseconds};
    check(CUDA(cuLaunchKernel, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)(
              kernel, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL),
          "cuLaunchKernel");
}

static void synchronize(void) { check(CUDA(cuCtxSynchronize, void)(), "cuCtxSynchronize"); }

static address memory(size_t bytes) {
    address block;
    check(CUDA(cuMemAlloc_v2, address *, size_t)(&block, bytes), "cuMemAlloc");
    check(CUDA(cuMemsetD8_v2, address, unsigned char, size_t)(block, 1, bytes), "cuMemsetD8");
    return block;
}

static int smaller(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static address to, from;
static char host[BYTES];

static int set(void) { return CUDA(cuMemsetD8_v2, address, unsigned char, size_t)(to, 1, BYTES); }
static int copy(void) { return CUDA(cuMemcpyDtoD_v2, address, address, size_t)(to, from, BYTES); }
static int copy_any(void) { return CUDA(cuMemcpy, address, address, size_t)(to, from, BYTES); }
static int upload(void) { return CUDA(cuMemcpyHtoD_v2, address, const void *, size_t)(to, host, BYTES); }
static int download(void) { return CUDA(cuMemcpyDtoH_v2, void *, address, size_t)(host, from, BYTES); }

static double timed(int (*call)(void), const char *name) {
    double begin = now();
    check(call(), name);
    return now() - begin;
}

static void measure(const char *name, int (*call)(void)) {
    double all[TIMES];
    for (int i = 0; i < TIMES; i++) {
        all[i] = timed(call, name);
        synchronize();
    }
    qsort(all, TIMES, sizeof *all, smaller);
    spin(KERNEL_NS);
    double behind = timed(call, name);
    synchronize();
    printf("\"%s\": {\"idle_us\": %.2f, \"behind_us\": %.1f}, ", name, all[TIMES / 2], behind);
}

static void calls(void) {
    to = memory(BYTES), from = memory(BYTES);
    synchronize();
    printf("{");
    measure("cuMemsetD8", set);
    measure("cuMemcpyDtoD", copy);
    measure("cuMemcpy", copy_any);
    measure("cuMemcpyHtoD", upload);
    measure("cuMemcpyDtoH", download);
    address blocks[TIMES];
    for (int i = 0; i < TIMES; i++) blocks[i] = memory(BYTES);
    synchronize();
    double begin = now();
    for (int i = 0; i < TIMES; i++) check(CUDA(cuMemFree_v2, address)(blocks[i]), "cuMemFree");
    double each = (now() - begin) / TIMES;
    /* The driver refuses this for such memory, or frees it; gpushare frees it. */
    address block = memory(BYTES);
    synchronize();
    spin(KERNEL_NS);
    begin = now();
    int code = CUDA(cuMemFreeAsync, address, void *)(block, NULL);
    double behind = now() - begin;
    synchronize();
    printf("\"cuMemFree\": {\"idle_us\": %.2f}, \"cuMemFreeAsync\": {\"code\": %d, \"behind_us\": %.1f}}\n", each, code, behind);
}

struct Properties {
    int kind, handles, location, device;
    void *security;
    size_t limit;
    unsigned char rest[56];
};

static void pools(void) {
    struct Properties properties = {.kind = 1, .location = 1};
    address blocks[16], more = 0;
    void *pool;
    int filled = 0, codes[2] = {0, 0}, asked = 0;
    uint64_t used = 0;
    for (; filled < 16; filled++) {
        check(CUDA(cuMemPoolCreate, void **, struct Properties *)(&pool, &properties), "cuMemPoolCreate");
        if (CUDA(cuMemAllocFromPoolAsync, address *, size_t, void *, void *)(&blocks[filled], POOL_BYTES, pool, NULL)) break;
        synchronize();
        check(CUDA(cuMemPoolDestroy, void *)(pool), "cuMemPoolDestroy");
        asked = CUDA(cuMemPoolGetAttribute, void *, int, uint64_t *)(pool, 7, &used);
    }
    if (filled < 16) codes[0] = CUDA(cuMemAlloc_v2, address *, size_t)(&more, POOL_BYTES);
    for (int i = 0; i < filled; i++) check(CUDA(cuMemsetD8_v2, address, unsigned char, size_t)(blocks[i], 1, POOL_BYTES), "cuMemsetD8");
    synchronize();
    for (int i = 0; i < filled; i++) check(CUDA(cuMemFreeAsync, address, void *)(blocks[i], NULL), "cuMemFreeAsync");
    synchronize();
    if (filled) codes[1] = CUDA(cuMemAlloc_v2, address *, size_t)(&more, POOL_BYTES * filled);
    printf("{\"filled\": %d, \"full_code\": %d, \"after_code\": %d, \"attribute_code\": %d}\n", filled, codes[0], codes[1], asked);
}

static void utilization(void) {
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW), *card;
    unsigned rates[2], sum = 0;
    if (!nvml) exit(1);
    check(((int (*)(void))found(nvml, "nvmlInit_v2"))(), "nvmlInit");
    check(((int (*)(unsigned, void **))found(nvml, "nvmlDeviceGetHandleByIndex_v2"))(0, &card), "nvmlDeviceGetHandleByIndex");
    int (*ask)(void *, unsigned *) = found(nvml, "nvmlDeviceGetUtilizationRates");
    double all = 0, worst = 0;
    for (int second = 0; second < SETTLED + 10; second++) {
        for (int i = 0; i < 10; i++) spin(100000000ull);
        for (int i = 0; i < 10; i++) {
            usleep(100000);
            double begin = now();
            check(ask(card, rates), "nvmlDeviceGetUtilizationRates");
            double took = now() - begin;
            if (second < SETTLED) continue;
            all += took, worst = took > worst ? took : worst, sum += rates[0];
        }
        synchronize();
    }
    printf("{\"average_us\": %.2f, \"worst_us\": %.1f, \"percent\": %.1f}\n", all / 100, worst, sum / 100.0);
}

int main(int count, char **arguments) {
    const char *way = count > 1 ? arguments[1] : "";
    void *context, *module;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) return 2;
    check(CUDA(cuInit, unsigned)(0), "cuInit");
    check(CUDA(cuDevicePrimaryCtxRetain, void **, int)(&context, 0), "cuDevicePrimaryCtxRetain");
    check(CUDA(cuCtxSetCurrent, void *)(context), "cuCtxSetCurrent");
    check(CUDA(cuModuleLoadData, void **, const void *)(&module, KERNEL), "cuModuleLoadData");
    check(CUDA(cuModuleGetFunction, void **, void *, const char *)(&kernel, module, "spin"), "cuModuleGetFunction");
    if (!strcmp(way, "calls")) calls();
    else if (!strcmp(way, "pools")) pools();
    else if (!strcmp(way, "utilization")) utilization();
    else return 2;
    return 0;
}
