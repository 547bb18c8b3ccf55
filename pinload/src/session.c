/*
 * Requests on channels and what comes of them. See session.h.
 *
 * A channel is a running program or a file being written; the tables are small
 * and searched from end to end, because a measurement uses a handful.
 */
#include "session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ARGUMENT_LIMIT = 1024, STDIN_LIMIT = 4 << 20, OUTPUT_PIECE = 64 * 1024, LAST_PIECES = 32 };

static void send_frame(struct session *session, uint32_t channel, enum frame_kind kind,
                       const void *payload, size_t length)
{
    if (!frame_append(&session->output, channel, kind, payload, length)) {
        complain("out of memory");
        session->ending = session->failed = true;
    }
}

static void send_error(struct session *session, uint32_t channel, const char *text)
{
    send_frame(session, channel, FRAME_ERROR, text, strlen(text));
}

static void send_exit(struct session *session, uint32_t channel, bool by_signal, uint32_t value)
{
    uint8_t payload[5] = {by_signal};
    frame_put_u32(payload + 1, value);
    send_frame(session, channel, FRAME_EXIT, payload, sizeof payload);
}

static struct child *find_child(struct session *session, uint32_t channel)
{
    for (size_t i = 0; i < CHILD_LIMIT; i++)
        if (session->children[i].channel == channel)
            return &session->children[i];
    return NULL;
}

static struct upload *find_upload(struct session *session, uint32_t channel)
{
    for (size_t i = 0; i < UPLOAD_LIMIT; i++)
        if (session->uploads[i].channel == channel)
            return &session->uploads[i];
    return NULL;
}

/* Splits a RUN payload into a NULL-ended argv whose texts lie in `copy`; NULL if it is not one. */
static char **split(char *copy, size_t length)
{
    size_t count = 0;
    if (length == 0 || copy[0] == 0)
        return NULL;
    if (copy[length - 1] == 0)
        length--;
    char **argv = calloc(ARGUMENT_LIMIT + 1, sizeof *argv);
    if (!argv)
        return NULL;
    for (size_t begin = 0; begin <= length; begin += strlen(copy + begin) + 1) {
        if (count == ARGUMENT_LIMIT) {
            free(argv);
            return NULL;
        }
        argv[count++] = copy + begin;
    }
    return argv;
}

static void run(struct session *session, const struct frame *frame)
{
    struct child *child = find_child(session, 0);
    char *copy = calloc(1, (size_t)frame->length + 1);
    char **argv = copy ? (memcpy(copy, frame->payload, frame->length), split(copy, frame->length))
                       : NULL;
    if (!argv) {
        send_error(session, frame->channel,
                   "a RUN frame holds 1 to 1024 arguments, each ended by NUL");
    } else if (!child) {
        send_error(session, frame->channel, "too many programs run at once");
    } else {
        const int error = child_start(child, frame->channel, argv);
        if (error) {
            char text[512];
            snprintf(text, sizeof text, "cannot run %.300s: %s", argv[0], strerror(error));
            send_error(session, frame->channel, text);
        }
    }
    free(argv);
    free(copy);
}

static void take_file(struct session *session, const struct frame *frame)
{
    struct upload *upload = find_upload(session, frame->channel);
    if (!upload)
        upload = find_upload(session, 0);
    const char *why = upload ? upload_take(upload, frame) : "too many files are written at once";
    if (why)
        send_error(session, frame->channel, why);
}

static void feed(struct session *session, struct child *child, const struct frame *frame)
{
    if (child->in < 0 || child->close_in)
        return; /* it has closed its stdin, as a shell's `head` does */
    if (bytes_length(&child->waiting) + frame->length > STDIN_LIMIT ||
        !bytes_append(&child->waiting, frame->payload, frame->length)) {
        const uint32_t channel = child->channel;
        child_discard(child);
        send_error(session, channel, "the program does not read its stdin; it was killed");
        return;
    }
    child_feed(child);
}

static void signal_child(struct session *session, struct child *child, const struct frame *frame)
{
    const int signal = frame->length == 1 ? frame->payload[0] : 0;
    if (signal < 1 || signal > 64) {
        const uint32_t channel = child->channel;
        child_discard(child);
        send_error(session, channel,
                   "a KILL frame holds one byte, a signal from 1 to 64; the program was killed");
        return;
    }
    child_signal(child, signal);
}

static void end_file(struct session *session, struct upload *upload)
{
    const uint32_t channel = upload->channel;
    const bool told = upload->failed; /* its ERROR has been sent */
    const char *why = upload_end(upload);
    if (why && !told)
        send_error(session, channel, why);
    else if (!why)
        send_exit(session, channel, false, 0);
}

/* STDIN, CLOSE and KILL: for a channel that is open. */
static void to_channel(struct session *session, const struct frame *frame)
{
    struct child *child = frame->channel ? find_child(session, frame->channel) : NULL;
    struct upload *upload = frame->channel ? find_upload(session, frame->channel) : NULL;
    if (frame->channel > session->last_channel || frame->channel == 0) {
        send_error(session, frame->channel, "no such channel");
    } else if (child && frame->kind == FRAME_STDIN) {
        feed(session, child, frame);
    } else if (child && frame->kind == FRAME_CLOSE) {
        child->close_in = true;
        child_feed(child);
    } else if (child) {
        signal_child(session, child, frame);
    } else if (upload && frame->kind == FRAME_CLOSE) {
        end_file(session, upload);
    }
}

/* RUN and FILE open channels; the number must be new, except for the further frames of a file. */
static void open_channel(struct session *session, const struct frame *frame)
{
    const bool goes_on = frame->kind == FRAME_FILE && frame->channel &&
                         find_upload(session, frame->channel);
    if (!goes_on && frame->channel <= session->last_channel) {
        send_error(session, frame->channel, "channel numbers must ascend from 1");
        return;
    }
    if (!goes_on)
        session->last_channel = frame->channel;
    if (frame->kind == FRAME_RUN)
        run(session, frame);
    else
        take_file(session, frame);
}

static void handle(struct session *session, const struct frame *frame)
{
    switch ((enum frame_kind)frame->kind) {
    case FRAME_RUN:
    case FRAME_FILE:
        open_channel(session, frame);
        break;
    case FRAME_STDIN:
    case FRAME_CLOSE:
    case FRAME_KILL:
        to_channel(session, frame);
        break;
    case FRAME_BEAT:
        for (size_t i = 0; i < CHILD_LIMIT; i++)
            if (session->children[i].channel)
                child_beat(&session->children[i]);
        break;
    case FRAME_SHUTDOWN:
        session->ending = true;
        break;
    case FRAME_ONLINE:
        session->onlining = true;
        break;
    case FRAME_HELLO:
    case FRAME_OUT:
    case FRAME_ERR:
    case FRAME_EXIT:
    case FRAME_ERROR:
        break; /* frame_first lets none of these pass */
    }
}

bool session_pass_on(struct session *session, uint32_t channel, int *file, enum frame_kind kind)
{
    uint8_t piece[OUTPUT_PIECE];
    const ssize_t length = read(*file, piece, sizeof piece);
    if (length > 0) {
        send_frame(session, channel, kind, piece, (size_t)length);
        return true;
    }
    if (length == 0 || (errno != EAGAIN && errno != EINTR)) {
        close(*file);
        *file = -1;
    }
    return false;
}

/*
 * A child that has ended: the rest of its output, then EXIT. Its own children may hold the
 * pipes open: they are not waited for.
 */
static void conclude(struct session *session, struct child *child)
{
    for (int i = 0; i < LAST_PIECES && child->out >= 0 &&
                    session_pass_on(session, child->channel, &child->out, FRAME_OUT);
         i++)
        ;
    for (int i = 0; i < LAST_PIECES && child->err >= 0 &&
                    session_pass_on(session, child->channel, &child->err, FRAME_ERR);
         i++)
        ;
    const bool by_signal = WIFSIGNALED(child->status);
    send_exit(session, child->channel, by_signal,
              (uint32_t)(by_signal ? WTERMSIG(child->status) : WEXITSTATUS(child->status)));
    child_free(child);
}

void session_reaped(struct session *session, pid_t pid, int status)
{
    for (size_t i = 0; i < CHILD_LIMIT; i++) {
        struct child *child = &session->children[i];
        if (child->channel && child->pid == pid && !child->ended) {
            child->ended = true;
            child->status = status;
            conclude(session, child);
        }
    }
}

static void discard_channels(struct session *session)
{
    for (size_t i = 0; i < CHILD_LIMIT; i++)
        if (session->children[i].channel)
            child_discard(&session->children[i]);
    for (size_t i = 0; i < UPLOAD_LIMIT; i++)
        if (session->uploads[i].channel)
            upload_discard(&session->uploads[i]);
}

void session_take_input(struct session *session)
{
    struct frame frame;
    while (!session->ending && !session->refusing) {
        const enum frame_result result = frame_first(&session->input, &frame);
        if (result == FRAME_PARTIAL)
            return;
        if (result == FRAME_MALFORMED) {
            char text[128];
            snprintf(text, sizeof text,
                     "malformed frame (length %" PRIu32
                     ", kind %u): this connection is closed to requests",
                     frame.length, frame.kind);
            send_error(session, 0, text);
            session->refusing = true;
            discard_channels(session);
            break;
        }
        handle(session, &frame);
        bytes_drop(&session->input, FRAME_HEADER + (size_t)frame.length);
    }
    if (session->refusing)
        bytes_drop(&session->input, bytes_length(&session->input));
}

void session_greet(struct session *session, const char *hello)
{
    session->onlining = false;
    send_frame(session, 0, FRAME_HELLO, hello, strlen(hello));
}

void session_begin(struct session *session, const char *hello)
{
    session_end(session);
    session->last_channel = 0;
    session->refusing = session->ending = session->failed = false;
    session_greet(session, hello);
}

void session_end(struct session *session)
{
    discard_channels(session);
    bytes_clear(&session->input);
    bytes_clear(&session->output);
}

void session_init(struct session *session)
{
    *session = (struct session){.last_channel = 0};
    for (size_t i = 0; i < CHILD_LIMIT; i++)
        session->children[i] = (struct child){.in = -1, .out = -1, .err = -1};
    for (size_t i = 0; i < UPLOAD_LIMIT; i++)
        session->uploads[i] = (struct upload){.file = -1};
}
