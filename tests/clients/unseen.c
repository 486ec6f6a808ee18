// Gives work to the card past every hook: its functions come from the driver's own symbol table, not from dlsym.
//
//   unseen busy MIB   sets so much memory again and again in such a stream, until stdin ends
//   unseen idle MIB   does nothing, until stdin ends
//   unseen faults MIB   sets so much memory in such a stream at the first line of stdin, whatever becomes of that, and
//                       then by cuMemsetD32Async as any program does; prints both answers
//   unseen unknown MIB   looks a function of CUDA 14.0 up, and does nothing until stdin ends
#include "driver.h"
#include <elf.h>
#include <link.h>
#include <poll.h>
#include <string.h>

#define NON_BLOCKING 1

// A function of the driver as its file has it.
static void *unseen(const char *name) {
    struct link_map *file;
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    size_t size = 0;
    if (dlinfo(libcuda(), RTLD_DI_LINKMAP, &file))
        exit(2);
    for (const ElfW(Dyn) *entry = file->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB)
            symbols = (const void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_STRTAB)
            names = (const void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_STRSZ)
            size = entry->d_un.d_val;
    }
    // The names lie behind the symbols.
    for (; (const char *)(symbols + 1) <= names; symbols++)
        if (symbols->st_value && symbols->st_name < size && !strcmp(names + symbols->st_name, name))
            return (char *)file->l_addr + symbols->st_value;
    fprintf(stderr, "the driver's file has no %s\n", name);
    exit(2);
}

typedef int (*set_words)(address, unsigned, size_t, void *);

// A stream that no hook has seen.
static void *unseen_stream(void) {
    void *stream;
    must("cuStreamCreate", ((int (*)(void **, unsigned))unseen("cuStreamCreate"))(&stream, NON_BLOCKING));
    return stream;
}

static int faults(address memory, size_t bytes) {
    void *stream = unseen_stream();
    set_words set = (set_words)unseen("cuMemsetD32Async");
    int (*wait)(void *) = (int (*)(void *))unseen("cuStreamSynchronize");
    printf("{\"ready\": true}\n");
    fflush(stdout);
    if (getchar() == EOF)
        return 1;
    set(memory, 1, bytes / 4, stream);
    printf("{\"unseen\": %d}\n", wait(stream));
    fflush(stdout);
    int answer = DRIVER(cuMemsetD32Async, address, unsigned, size_t, void *)(memory, 2, bytes / 4, NULL);
    printf("{\"answer\": %d}\n", answer);
    return fflush(stdout);
}

int main(int count, char **arguments) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    const char *what = count > 1 ? arguments[1] : "busy";
    size_t bytes = (count > 2 ? strtoul(arguments[2], NULL, 10) : 64) << 20;
    address memory;
    start(0);
    if (!strcmp(what, "unknown"))
        dlsym(libcuda(), "cuConjure");
    memory = filled(bytes, 0);
    if (!strcmp(what, "faults"))
        return faults(memory, bytes);
    printf("{\"ready\": true}\n");
    fflush(stdout);
    if (strcmp(what, "busy"))
        return poll(&input, 1, -1) != 1;
    void *stream = unseen_stream();
    set_words set = (set_words)unseen("cuMemsetD32Async");
    int (*wait)(void *) = (int (*)(void *))unseen("cuStreamSynchronize");
    for (unsigned word = 1; poll(&input, 1, 0) == 0; word++) {
        must("cuMemsetD32Async", set(memory, word, bytes / 4, stream));
        must("cuStreamSynchronize", wait(stream));
    }
    return 0;
}
