// Answers each line of stdin with the utilization of the first card, in percent. With an argument it first makes
// a context on that card, and says so.
#include "driver.h"

int main(int count, char **arguments) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW), *card;
    char line[16];
    unsigned rates[2];
    (void)arguments;
    if (!library)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count > 1) {
        start(0);
        puts("ready");
    }
    int (*init)(void) = (int (*)(void))dlsym(library, "nvmlInit_v2");
    int (*by_index)(unsigned, void **) = (int (*)(unsigned, void **))dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    int (*ask)(void *, unsigned *) = (int (*)(void *, unsigned *))dlsym(library, "nvmlDeviceGetUtilizationRates");
    must("nvmlInit_v2", init());
    must("nvmlDeviceGetHandleByIndex_v2", by_index(0, &card));
    while (fgets(line, sizeof line, stdin)) {
        must("nvmlDeviceGetUtilizationRates", ask(card, rates));
        printf("%u\n", rates[0]);
    }
    return 0;
}
