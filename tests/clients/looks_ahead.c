// Looks for functions of CUDA 14.0 in each way that it is told, one per argument, and prints what it found; lives until its stdin
// ends.
//
//   context             makes a context
//   dlsym NAME          asks libcuda's handle
//   default NAME        asks RTLD_DEFAULT
//   proc NAME VERSION   asks cuGetProcAddress
#include "driver.h"
#include <string.h>

static void tell(const char *name, void *found) {
    Dl_info where;
    if (!found || !dladdr(found, &where)) {
        printf("%s: nothing\n", name);
        return;
    }
    const char *file = strrchr(where.dli_fname, '/');
    printf("%s: %s\n", name, file ? file + 1 : where.dli_fname);
}

int main(int argc, char **words) {
    for (int at = 1; at < argc; at++) {
        void *found = NULL;
        if (!strcmp(words[at], "context")) {
            start(0);
        } else if (!strcmp(words[at], "dlsym") && at + 1 < argc) {
            found = dlsym(libcuda(), words[++at]);
            tell(words[at], found);
        } else if (!strcmp(words[at], "default") && at + 1 < argc) {
            found = dlsym(RTLD_DEFAULT, words[++at]);
            tell(words[at], found);
        } else if (!strcmp(words[at], "proc") && at + 2 < argc) {
            int status;
            DRIVER(cuGetProcAddress_v2, const char *, void **, int, uint64_t, int *)
            (words[at + 1], &found, atoi(words[at + 2]), 0, &status);
            tell(words[at + 1], found);
            at += 2;
        } else {
            return 2;
        }
    }
    printf("ready\n");
    fflush(stdout);
    while (getchar() != EOF) {
    }
    return 0;
}
