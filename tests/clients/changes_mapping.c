// Prints what the driver answers to calls that change the mapping of plain device memory.
#include "driver.h"

struct access {
    int kind, device, flags;
};

int main(void) {
    start(0);
    address memory = filled(4 << 20, 7);
    struct access access = {1, 0, 3};
    uint64_t handle = 0;
    printf("unmap %d\n", DRIVER(cuMemUnmap, address, size_t)(memory, 4 << 20));
    printf("access %d\n", DRIVER(cuMemSetAccess, address, size_t, struct access *, size_t)(memory, 4 << 20, &access, 1));
    printf("free %d\n", DRIVER(cuMemAddressFree, address, size_t)(memory, 4 << 20));
    printf("retain %d\n", DRIVER(cuMemRetainAllocationHandle, uint64_t *, void *)(&handle, (void *)memory));
    printf("word %u\n", word_at(memory));
    return 0;
}
