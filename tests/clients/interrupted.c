// Waits at the closed gate while signals arrive, as Python does it: the handlers (without SA_RESTART) only write the
// signal's number into a pipe.
//
// Lines of stdin and what is answered:
//   watch         the library interrupts waits when it reads SIGINT from the pipe      "watching CODE"
//   alarm         SIGALRM each millisecond from now on                                 "alarms"
//   forward WORD  sets the memory to WORD from this thread                             "forward CODE"
//   backward WORD the same from another thread, for which this one waits               "backward CODE"
//   release       gives the card back                                                  "release CODE"
//   word          reads the memory                                                     "word WORD"
//   next          reads the pipe to which the library passes the bytes on              "next SIGNAL"
// After a hundred alarms within one call, the program says "100 alarms".
#include "driver.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#define BYTES (40 << 20)

static int to_library[2], from_library[2];
static void *context;
static address memory;
static unsigned word;
static volatile sig_atomic_t alarms = -1;

static void note(int signal) {
    unsigned char number = (unsigned char)signal;
    ssize_t unused = write(to_library[1], &number, 1);
    if (signal == SIGALRM && alarms >= 0 && ++alarms == 100)
        unused = write(1, "100 alarms\n", 11);
    (void)unused;
}

static void handle(int signal) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = note;
    sigaction(signal, &action, NULL);
}

static int set(void) {
    int (*set)(address, unsigned, size_t, void *) = DRIVER(cuMemsetD32Async, address, unsigned, size_t, void *);
    int code;
    alarms = 0;
    code = set(memory, word, BYTES / 4, NULL);
    alarms = -1;
    return code;
}

// A signal does not end the reading of lines.
static int next_line(char *line, int size) {
    while (!fgets(line, size, stdin)) {
        if (!ferror(stdin) || errno != EINTR)
            return 0;
        clearerr(stdin);
    }
    return 1;
}

static void *launch(void *code) {
    must("cuCtxSetCurrent", DRIVER(cuCtxSetCurrent, void *)(context));
    *(int *)code = set();
    return NULL;
}

int main(void) {
    char line[32];
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (pipe(to_library) || pipe(from_library) || fcntl(to_library[1], F_SETFL, O_NONBLOCK))
        return 2;
    start(0);
    must("cuCtxGetCurrent", DRIVER(cuCtxGetCurrent, void **)(&context));
    memory = filled(BYTES, 1);
    printf("word %u\n", word_at(memory));
    while (next_line(line, sizeof line)) {
        int code = -1;
        word = strchr(line, ' ') ? strtoul(strchr(line, ' '), NULL, 10) : 0;
        if (!strncmp(line, "watch", 5)) {
            int (*watch)(int, int, int) = (int (*)(int, int, int))dlsym(RTLD_DEFAULT, "gpushare_interrupt_on");
            handle(SIGINT);
            printf("watching %d\n", watch ? watch(to_library[0], SIGINT, from_library[1]) : -1);
        } else if (!strncmp(line, "alarm", 5)) {
            struct itimerval often = {{0, 1000}, {0, 1000}};
            handle(SIGALRM);
            setitimer(ITIMER_REAL, &often, NULL);
            printf("alarms\n");
        } else if (!strncmp(line, "forward", 7)) {
            printf("forward %d\n", set());
        } else if (!strncmp(line, "twice", 5)) {
            /* As a library does that tries again in another way. */
            code = set();
            printf("twice %d\n", code ? set() : code);
        } else if (!strncmp(line, "over", 4)) {
            int (*over)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "gpushare_interrupt_over");
            printf("over %d\n", over ? over() : -1);
        } else if (!strncmp(line, "backward", 8)) {
            pthread_t thread;
            pthread_create(&thread, NULL, launch, &code);
            pthread_join(thread, NULL);
            printf("backward %d\n", code);
        } else if (!strncmp(line, "release", 7)) {
            int (*release)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "gpushare_release");
            printf("release %d\n", release ? release() : -1);
        } else if (!strncmp(line, "next", 4)) {
            unsigned char number = 0;
            while (read(from_library[0], &number, 1) != 1)
                if (errno != EINTR)
                    return 2;
            printf("next %d\n", number);
        } else {
            printf("word %u\n", word_at(memory));
        }
    }
    return 0;
}
