/*
 * Choice of a width; the scalar kernels and the partial ones. See kernels.h.
 *
 * Scalar code reads and writes through volatile: a compiler may neither widen such accesses to
 * vectors nor turn them into calls of memset and memcpy.
 */
#include "kernels.h"

#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef uint64_t __attribute__((may_alias)) word64;
typedef uint32_t __attribute__((may_alias)) word32;

const struct kernels *const kernels_all[] = {
    &kernels_scalar,
#if defined(__x86_64__)
    &kernels_128,    &kernels_avx2, &kernels_avx512,
#elif defined(__aarch64__)
    &kernels_neon,
#elif defined(__riscv) && __riscv_xlen == 64
    &kernels_rvv,
#endif
    NULL,
};

const struct kernels *kernels_widest(void)
{
    const struct kernels *widest = &kernels_scalar;
    for (size_t i = 0; kernels_all[i]; i++)
        if (!kernels_all[i]->missing())
            widest = kernels_all[i];
    return widest;
}

static bool is_known(const char *name)
{
    static const char *const known[] = {"auto", "scalar", "128", "avx2", "avx512", "neon", "rvv"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, known[i]))
            return true;
    return false;
}

const struct kernels *kernels_choose(const char *argument, const char *name)
{
    if (!strcmp(name, "auto"))
        return kernels_widest();
    for (size_t i = 0; kernels_all[i]; i++) {
        const struct kernels *kernels = kernels_all[i];
        if (strcmp(name, kernels->width) != 0 && !(kernels->also && !strcmp(name, kernels->also)))
            continue;
        const char *why = kernels->missing();
        if (!why)
            return kernels;
        complain("%s: \"%s\" cannot run here: %s", argument, name, why);
        return NULL;
    }
    if (is_known(name))
        complain("%s: \"%s\" is not a width of this architecture; the widest here is %s", argument,
                 name, kernels_widest()->width);
    else
        complain("%s: \"%s\" is not auto, scalar, 128, avx2, avx512, neon or rvv", argument, name);
    return NULL;
}

static const char *nothing_missing(void)
{
    return NULL;
}

/* Each pass counts: without this a compiler may do one and multiply. */
static inline void new_pass(void)
{
    __asm__ volatile("" : : : "memory");
}

static uint64_t scalar_read(const void *from, size_t bytes, uint64_t passes)
{
    uint64_t sum[4] = {0};
    const volatile word64 *const end = (const volatile word64 *)((const char *)from + bytes);
    while (passes-- > 0) {
        for (const volatile word64 *at = from; at < end; at += 8) {
            sum[0] += at[0];
            sum[1] += at[1];
            sum[2] += at[2];
            sum[3] += at[3];
            sum[0] += at[4];
            sum[1] += at[5];
            sum[2] += at[6];
            sum[3] += at[7];
        }
    }
    return sum[0] + sum[1] + sum[2] + sum[3];
}

static void scalar_write(void *to, size_t bytes, uint64_t value, uint64_t passes)
{
    const volatile word64 *const end = (const volatile word64 *)((const char *)to + bytes);
    while (passes-- > 0) {
        for (volatile word64 *at = to; at < end; at += 8)
            at[0] = at[1] = at[2] = at[3] = at[4] = at[5] = at[6] = at[7] = value;
    }
}

static void scalar_copy(void *to, const void *from, size_t bytes, uint64_t passes)
{
    const volatile word64 *const end = (const volatile word64 *)((const char *)from + bytes);
    while (passes-- > 0) {
        volatile word64 *target = to;
        for (const volatile word64 *at = from; at < end; at += 4, target += 4) {
            const uint64_t a = at[0], b = at[1], c = at[2], d = at[3];
            target[0] = a;
            target[1] = b;
            target[2] = c;
            target[3] = d;
        }
    }
}

static void scalar_stream_copy(const struct stream_arrays *s, size_t from, size_t count)
{
    const volatile double *const a = s->a;
    volatile double *const c = s->c;
    for (size_t i = from; i < from + count; i++)
        c[i] = a[i];
}

static void scalar_stream_scale(const struct stream_arrays *s, size_t from, size_t count)
{
    const volatile double *const c = s->c;
    volatile double *const b = s->b;
    for (size_t i = from; i < from + count; i++)
        b[i] = STREAM_FACTOR * c[i];
}

static void scalar_stream_add(const struct stream_arrays *s, size_t from, size_t count)
{
    const volatile double *const a = s->a, *const b = s->b;
    volatile double *const c = s->c;
    for (size_t i = from; i < from + count; i++)
        c[i] = a[i] + b[i];
}

static void scalar_stream_triad(const struct stream_arrays *s, size_t from, size_t count)
{
    const volatile double *const b = s->b, *const c = s->c;
    volatile double *const a = s->a;
    for (size_t i = from; i < from + count; i++)
        a[i] = b[i] + STREAM_FACTOR * c[i];
}

#if defined(__x86_64__)
/* movnti: 64 bits from a general register. */
static void scalar_write_nt(void *to, size_t bytes, uint64_t value, uint64_t passes)
{
    const char *const end = (const char *)to + bytes;
    while (passes-- > 0) {
        for (char *at = to; at < end; at += 64)
            for (int i = 0; i < 64; i += 8)
                _mm_stream_si64((long long *)(void *)(at + i), (long long)value);
    }
    _mm_sfence();
}

static void scalar_copy_nt(void *to, const void *from, size_t bytes, uint64_t passes)
{
    const char *const end = (const char *)from + bytes;
    while (passes-- > 0) {
        char *target = to;
        for (const char *at = from; at < end; at += 64, target += 64)
            for (int i = 0; i < 64; i += 8)
                _mm_stream_si64((long long *)(void *)(target + i),
                                (long long)*(const volatile word64 *)(const void *)(at + i));
    }
    _mm_sfence();
}
#endif

const struct kernels kernels_scalar = {
    .width = "scalar",
    .missing = nothing_missing,
    .read = scalar_read,
    .write = scalar_write,
    .copy = scalar_copy,
#if defined(__x86_64__)
    .write_nt = scalar_write_nt,
    .copy_nt = scalar_copy_nt,
#endif
    .stream = {scalar_stream_copy, scalar_stream_scale, scalar_stream_add, scalar_stream_triad},
};

uint64_t partial_read(const void *from, size_t bytes, size_t stride, uint64_t passes)
{
    uint64_t sum[4] = {0};
    const size_t step = stride / sizeof(word32);
    const volatile word32 *const end = (const volatile word32 *)((const char *)from + bytes);
    while (passes-- > 0) {
        for (const volatile word32 *at = from; at < end; at += 8 * step) {
            sum[0] += at[0];
            sum[1] += at[step];
            sum[2] += at[2 * step];
            sum[3] += at[3 * step];
            sum[0] += at[4 * step];
            sum[1] += at[5 * step];
            sum[2] += at[6 * step];
            sum[3] += at[7 * step];
        }
    }
    return sum[0] + sum[1] + sum[2] + sum[3];
}

void partial_write(void *to, size_t bytes, size_t stride, uint32_t value, uint64_t passes)
{
    const size_t step = stride / sizeof(word32);
    const volatile word32 *const end = (const volatile word32 *)((const char *)to + bytes);
    while (passes-- > 0)
        for (volatile word32 *at = to; at < end; at += 8 * step)
            at[0] = at[step] = at[2 * step] = at[3 * step] = at[4 * step] = at[5 * step] =
                at[6 * step] = at[7 * step] = value;
}

uint64_t partial_modify(void *to, size_t bytes, size_t stride, uint32_t value, uint64_t passes)
{
    uint64_t sum[4] = {0};
    const size_t step = stride / sizeof(word32);
    const volatile word32 *const end = (const volatile word32 *)((const char *)to + bytes);
    while (passes-- > 0) {
        for (volatile word32 *at = to; at < end; at += 4 * step) {
            for (int i = 0; i < 4; i++) {
                sum[i] += at[(size_t)i * step];
                at[(size_t)i * step] = value;
            }
        }
    }
    return sum[0] + sum[1] + sum[2] + sum[3];
}

void partial_copy(void *to, const void *from, size_t bytes, size_t stride, uint64_t passes)
{
    const size_t step = stride / sizeof(word32);
    const volatile word32 *const end = (const volatile word32 *)((const char *)from + bytes);
    while (passes-- > 0) {
        volatile word32 *target = to;
        for (const volatile word32 *at = from; at < end; at += 4 * step, target += 4 * step) {
            const uint32_t a = at[0], b = at[step], c = at[2 * step], d = at[3 * step];
            target[0] = a;
            target[step] = b;
            target[2 * step] = c;
            target[3 * step] = d;
        }
        new_pass();
    }
}
