/*
 * Frames of the agent's protocol, version 1.
 *
 *   u32 payload length, little-endian, at most 1 MiB
 *   u32 channel, little-endian
 *   u8  kind
 *   payload
 *
 * Channel 0 is the connection itself. Every other channel is opened by the host
 * with a RUN or FILE frame under a number higher than all before it, and ends
 * with exactly one EXIT or ERROR frame from the agent. What the host sends to a
 * channel that has ended is ignored: it crossed the EXIT on its way.
 *
 * RUN    argv, each argument ended by NUL (the last NUL may be left out).
 *        argv[0] without a slash is a pinload subcommand, else a program's path.
 * STDIN  bytes for the program.    CLOSE  end of its stdin, or of a file.
 * KILL   u8 signal, for the program's process group.
 * BEAT   channel 0: one byte to the stdin of every program started with --supervised.
 * FILE   absolute path, NUL, u32 mode, bytes; the first frame of a channel creates
 *        the file anew, further ones append, CLOSE ends it (answered by EXIT 0).
 * SHUTDOWN  channel 0: sync and power off (or end, if the agent is not init).
 * ONLINE  channel 0: bring all CPUs online, if the agent is init; another HELLO tells which are.
 *
 * HELLO  channel 0: JSON, the first frame of a connection, and the answer to ONLINE.
 * OUT, ERR  bytes that the program wrote.
 * EXIT   u8 0 and u32 exit code, or u8 1 and u32 signal.
 * ERROR  text. On channel 0 after a malformed frame: nothing more is read from
 *        this connection, because nobody knows where the next frame begins.
 */
#ifndef PINLOAD_FRAME_H
#define PINLOAD_FRAME_H

#include "base.h"

enum { FRAME_PROTOCOL = 1, FRAME_HEADER = 9, FRAME_LIMIT = 1 << 20 };

enum frame_kind {
    FRAME_RUN = 1,
    FRAME_STDIN = 2,
    FRAME_CLOSE = 3,
    FRAME_KILL = 4,
    FRAME_BEAT = 5,
    FRAME_FILE = 6,
    FRAME_SHUTDOWN = 7,
    FRAME_ONLINE = 8,
    FRAME_HELLO = 65,
    FRAME_OUT = 66,
    FRAME_ERR = 67,
    FRAME_EXIT = 68,
    FRAME_ERROR = 69,
};

struct frame {
    uint32_t length;
    uint32_t channel;
    uint8_t kind;
    const uint8_t *payload; /* valid until the next call on the reader */
};

/* Bytes that wait: appended at the end, taken from the front. */
struct bytes {
    uint8_t *data;
    size_t begin;
    size_t end;
    size_t capacity;
};

bool bytes_append(struct bytes *bytes, const void *data, size_t length);
void bytes_drop(struct bytes *bytes, size_t length);
void bytes_clear(struct bytes *bytes);

static inline size_t bytes_length(const struct bytes *bytes)
{
    return bytes->end - bytes->begin;
}

enum transfer { TRANSFER_SOME, TRANSFER_LATER, TRANSFER_ENDED };

/* Reads what is there; writes what fits. Descriptors are non-blocking. */
enum transfer bytes_read(struct bytes *bytes, int file);
enum transfer bytes_write(struct bytes *bytes, int file);

enum frame_result { FRAME_READY, FRAME_PARTIAL, FRAME_MALFORMED };

/* The frame at the front of the bytes, if it is whole. Drop FRAME_HEADER + length after use. */
enum frame_result frame_first(const struct bytes *bytes, struct frame *frame);

/* Appends a frame; false if there is no memory. */
bool frame_append(struct bytes *bytes, uint32_t channel, enum frame_kind kind, const void *payload,
                  size_t length);

uint32_t frame_u32(const uint8_t *bytes);
void frame_put_u32(uint8_t *bytes, uint32_t value);

#endif
