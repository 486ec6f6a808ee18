// Ends while it is frozen: at a line of stdin without another call of the driver, or by its own handler of SIGTERM, which
// reads the memory.
#include "driver.h"
#include <signal.h>

static address memory;

static void on_term(int signal) {
    unsigned word = 0;
    int code = DRIVER(cuMemcpyDtoH_v2, void *, address, size_t)(&word, memory, sizeof word);
    (void)signal;
    printf("handler %d %u\n", code, word);
    exit(0);
}

int main(void) {
    char line[32];
    setvbuf(stdout, NULL, _IOLBF, 0);
    start(0);
    memory = filled(8 << 20, 7);
    must("cuCtxSynchronize", DRIVER(cuCtxSynchronize)());
    signal(SIGTERM, on_term);
    printf("ready 0\n");
    while (fgets(line, sizeof line, stdin))
        if (line[0] == 'e')
            return 0;
    return 1;
}
