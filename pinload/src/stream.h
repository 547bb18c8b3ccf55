/*
 * Streaming through memory: a[i] = b[i] + 3 c[i], a block at a time.
 */
#ifndef PINLOAD_STREAM_H
#define PINLOAD_STREAM_H

#include "base.h"

struct stream {
    uint64_t *arrays; /* a, b and c, one behind the other */
    size_t count;     /* elements of each */
    size_t next;      /* first element of the next block */
};

/* Takes the memory of all three arrays together; false if there is none. */
bool stream_open(struct stream *stream, uint64_t mib);

/* First touch of one block; false once all are touched. */
bool stream_touch(struct stream *stream);

/* One block of 4096 elements (96 KiB in all), or what is left at the arrays' end. */
void stream_block(struct stream *stream);

void stream_close(struct stream *stream);

#endif
