// A program behind two layers (layer.c): prints where each lookup leads.
#include "driver.h"
#include <string.h>

int layers(void);
void *next_in_upper(const char *name);
void *next_in_lower(const char *name);
extern int mallocs;

static void tell(const char *who, const char *name, void *found) {
    Dl_info where = {0};
    if (found && dladdr(found, &where)) {
        const char *file = strrchr(where.dli_fname, '/');
        printf("%s %s: %s\n", who, name, file ? file + 1 : where.dli_fname);
    } else {
        printf("%s %s: nothing\n", who, name);
    }
}

int main(void) {
    libcuda();
    printf("layers: %d %d\n", layers(), layers());
    const char *names[] = {"layers", "malloc", "cuMemAlloc_v2", "cuNoSuchFunction"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        // Twice each, so that an answer that was remembered for one caller is not given to another.
        for (int again = 0; again < 2; again++) {
            tell("upper", names[i], next_in_upper(names[i]));
            tell("lower", names[i], next_in_lower(names[i]));
            tell("program", names[i], dlsym(RTLD_NEXT, names[i]));
        }
        tell("anybody", names[i], dlsym(RTLD_DEFAULT, names[i]));
    }
    start(0);
    printf("word: %u\n", word_at(filled(1 << 20, 5)));
    printf("malloc was called: %s\n", mallocs > 0 ? "yes" : "no");
    return 0;
}
