/*
 * Frames and the byte queues that they travel in. See frame.h.
 */
#include "frame.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { READ_PIECE = 64 * 1024 };

static bool reserve(struct bytes *bytes, size_t length)
{
    if (bytes->begin > 0 && bytes->end + length > bytes->capacity) {
        memmove(bytes->data, bytes->data + bytes->begin, bytes_length(bytes));
        bytes->end -= bytes->begin;
        bytes->begin = 0;
    }
    if (bytes->end + length <= bytes->capacity)
        return true;
    size_t capacity = bytes->capacity ? bytes->capacity : 4096;
    while (capacity < bytes->end + length)
        capacity *= 2;
    uint8_t *data = realloc(bytes->data, capacity);
    if (!data)
        return false;
    bytes->data = data;
    bytes->capacity = capacity;
    return true;
}

bool bytes_append(struct bytes *bytes, const void *data, size_t length)
{
    if (!reserve(bytes, length))
        return false;
    if (length > 0)
        memcpy(bytes->data + bytes->end, data, length);
    bytes->end += length;
    return true;
}

void bytes_drop(struct bytes *bytes, size_t length)
{
    bytes->begin += length;
    if (bytes->begin == bytes->end)
        bytes->begin = bytes->end = 0;
}

void bytes_clear(struct bytes *bytes)
{
    free(bytes->data);
    *bytes = (struct bytes){0};
}

static enum transfer interpret(ssize_t length)
{
    if (length > 0)
        return TRANSFER_SOME;
    if (length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return TRANSFER_LATER;
    return TRANSFER_ENDED;
}

enum transfer bytes_read(struct bytes *bytes, int file)
{
    if (!reserve(bytes, READ_PIECE))
        return TRANSFER_LATER;
    const ssize_t length = read(file, bytes->data + bytes->end, READ_PIECE);
    if (length > 0)
        bytes->end += (size_t)length;
    return interpret(length);
}

enum transfer bytes_write(struct bytes *bytes, int file)
{
    if (bytes_length(bytes) == 0)
        return TRANSFER_LATER;
    const ssize_t length = write(file, bytes->data + bytes->begin, bytes_length(bytes));
    if (length > 0)
        bytes_drop(bytes, (size_t)length);
    return length == 0 ? TRANSFER_LATER : interpret(length);
}

uint32_t frame_u32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

void frame_put_u32(uint8_t *bytes, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
}

enum frame_result frame_first(const struct bytes *bytes, struct frame *frame)
{
    const uint8_t *header = bytes->data + bytes->begin;
    if (bytes_length(bytes) < FRAME_HEADER)
        return FRAME_PARTIAL;
    *frame = (struct frame){
        .length = frame_u32(header),
        .channel = frame_u32(header + 4),
        .kind = header[8],
        .payload = header + FRAME_HEADER,
    };
    if (frame->length > FRAME_LIMIT || frame->kind < FRAME_RUN || frame->kind > FRAME_ONLINE)
        return FRAME_MALFORMED;
    return bytes_length(bytes) - FRAME_HEADER < frame->length ? FRAME_PARTIAL : FRAME_READY;
}

bool frame_append(struct bytes *bytes, uint32_t channel, enum frame_kind kind, const void *payload,
                  size_t length)
{
    uint8_t header[FRAME_HEADER];
    frame_put_u32(header, (uint32_t)length);
    frame_put_u32(header + 4, channel);
    header[8] = (uint8_t)kind;
    return reserve(bytes, FRAME_HEADER + length) && bytes_append(bytes, header, FRAME_HEADER) &&
           bytes_append(bytes, payload, length);
}
