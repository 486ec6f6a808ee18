// Forks around CUDA, in one of several ways, and prints what parent and child find.
//
//   family before    forks, then both use the GPU
//   family after     uses the GPU, forks; the child tries to use it too, which CUDA forbids
//   family spawn     uses the GPU; a child executes `family alone`
//   family exec      uses the GPU, then executes `family alone` itself
//   family orphan    uses the GPU; a child that was made past pthread_atfork keeps every descriptor, echoes stdin and outlives it
//   family alone     uses the GPU
#include "driver.h"
#include <string.h>
#include <sys/syscall.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES (8 << 20)

static void say(const char *who, unsigned word) {
    printf("%s %u\n", who, word);
    fflush(stdout);
}

// The end of a child as its parent sees it.
static int wait_for(pid_t child) {
    int status;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status))
        return -1;
    return WEXITSTATUS(status);
}

static int use(const char *who, unsigned word) {
    start(0);
    say(who, word_at(filled(BYTES, word)));
    return 0;
}

static int before(void) {
    pid_t child = fork();
    if (!child)
        exit(use("child", 7));
    int ended = wait_for(child);
    use("parent", 9);
    say("the child ended with", ended);
    return 0;
}

static int after(void) {
    start(0);
    address memory = filled(BYTES, 11);
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        address other;
        unsigned word;
        say("the child's cuMemAlloc_v2", DRIVER(cuMemAlloc_v2, address *, size_t)(&other, BYTES));
        say("the child's cuMemcpyDtoH_v2", DRIVER(cuMemcpyDtoH_v2, void *, address, size_t)(&word, memory, 4));
        say("the child's cuInit", DRIVER(cuInit, unsigned)(0));
        say("the child's cuMemFree_v2", DRIVER(cuMemFree_v2, address)(memory));
        exit(3);
    }
    say("the child ended with", wait_for(child));
    say("parent", word_at(memory));
    say("parent again", word_at(filled(BYTES, 12)));
    return 0;
}

static int spawn(const char *self) {
    start(0);
    address memory = filled(BYTES, 13);
    pid_t child = fork();
    if (!child) {
        execl(self, self, "alone", NULL);
        _exit(127);
    }
    say("the child ended with", wait_for(child));
    say("parent", word_at(memory));
    return 0;
}

static int execute(const char *self) {
    start(0);
    say("before", word_at(filled(BYTES, 14)));
    execl(self, self, "alone", NULL);
    return 127;
}

static int orphan(void) {
    start(0);
    address memory = filled(BYTES, 15);
    // The system call itself: no handler of ours or the driver's runs in the child.
    pid_t child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (!child) {
        char line[64];
        setsid();
        for (ssize_t got; (got = read(0, line, sizeof line)) > 0;)
            if (write(1, line, got) != got)
                break;
        _exit(0);
    }
    say("parent", word_at(memory));
    for (;;)
        pause();
}

int main(int argc, char **arguments) {
    const char *way = argc > 1 ? arguments[1] : "";
    if (!strcmp(way, "before"))
        return before();
    if (!strcmp(way, "after"))
        return after();
    if (!strcmp(way, "spawn"))
        return spawn("/proc/self/exe");
    if (!strcmp(way, "exec"))
        return execute("/proc/self/exe");
    if (!strcmp(way, "orphan"))
        return orphan();
    if (!strcmp(way, "alone"))
        return use("alone", 16);
    fprintf(stderr, "family does not know `%s`\n", way);
    return 2;
}
