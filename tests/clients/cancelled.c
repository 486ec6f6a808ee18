// A thread is cancelled (pthread_cancel) while the driver or a gate holds it; another one goes on.
//
//   cancelled copy      in a copy that waits for a stream which a host function holds
//   cancelled launch    in a call that gives work to a stream which has no room for more
//   cancelled gate      in a call that gives work to the card, wherever that waits
//   cancelled room      in an allocation, wherever that waits, beside a stream which a host function holds
//   cancelled alloc     in an allocation, at the first place in it where a thread can be cancelled
//
// Each line of stdin is a step: "cancel" a thread in that place, "open" the held stream, "exit" with a thread in that
// place, or a number that another new thread sets memory to. Each step is answered by a line.
#include "driver.h"
#include <pthread.h>
#include <semaphore.h>
#include <string.h>

#define BYTES (40 << 20)

static const char *way;
static void *context;
static address memory;
static sem_t opened, arrived, cancelled;

static void hold(void *unused) {
    (void)unused;
    sem_wait(&opened);
}

static void enter(void) {
    must("cuCtxSetCurrent", DRIVER(cuCtxSetCurrent, void *)(context));
}

// Its only cancellation points are those of the calls that it is about.
static void *held(void *unused) {
    int (*copy)(void *, address, size_t) = DRIVER(cuMemcpyDtoH_v2, void *, address, size_t);
    int (*set)(address, unsigned, size_t, void *) = DRIVER(cuMemsetD32Async, address, unsigned, size_t, void *);
    unsigned word;
    enter();
    int (*alloc)(address *, size_t) = DRIVER(cuMemAlloc_v2, address *, size_t);
    address block;
    if (!strcmp(way, "alloc")) {
        int state;
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
        sem_post(&arrived);
        sem_wait(&cancelled);
        pthread_setcancelstate(state, NULL);
        alloc(&block, 1 << 20);
        return unused;
    }
    sem_post(&arrived);
    if (!strcmp(way, "copy"))
        copy(&word, memory, 4);
    else if (!strcmp(way, "room"))
        alloc(&block, 16 << 20);
    else
        for (int times = !strcmp(way, "launch") ? 1 << 20 : 1; times > 0; times--)
            set(memory, 99, 1, NULL);
    return unused;
}

static void cancel(void) {
    pthread_t thread;
    void *outcome;
    int is_told_when = !strcmp(way, "gate") || !strcmp(way, "room");
    // Beside work in flight no drain ends, and an allocation waits at the gate instead of coming back with a hole.
    if (strcmp(way, "gate") && strcmp(way, "alloc"))
        must("cuLaunchHostFunc", DRIVER(cuLaunchHostFunc, void *, void (*)(void *), void *)(NULL, hold, NULL));
    pthread_create(&thread, NULL, held, NULL);
    sem_wait(&arrived);
    if (is_told_when) {
        char line[16];
        printf("arrived\n");
        if (!fgets(line, sizeof line, stdin))
            exit(1);
    }
    pthread_cancel(thread);
    sem_post(&cancelled);
    pthread_join(thread, &outcome);
    printf("%s\n", outcome == PTHREAD_CANCELED ? "cancelled" : "came back");
}

// As the destructors of a library: the driver has gone by then, and says so.
static void at_end(void) {
    printf("at exit %d\n", DRIVER(cuMemsetD32Async, address, unsigned, size_t, void *)(memory, 98, 1, NULL));
}

static void *use(void *word) {
    enter();
    must("cuMemsetD32_v2", DRIVER(cuMemsetD32_v2, address, unsigned, size_t)(memory, *(unsigned *)word, BYTES / 4));
    printf("word %u\n", word_at(memory));
    return NULL;
}

int main(int argc, char **arguments) {
    char line[16];
    way = argc > 1 ? arguments[1] : "";
    setvbuf(stdout, NULL, _IOLBF, 0);
    atexit(at_end);
    sem_init(&opened, 0, 0);
    sem_init(&arrived, 0, 0);
    sem_init(&cancelled, 0, 0);
    start(0);
    must("cuCtxGetCurrent", DRIVER(cuCtxGetCurrent, void **)(&context));
    memory = filled(BYTES, 1);
    printf("word %u\n", word_at(memory));
    while (fgets(line, sizeof line, stdin)) {
        if (!strncmp(line, "cancel", 6)) {
            cancel();
        } else if (!strncmp(line, "open", 4)) {
            sem_post(&opened);
            printf("open\n");
        } else if (!strncmp(line, "exit", 4)) {
            pthread_t thread;
            pthread_create(&thread, NULL, held, NULL);
            sem_wait(&arrived);
            printf("arrived\n");
            if (!fgets(line, sizeof line, stdin))
                return 1;
            exit(7);
        } else {
            unsigned word = strtoul(line, NULL, 10);
            pthread_t thread;
            pthread_create(&thread, NULL, use, &word);
            pthread_join(thread, NULL);
        }
    }
    return 0;
}
