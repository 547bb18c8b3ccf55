/*
 * Memory kernels of x86-64, 256-bit (AVX2). See kernels.h.
 */
#include "kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define VECTOR_BYTES 32
#define VECTOR_TARGET __attribute__((target("avx2")))
#define VECTOR_NAME(x) x##_avx2
#define VECTOR_REGISTER "x"
#define VECTOR_STORE_NT(to, v, w) \
    (_mm256_stream_si256((__m256i *)(void *)(to), (__m256i)(v)), \
     _mm256_stream_si256((__m256i *)(void *)((to) + 1), (__m256i)(w)))
#define VECTOR_FENCE() _mm_sfence()
#include "kernels_vector.h"

static const char *missing(void)
{
    return __builtin_cpu_supports("avx2") ? NULL : "the CPU, or the kernel of this machine, has no AVX2";
}

const struct kernels kernels_avx2 = {.width = "avx2", .missing = missing, VECTOR_KERNELS};

#endif
