/* Knows nothing of CUDA. */

#include <unistd.h>

int main(void)
{
    return write(1, "hello\n", 6) == 6 ? 41 : 1;
}
