/*
 * What touches memory: reading, writing and copying by words and vectors of one width.
 *
 * A width is a table of functions; which one a CPU can run is asked at run time. Every kernel
 * can be proven: a read gives the sum of the 64-bit words that it read, a write stores a given
 * value, a copy leaves its source in its target.
 *
 * Non-temporal stores go around the caches: they spare the read of a line that is to be
 * overwritten whole. Bytes are counted as STREAM counts them, without that read.
 */
#ifndef PINLOAD_KERNELS_H
#define PINLOAD_KERNELS_H

#include "base.h"

/* Kernels work on multiples of so many bytes, aligned to a line. */
enum { KERNEL_GRANULE = 512, KERNEL_LINE = 64 };

/* So many bytes ahead stores are foreseen. */
enum { KERNEL_WRITE_AHEAD = 1024, KERNEL_COPY_AHEAD = 256 };

enum stream_operation { STREAM_COPY, STREAM_SCALE, STREAM_ADD, STREAM_TRIAD, STREAM_OPERATIONS };

/* a, b and c of STREAM: copy c = a, scale b = q c, add c = a + b, triad a = b + q c; q = 3. */
struct stream_arrays {
    double *a, *b, *c;
};

#define STREAM_FACTOR 3.0

struct kernels {
    const char *width;
    const char *also; /* a second name; may be NULL */
    const char *(*missing)(void); /* NULL, or why this CPU cannot run it */
    uint64_t (*read)(const void *from, size_t bytes, uint64_t passes);
    void (*write)(void *to, size_t bytes, uint64_t value, uint64_t passes);
    void (*copy)(void *to, const void *from, size_t bytes, uint64_t passes);
    /* The same, asking for the lines to be stored ahead of time; NULL where it cannot be asked. */
    void (*write_ahead)(void *to, size_t bytes, uint64_t value, uint64_t passes);
    void (*copy_ahead)(void *to, const void *from, size_t bytes, uint64_t passes);
    /* With non-temporal stores; NULL where the architecture has none of this width. */
    void (*write_nt)(void *to, size_t bytes, uint64_t value, uint64_t passes);
    void (*copy_nt)(void *to, const void *from, size_t bytes, uint64_t passes);
    /* Elements [from, from + count), multiples of 64, once. */
    void (*stream[STREAM_OPERATIONS])(const struct stream_arrays *arrays, size_t from, size_t count);
    void (*stream_nt[STREAM_OPERATIONS])(const struct stream_arrays *arrays, size_t from,
                                         size_t count);
};

/* All widths of this architecture, the narrowest first; ends with NULL. */
extern const struct kernels *const kernels_all[];

/* The widths of one family; NULL where they are not of this architecture. */
extern const struct kernels kernels_scalar;
extern const struct kernels kernels_128;
extern const struct kernels kernels_avx2;
extern const struct kernels kernels_avx512;
extern const struct kernels kernels_neon;
extern const struct kernels kernels_rvv;

/* The widest that this CPU can run. */
const struct kernels *kernels_widest(void);

/*
 * The width of this name, or the widest for "auto"; NULL after a complaint that says why this CPU
 * cannot run it.
 */
const struct kernels *kernels_choose(const char *argument, const char *name);

/* One 32-bit word of every `stride` bytes (16 or 32), as lmbench's rd, wr, rdwr and cp. */
uint64_t partial_read(const void *from, size_t bytes, size_t stride, uint64_t passes);
void partial_write(void *to, size_t bytes, size_t stride, uint32_t value, uint64_t passes);
/* Reads each word, then stores the value; gives the sum of what was read. */
uint64_t partial_modify(void *to, size_t bytes, size_t stride, uint32_t value, uint64_t passes);
void partial_copy(void *to, const void *from, size_t bytes, size_t stride, uint64_t passes);

#endif
