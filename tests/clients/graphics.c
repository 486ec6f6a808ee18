// Takes objects of a graphics interface. Each line of stdin is the name of a function of the driver and the number of
// the object, of which 0 is none. The answer is the name and what the driver said.
#include "driver.h"
#include <string.h>

int main(void) {
    char name[64];
    unsigned long object;
    start(0);
    filled(8 << 20, 7);
    must("cuCtxSynchronize", DRIVER(cuCtxSynchronize)());
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("ready\n");
    while (scanf("%63s %lu", name, &object) == 2) {
        void *resource, *found = driver_symbol(name);
        int said = strcmp(name, "cuGLRegisterBufferObject")
                       ? ((int (*)(void **, unsigned long, int, int))found)(&resource, object, 0, 0)
                       : ((int (*)(unsigned))found)(object);
        printf("%s %d\n", name, said);
    }
    return 0;
}
