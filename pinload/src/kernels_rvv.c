/*
 * Memory kernels of 64-bit RISC-V, vectors of the CPU's own length (RVV 1.0). See kernels.h.
 *
 * Assembler, because Debian 12's compiler does not know the vector extension while its assembler
 * does. The compiler uses no vector register, so none needs to be told. Whether the CPU has
 * vectors is asked by running one instruction: kernels before 6.5 and QEMU's user mode do not
 * tell by AT_HWCAP. Non-temporal stores are hints of an extension (Zihintntl) that has no
 * instructions of its own to be asked for: there are none here.
 */
#include "kernels.h"

#if defined(__riscv) && __riscv_xlen == 64

#include <setjmp.h>
#include <signal.h>

#define VECTORS(text)                                                                              \
    ".option push\n\t.option arch, +v\n\t" text "\n\t.option pop"

static sigjmp_buf back;

static void no_such_instruction(int number)
{
    (void)number;
    siglongjmp(back, 1);
}

static const char *missing(void)
{
    static int answer = -1;
    if (answer < 0) {
        struct sigaction now = {.sa_handler = no_such_instruction}, before;
        sigemptyset(&now.sa_mask);
        sigaction(SIGILL, &now, &before);
        answer = sigsetjmp(back, 1);
        if (answer == 0)
            __asm__ volatile(VECTORS("vsetvli zero, zero, e64, m8, ta, ma"));
        sigaction(SIGILL, &before, NULL);
    }
    return answer == 0 ? NULL : "the CPU, or the kernel of this machine, has no vector extension";
}

static uint64_t rvv_read(const void *from, size_t bytes, uint64_t passes)
{
    uint64_t sum, got;
    __asm__ volatile(VECTORS("vsetvli %0, zero, e64, m8, ta, ma\n\t"
                             "vmv.v.i v8, 0")
                     : "=r"(got));
    while (passes-- > 0) {
        const char *at = from;
        for (size_t left = bytes / 8; left > 0; left -= got, at += got * 8)
            __asm__ volatile(VECTORS("vsetvli %0, %1, e64, m8, tu, ma\n\t"
                                     "vle64.v v16, (%2)\n\t"
                                     "vadd.vv v8, v8, v16")
                             : "=&r"(got)
                             : "r"(left), "r"(at)
                             : "memory");
    }
    __asm__ volatile(VECTORS("vsetvli %0, zero, e64, m8, ta, ma\n\t"
                             "vmv.s.x v16, zero\n\t"
                             "vredsum.vs v16, v8, v16\n\t"
                             "vmv.x.s %1, v16")
                     : "=&r"(got), "=r"(sum));
    return sum;
}

static void rvv_write(void *to, size_t bytes, uint64_t value, uint64_t passes)
{
    uint64_t got;
    while (passes-- > 0) {
        char *at = to;
        for (size_t left = bytes / 8; left > 0; left -= got, at += got * 8)
            __asm__ volatile(VECTORS("vsetvli %0, %1, e64, m8, ta, ma\n\t"
                                     "vmv.v.x v8, %3\n\t"
                                     "vse64.v v8, (%2)")
                             : "=&r"(got)
                             : "r"(left), "r"(at), "r"(value)
                             : "memory");
    }
}

static void rvv_copy(void *to, const void *from, size_t bytes, uint64_t passes)
{
    uint64_t got;
    while (passes-- > 0) {
        char *target = to;
        const char *at = from;
        for (size_t left = bytes / 8; left > 0; left -= got, at += got * 8, target += got * 8)
            __asm__ volatile(VECTORS("vsetvli %0, %1, e64, m8, ta, ma\n\t"
                                     "vle64.v v8, (%2)\n\t"
                                     "vse64.v v8, (%3)")
                             : "=&r"(got)
                             : "r"(left), "r"(at), "r"(target)
                             : "memory");
    }
}

/* STREAM's loops; v8 holds what is stored. */
#define RVV_STREAM(name, first, second, to, text)                                                  \
    static void name(const struct stream_arrays *s, size_t from, size_t count)                     \
    {                                                                                              \
        const double q = STREAM_FACTOR, *x = (first) + from, *y = (second) + from;                 \
        double *z = (to) + from;                                                                   \
        for (uint64_t got; count > 0; count -= got, x += got, y += got, z += got)                  \
            __asm__ volatile(VECTORS("vsetvli %0, %1, e64, m8, ta, ma\n\t"                         \
                                     "vle64.v v8, (%2)\n\t" text "\n\t"                            \
                                     "vse64.v v8, (%4)")                                           \
                             : "=&r"(got)                                                          \
                             : "r"(count), "r"(x), "r"(y), "r"(z), "f"(q)                          \
                             : "memory");                                                          \
    }

RVV_STREAM(rvv_stream_copy, s->a, s->a, s->c, "")
RVV_STREAM(rvv_stream_scale, s->c, s->c, s->b, "vfmul.vf v8, v8, %5")
RVV_STREAM(rvv_stream_add, s->a, s->b, s->c, "vle64.v v16, (%3)\n\tvfadd.vv v8, v8, v16")
RVV_STREAM(rvv_stream_triad, s->b, s->c, s->a, "vle64.v v16, (%3)\n\tvfmacc.vf v8, %5, v16")

const struct kernels kernels_rvv = {
    .width = "rvv",
    .missing = missing,
    .read = rvv_read,
    .write = rvv_write,
    .copy = rvv_copy,
    .stream = {rvv_stream_copy, rvv_stream_scale, rvv_stream_add, rvv_stream_triad},
};

#endif
