// Asks who is on a card as libnvidia-ml does, by a control call of the driver, and then what any program asks of ioctl.
// No card of this machine answers: control_answer.c does, loaded behind gpushare.
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define KEPT 77

struct control { uint32_t client, object, command, flags; void *parameters; uint32_t size, status; };
struct pids { uint32_t kind, class, count, pids[950]; };

static void pids(const char *what, uint32_t command, uint32_t size) {
    static struct pids list;
    struct control control = {1, 2, command, 0, &list, size, 99};
    errno = KEPT;
    int result = ioctl(0, 0xc020462a, &control);
    printf("%s: %d, errno %d, status %u:", what, result, errno, control.status);
    for (uint32_t i = 0; i < list.count; i++)
        printf(" %u", list.pids[i]);
    printf("\n");
}

int main(void) {
    pids("list", 0x2080018d, sizeof(struct pids));
    pids("another size", 0x2080018d, sizeof(struct pids) - 4);
    pids("another question", 0x2080018e, sizeof(struct pids));

    int ends[2], waiting = -1;
    struct termios terminal;
    if (pipe(ends) || write(ends[1], "abc", 3) != 3)
        return 1;
    errno = KEPT;
    int result = ioctl(ends[0], FIONREAD, &waiting);
    printf("a pipe: %d, errno %d, %d bytes\n", result, errno, waiting);
    result = ioctl(ends[0], TCGETS, &terminal);
    printf("no terminal: %d, errno %d\n", result, errno);
    result = ioctl(-1, FIONREAD, &waiting);
    printf("no file: %d, errno %d\n", result, errno);
    result = ioctl(ends[0], FIOCLEX);
    printf("without an argument: %d\n", result);
    return 0;
}
