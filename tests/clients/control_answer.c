// Stands where the NVIDIA driver would: answers control calls with the pids in ON_THE_CARD, and passes on all others.
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

struct control { uint32_t client, object, command, flags; uint32_t *parameters; uint32_t size, status; };

int ioctl(int file, unsigned long request, ...) {
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    if (request != 0xc020462a)
        return (int)syscall(SYS_ioctl, file, request, argument);
    struct control *control = argument;
    uint32_t *words = control->parameters, count = 0;
    for (char *text = getenv("ON_THE_CARD"); text && *text; count++)
        words[3 + count] = (uint32_t)strtoul(text, &text, 10);
    words[0] = 0;
    words[1] = 0xcbc0;
    words[2] = count;
    control->status = 0;
    return 0;
}
