// Fills a pool of the second device, where the program has no context, from a stream of the first one. Answers each line
// of stdin with what an allocation of 64 MiB answers.
#include "driver.h"

struct properties {
    int kind, handle_types, location, device;
    void *security;
    size_t limit;
    unsigned char rest[56];
};

int main(void) {
    struct properties properties = {.kind = 1, .location = 1, .device = 1};
    char line[16];
    void *pool;
    start(0);
    must("cuMemPoolCreate", DRIVER(cuMemPoolCreate, void **, struct properties *)(&pool, &properties));
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        address block;
        printf("%d\n", DRIVER(cuMemAllocFromPoolAsync, address *, size_t, void *, void *)(&block, 64 << 20, pool, NULL));
    }
    return 0;
}
