// First process of a pod's sandbox.
#include <unistd.h>

int main(void) {
    for (;;) pause();
}
