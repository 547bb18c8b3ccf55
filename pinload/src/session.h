/*
 * One connection's channels: requests come in as frames, answers go out as frames.
 *
 * Knows nothing of how the bytes travel: the agent's loop fills `input` and
 * empties `output`. The protocol is described in frame.h.
 */
#ifndef PINLOAD_SESSION_H
#define PINLOAD_SESSION_H

#include "base.h"

#include "child.h"
#include "frame.h"
#include "upload.h"

enum { CHILD_LIMIT = 128, UPLOAD_LIMIT = 16 };

struct session {
    struct bytes input;
    struct bytes output;
    bool refusing; /* a malformed frame was seen: input is thrown away */
    bool ending;   /* SHUTDOWN was asked for, or there is no memory */
    bool onlining; /* ONLINE was asked for, and HELLO has not been sent again */
    bool failed;
    uint32_t last_channel;
    struct child children[CHILD_LIMIT];
    struct upload uploads[UPLOAD_LIMIT];
};

/* To be called once, before anything else. */
void session_init(struct session *session);

/* A fresh connection: nothing is left of the last one, HELLO goes first. */
void session_begin(struct session *session, const char *hello);

/* Sends HELLO, which also answers ONLINE. */
void session_greet(struct session *session, const char *hello);

/* Handles every whole frame of `input`. */
void session_take_input(struct session *session);

/* Passes on a piece of what a child wrote; closes the pipe at its end. True: ask again. */
bool session_pass_on(struct session *session, uint32_t channel, int *file, enum frame_kind kind);

/* A process ended. If it is one of ours: the rest of its output, then EXIT. */
void session_reaped(struct session *session, pid_t pid, int status);

/* Kills what runs, drops what is half written and what waits. */
void session_end(struct session *session);

#endif
