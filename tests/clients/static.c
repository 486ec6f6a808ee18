/* A program without a C library and without a loader: it ends with 7. */

void _start(void)
{
#if defined(__x86_64__)
    __asm__ volatile("syscall" : : "a"(60), "D"(7) : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long number __asm__("x8") = 93;
    register long status __asm__("x0") = 7;
    __asm__ volatile("svc 0" : : "r"(number), "r"(status) : "memory");
#else
#error "say how a program ends here"
#endif
    __builtin_unreachable();
}
