/*
 * Memory kernels of x86-64, 128-bit (SSE2), the width of Kuehn and Baum's memory benchmark. See kernels.h.
 */
#include "kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define VECTOR_BYTES 16
#define VECTOR_TARGET __attribute__((target("sse2")))
#define VECTOR_NAME(x) x##_128
#define VECTOR_REGISTER "x"
#define VECTOR_STORE_NT(to, v, w) \
    (_mm_stream_si128((__m128i *)(void *)(to), (__m128i)(v)), \
     _mm_stream_si128((__m128i *)(void *)((to) + 1), (__m128i)(w)))
#define VECTOR_FENCE() _mm_sfence()
#include "kernels_vector.h"

static const char *missing(void)
{
    return __builtin_cpu_supports("sse2") ? NULL : "the CPU, or the kernel of this machine, has no SSE2";
}

const struct kernels kernels_128 = {.width = "128", .missing = missing, VECTOR_KERNELS};

#endif
