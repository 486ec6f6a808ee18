// Memory of the second device that kernels of the first one may use, allocated before and after they may. Obeys each
// line of stdin, and answers it:
//
//   enable    lets the first device use the memory of the second one
//   allocate  allocates another block there
//   fill N    fills the first block there with a word, by the second device
//   read N    copies that block to the host in the first device's context, and compares each word
//
// The argument is the size of the first block in MiB.
#include <string.h>

#include "driver.h"

static void *retained(int ordinal) {
    int device;
    void *context;
    must("cuDeviceGet", DRIVER(cuDeviceGet, int *, int)(&device, ordinal));
    must("cuDevicePrimaryCtxRetain", DRIVER(cuDevicePrimaryCtxRetain, void **, int)(&context, device));
    return context;
}

static void enter(void *context) {
    must("cuCtxSetCurrent", DRIVER(cuCtxSetCurrent, void *)(context));
}

static address allocate_in(void *context, size_t bytes) {
    address memory;
    enter(context);
    must("cuMemAlloc_v2", DRIVER(cuMemAlloc_v2, address *, size_t)(&memory, bytes));
    return memory;
}

static int is_right(address block, size_t bytes, unsigned word) {
    unsigned *words = malloc(bytes);
    must("cuMemcpyDtoH_v2", DRIVER(cuMemcpyDtoH_v2, void *, address, size_t)(words, block, bytes));
    size_t number = 0;
    while (number < bytes / sizeof *words && words[number] == word)
        number++;
    free(words);
    return number == bytes / sizeof *words;
}

int main(int count, char **arguments) {
    char line[64];
    size_t bytes = (size_t)(count > 1 ? atoi(arguments[1]) : 4) << 20;
    must("cuInit", DRIVER(cuInit, unsigned)(0));
    void *first = retained(0), *second = retained(1);
    setvbuf(stdout, NULL, _IOLBF, 0);
    address block = allocate_in(second, bytes);
    allocate_in(first, 4 << 20);
    printf("two blocks\n");
    while (fgets(line, sizeof line, stdin)) {
        unsigned word = 0;
        if (sscanf(line, "fill %u", &word) == 1) {
            enter(second);
            must("cuMemsetD32_v2", DRIVER(cuMemsetD32_v2, address, unsigned, size_t)(block, word, bytes / 4));
            must("cuCtxSynchronize", DRIVER(cuCtxSynchronize, void)());
            printf("filled\n");
        } else if (sscanf(line, "read %u", &word) == 1) {
            enter(first);
            printf(is_right(block, bytes, word) ? "right\n" : "wrong\n");
        } else if (!strcmp(line, "allocate\n")) {
            allocate_in(second, 4 << 20);
            printf("three blocks\n");
        } else if (strcmp(line, "enable\n")) {
            return 1;
        } else {
            enter(first);
            must("cuCtxEnablePeerAccess", DRIVER(cuCtxEnablePeerAccess, void *, unsigned)(second, 0));
            printf("peers\n");
        }
    }
    return 0;
}
