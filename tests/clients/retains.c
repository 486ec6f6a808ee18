// Retains a primary context and says what the driver answered.
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context = 0;
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
    if (!init || !retain)
        return 1;
    init(0);
    printf("%d\n", retain(&context, 0));
    return 0;
}
