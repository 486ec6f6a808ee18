/* Prints whether our library was preloaded, and whether dlsym(RTLD_NEXT, ...) means what is next after this program. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    Dl_info first = {0}, next = {0};
    dladdr(dlsym(RTLD_DEFAULT, "dlsym"), &first);
    dladdr(dlsym(RTLD_NEXT, "puts"), &next);
    int ours = first.dli_fname && strstr(first.dli_fname, "libgpushare.so");
    int libc = next.dli_fname && strstr(next.dli_fname, "libc");
    printf("loaded %s, next %s\n", ours ? "yes" : "no", libc ? "yes" : "no");
    return 41;
}
