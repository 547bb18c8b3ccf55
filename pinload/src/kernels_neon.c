/*
 * Memory kernels of 64-bit Arm, 128-bit (NEON, which each such CPU has). See kernels.h.
 */
#include "kernels.h"

#if defined(__aarch64__)

#define VECTOR_BYTES 16
#define VECTOR_TARGET
#define VECTOR_NAME(x) x##_neon
#define VECTOR_REGISTER "w"
/* stnp is a hint: a CPU may store as usual. */
#define VECTOR_STORE_NT(to, v, w) \
    __asm__ volatile("stnp %q0, %q1, [%2]" : : "w"(v), "w"(w), "r"(to) : "memory")
#define VECTOR_FENCE() __asm__ volatile("dmb ishst" : : : "memory")
#include "kernels_vector.h"

static const char *missing(void)
{
    return NULL;
}

const struct kernels kernels_neon = {
    .width = "neon", .also = "128", .missing = missing, VECTOR_KERNELS};

#endif
