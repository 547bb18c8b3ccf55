/*
 * The arrays of a memory stream. See stream.h.
 *
 * Blocks are small, so that a pause or a deadline is noticed soon.
 */
#include "stream.h"

#include <stdlib.h>

enum { BLOCK = 4096 };

bool stream_open(struct stream *stream, uint64_t mib)
{
    const size_t count = (size_t)mib * 1024 * 1024 / 3 / sizeof(uint64_t);
    *stream = (struct stream){.count = count, .arrays = malloc(3 * count * sizeof(uint64_t))};
    return stream->arrays != NULL;
}

static size_t block_end(const struct stream *stream)
{
    return stream->next + BLOCK < stream->count ? stream->next + BLOCK : stream->count;
}

bool stream_touch(struct stream *stream)
{
    const size_t end = block_end(stream);
    uint64_t *a = stream->arrays, *b = a + stream->count, *c = b + stream->count;
    for (size_t i = stream->next; i < end; i++)
        a[i] = b[i] = c[i] = i;
    stream->next = end < stream->count ? end : 0;
    return stream->next != 0;
}

void stream_block(struct stream *stream)
{
    const size_t end = block_end(stream);
    uint64_t *a = stream->arrays, *b = a + stream->count, *c = b + stream->count;
    for (size_t i = stream->next; i < end; i++)
        a[i] = b[i] + 3 * c[i];
    __asm__ volatile("" : : "r"(a) : "memory"); /* the stores are the work */
    stream->next = end < stream->count ? end : 0;
}

void stream_close(struct stream *stream)
{
    free(stream->arrays);
}
