/*
 * The kernels of one vector width: a text that a file includes once for each width.
 *
 * Before it: VECTOR_BYTES; VECTOR_TARGET, what lets the compiler use the instructions in these
 * functions only; VECTOR_NAME(x), names of their own; VECTOR_REGISTER, the constraint of a
 * register of this width; VECTOR_STORE_NT(to, v, w), non-temporal stores of two vectors, and
 * VECTOR_FENCE() that ends them. After it: VECTOR_KERNELS, the members of a `struct kernels`.
 * Vectors are the compiler's own (GCC's vector extension): the same text gives SSE2, AVX2,
 * AVX-512 and NEON. No include guard: that is the point.
 *
 * CPUs that load three vectors a cycle have no more than that many units to add them, which the
 * loop needs too: so all passes of a read but the last only load, and the last one adds.
 * A copy stores each vector right after its load, which fills loads and stores evenly.
 * A store that misses waits for its line, and the CPU holds few such stores: outside the first
 * cache asking for the lines of the target ahead is quicker, inside it only more to do.
 */

typedef uint64_t VECTOR_NAME(vector) __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef double VECTOR_NAME(real) __attribute__((vector_size(VECTOR_BYTES), may_alias));

/* An iteration of a read and of a copy. */
#define VECTOR_COUNT ((size_t)KERNEL_GRANULE / VECTOR_BYTES)

VECTOR_TARGET static uint64_t VECTOR_NAME(read)(const void *from, size_t bytes, uint64_t passes)
{
    typedef VECTOR_NAME(vector) vector;
    const vector *const end = (const vector *)(const void *)((const char *)from + bytes);
    for (uint64_t pass = 1; pass < passes; pass++) {
        __asm__ volatile("" : : : "memory"); /* each pass counts */
        for (const vector *at = from; at < end; at += VECTOR_COUNT)
#pragma GCC unroll 32
            for (size_t i = 0; i < VECTOR_COUNT; i++)
                __asm__ volatile("" : : VECTOR_REGISTER(at[i]));
    }
    vector a = {0}, b = {0}, c = {0}, d = {0}, e = {0}, f = {0}, g = {0}, h = {0};
    for (const vector *at = from; at < end; at += 8) {
        a += at[0];
        b += at[1];
        c += at[2];
        d += at[3];
        e += at[4];
        f += at[5];
        g += at[6];
        h += at[7];
    }
    a += b + c + d + e + f + g + h;
    uint64_t sum = 0;
    for (size_t i = 0; i < VECTOR_BYTES / 8; i++)
        sum += a[i];
    return sum * passes;
}

/* Asks for the line that is so many bytes (or 0) ahead of vector `i`, once for each line. */
#define VECTOR_AHEAD(ahead, to, i)                                                                 \
    ((ahead) > 0 && (i) * VECTOR_BYTES % KERNEL_LINE == 0                                          \
         ? __builtin_prefetch((const char *)((to) + (i)) + (ahead), 1)                             \
         : (void)0)

/* A write and a copy, which ask for lines so many bytes ahead, or for none. */
#define VECTOR_STORING(name_of_write, write_by, name_of_copy, copy_by)                             \
    VECTOR_TARGET static void VECTOR_NAME(name_of_write)(void *to, size_t bytes, uint64_t value,   \
                                                         uint64_t passes)                          \
    {                                                                                              \
        typedef VECTOR_NAME(vector) vector;                                                        \
        const vector *const end = (const vector *)(const void *)((const char *)to + bytes);        \
        const vector v = value - (vector){0};                                                      \
        while (passes-- > 0) {                                                                     \
            for (vector *at = to; at < end; at += 8) {                                             \
                _Pragma("GCC unroll 8") for (size_t i = 0; i < 8; i++)                             \
                {                                                                                  \
                    VECTOR_AHEAD(write_by, at, i);                                                 \
                    at[i] = v;                                                                     \
                }                                                                                  \
                __asm__ volatile("" : : "r"(at) : "memory");                                       \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    VECTOR_TARGET static void VECTOR_NAME(name_of_copy)(void *to, const void *from, size_t bytes,  \
                                                        uint64_t passes)                           \
    {                                                                                              \
        typedef VECTOR_NAME(vector) vector;                                                        \
        const vector *const end = (const vector *)(const void *)((const char *)from + bytes);      \
        while (passes-- > 0) {                                                                     \
            vector *target = to;                                                                   \
            for (const vector *at = from; at < end; at += VECTOR_COUNT, target += VECTOR_COUNT) {  \
                _Pragma("GCC unroll 32") for (size_t i = 0; i < VECTOR_COUNT; i++)                 \
                {                                                                                  \
                    VECTOR_AHEAD(copy_by, target, i);                                              \
                    target[i] = at[i];                                                             \
                }                                                                                  \
                __asm__ volatile("" : : "r"(target) : "memory");                                   \
            }                                                                                      \
        }                                                                                          \
    }

VECTOR_STORING(write, 0, copy, 0)
VECTOR_STORING(write_ahead, KERNEL_WRITE_AHEAD, copy_ahead, KERNEL_COPY_AHEAD)

/* One of STREAM's loops: four vectors of `to` become VALUE, stored in pairs by STORE. */
#define VECTOR_STREAM(name, to, VALUE, STORE, FENCE)                                               \
    VECTOR_TARGET static void VECTOR_NAME(name)(const struct stream_arrays *s, size_t from,        \
                                                size_t count)                                      \
    {                                                                                              \
        typedef VECTOR_NAME(real) real;                                                            \
        real *a = (real *)(void *)(s->a + from), *b = (real *)(void *)(s->b + from),               \
             *c = (real *)(void *)(s->c + from);                                                   \
        const real q = STREAM_FACTOR - (real){0};                                                  \
        (void)q;                                                                                   \
        for (size_t i = 0; i < count / (VECTOR_BYTES / 8); i += 4) {                               \
            const real v = VALUE(i), w = VALUE(i + 1), x = VALUE(i + 2), y = VALUE(i + 3);         \
            STORE((to) + i, v, w);                                                                 \
            STORE((to) + i + 2, x, y);                                                             \
            __asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c) : : "memory");                         \
        }                                                                                          \
        FENCE;                                                                                     \
    }
#define VECTOR_COPY(i) a[i]
#define VECTOR_SCALE(i) (q * c[i])
#define VECTOR_ADD(i) (a[i] + b[i])
#define VECTOR_TRIAD(i) (b[i] + q * c[i])
#define VECTOR_STORE(to, v, w) ((to)[0] = (v), (to)[1] = (w))

VECTOR_STREAM(stream_copy, c, VECTOR_COPY, VECTOR_STORE, (void)0)
VECTOR_STREAM(stream_scale, b, VECTOR_SCALE, VECTOR_STORE, (void)0)
VECTOR_STREAM(stream_add, c, VECTOR_ADD, VECTOR_STORE, (void)0)
VECTOR_STREAM(stream_triad, a, VECTOR_TRIAD, VECTOR_STORE, (void)0)

VECTOR_STREAM(stream_copy_nt, c, VECTOR_COPY, VECTOR_STORE_NT, VECTOR_FENCE())
VECTOR_STREAM(stream_scale_nt, b, VECTOR_SCALE, VECTOR_STORE_NT, VECTOR_FENCE())
VECTOR_STREAM(stream_add_nt, c, VECTOR_ADD, VECTOR_STORE_NT, VECTOR_FENCE())
VECTOR_STREAM(stream_triad_nt, a, VECTOR_TRIAD, VECTOR_STORE_NT, VECTOR_FENCE())

VECTOR_TARGET static void VECTOR_NAME(write_nt)(void *to, size_t bytes, uint64_t value,
                                                uint64_t passes)
{
    typedef VECTOR_NAME(vector) vector;
    const vector *const end = (const vector *)(const void *)((const char *)to + bytes);
    const vector v = value - (vector){0};
    while (passes-- > 0) {
        for (vector *at = to; at < end; at += 8) {
            VECTOR_STORE_NT(at, v, v);
            VECTOR_STORE_NT(at + 2, v, v);
            VECTOR_STORE_NT(at + 4, v, v);
            VECTOR_STORE_NT(at + 6, v, v);
        }
    }
    VECTOR_FENCE();
}

VECTOR_TARGET static void VECTOR_NAME(copy_nt)(void *to, const void *from, size_t bytes,
                                               uint64_t passes)
{
    typedef VECTOR_NAME(vector) vector;
    const vector *const end = (const vector *)(const void *)((const char *)from + bytes);
    while (passes-- > 0) {
        vector *target = to;
        for (const vector *at = from; at < end; at += 8, target += 8) {
            VECTOR_STORE_NT(target, at[0], at[1]);
            VECTOR_STORE_NT(target + 2, at[2], at[3]);
            VECTOR_STORE_NT(target + 4, at[4], at[5]);
            VECTOR_STORE_NT(target + 6, at[6], at[7]);
            __asm__ volatile("" : : : "memory"); /* each pass counts */
        }
    }
    VECTOR_FENCE();
}

#define VECTOR_KERNELS                                                                             \
    .read = VECTOR_NAME(read), .write = VECTOR_NAME(write), .copy = VECTOR_NAME(copy),             \
    .write_ahead = VECTOR_NAME(write_ahead), .copy_ahead = VECTOR_NAME(copy_ahead),                \
    .write_nt = VECTOR_NAME(write_nt), .copy_nt = VECTOR_NAME(copy_nt),                            \
    .stream = {VECTOR_NAME(stream_copy), VECTOR_NAME(stream_scale), VECTOR_NAME(stream_add),       \
               VECTOR_NAME(stream_triad)},                                                         \
    .stream_nt = {VECTOR_NAME(stream_copy_nt), VECTOR_NAME(stream_scale_nt),                       \
                  VECTOR_NAME(stream_add_nt), VECTOR_NAME(stream_triad_nt)}
