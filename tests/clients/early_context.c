// Asks for a context before the driver is initialized, which the driver refuses. Then it uses the GPU and holds it until
// stdin ends.
#include "driver.h"
#include <unistd.h>

int main(void) {
    void *context;
    printf("%d\n", DRIVER(cuDevicePrimaryCtxRetain, void **, int)(&context, 0));
    start(0);
    address memory = filled(64 << 20, 21);
    printf("%u\n", word_at(memory));
    fflush(stdout);
    char nothing;
    while (read(0, &nothing, 1) > 0)
        ;
    return 0;
}
