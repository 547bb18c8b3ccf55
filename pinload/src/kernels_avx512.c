/*
 * Memory kernels of x86-64, 512-bit (AVX-512). See kernels.h.
 */
#include "kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define VECTOR_BYTES 64
#define VECTOR_TARGET __attribute__((target("avx512f,prefer-vector-width=512")))
#define VECTOR_NAME(x) x##_avx512
#define VECTOR_REGISTER "v"
#define VECTOR_STORE_NT(to, v, w) \
    (_mm512_stream_si512((void *)(to), (__m512i)(v)), \
     _mm512_stream_si512((void *)((to) + 1), (__m512i)(w)))
#define VECTOR_FENCE() _mm_sfence()
#include "kernels_vector.h"

static const char *missing(void)
{
    return __builtin_cpu_supports("avx512f") ? NULL : "the CPU, or the kernel of this machine, has no AVX-512F";
}

const struct kernels kernels_avx512 = {.width = "avx512", .missing = missing, VECTOR_KERNELS};

#endif
