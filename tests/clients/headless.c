// Its first thread ends while another one goes on: at the line `leave` of stdin. At `read` it reads its memory.
#include "driver.h"
#include <pthread.h>
#include <string.h>

static pthread_t first;
static pthread_barrier_t leaving;

static void *serve(void *unused) {
    address memory;
    char line[32];
    (void)unused;
    start(0);
    memory = filled(8 << 20, 7);
    must("cuCtxSynchronize", DRIVER(cuCtxSynchronize)());
    printf("ready 0\n");
    while (fgets(line, sizeof line, stdin)) {
        unsigned word = 0;
        if (!strcmp(line, "leave\n")) {
            pthread_barrier_wait(&leaving);
            pthread_join(first, NULL);
            printf("left 0\n");
        } else {
            must("cuMemcpyDtoH_v2", DRIVER(cuMemcpyDtoH_v2, void *, address, size_t)(&word, memory, sizeof word));
            printf("read %u\n", word);
        }
    }
    exit(0);
}

int main(void) {
    pthread_t other;
    setvbuf(stdout, NULL, _IOLBF, 0);
    first = pthread_self();
    pthread_barrier_init(&leaving, NULL, 2);
    if (pthread_create(&other, NULL, serve, NULL))
        return 2;
    pthread_barrier_wait(&leaving);
    pthread_exit(NULL);
}
