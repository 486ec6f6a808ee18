// Library for notebooks, whose cells call it by ctypes.
#include "driver.h"
#include <pthread.h>
#include <unistd.h>

struct launch {
    void *context;
    address memory;
    unsigned word;
    size_t count;
    int code;
};

static void *work(void *given) {
    struct launch *launch = given;
    must("cuCtxSetCurrent", DRIVER(cuCtxSetCurrent, void *)(launch->context));
    launch->code = DRIVER(cuMemsetD32Async, address, unsigned, size_t, void *)(launch->memory, launch->word,
                                                                              launch->count, NULL);
    return NULL;
}

// Gives work to the card from another thread, for which the caller waits in C, as a backward pass of PyTorch does.
int backward(address memory, unsigned word, size_t count) {
    struct launch launch = {NULL, memory, word, count, -1};
    pthread_t thread;
    must("cuCtxGetCurrent", DRIVER(cuCtxGetCurrent, void **)(&launch.context));
    if (pthread_create(&thread, NULL, work, &launch))
        return -1;
    pthread_join(thread, NULL);
    return launch.code;
}

static void until_file(void *path) {
    while (access(path, F_OK))
        usleep(1000);
}

// Keeps the card busy until a file is there.
int hold(const char *path) {
    must("cuLaunchHostFunc", DRIVER(cuLaunchHostFunc, void *, void (*)(void *), void *)(NULL, until_file, (void *)path));
    return DRIVER(cuCtxSynchronize, void)();
}

// Number of words that are not `word`.
size_t others(const unsigned *words, size_t count, unsigned word) {
    size_t found = 0;
    for (size_t at = 0; at < count; at++)
        found += words[at] != word;
    return found;
}
