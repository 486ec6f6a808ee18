// Uses a little of the GPU, says what it found there, and holds it until stdin ends.
#include "driver.h"
#include <unistd.h>

int main(void) {
    start(0);
    address memory = filled(4096, 21);
    printf("%u\n", word_at(memory));
    fflush(stdout);
    char nothing;
    while (read(0, &nothing, 1) > 0)
        ;
    printf("%u\n", word_at(memory));
    must("cuMemFree_v2", DRIVER(cuMemFree_v2, address)(memory));
    return 0;
}
