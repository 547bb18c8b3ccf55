/*
 * A program that the agent runs on a channel, with pipes to its three standard files.
 */
#ifndef PINLOAD_CHILD_H
#define PINLOAD_CHILD_H

#include "base.h"

#include <sys/types.h>

#include "frame.h"

struct child {
    uint32_t channel; /* 0: this slot is free */
    pid_t pid;
    bool supervised;
    bool ended; /* reaped; its output may still be in the pipes */
    int status; /* of waitpid */
    int in;     /* -1 when closed */
    int out;
    int err;
    struct bytes waiting; /* for its stdin */
    bool close_in;        /* once `waiting` is empty */
};

/* Starts argv (NULL-ended) in a process group of its own; 0, or an errno with nothing started. */
int child_start(struct child *child, uint32_t channel, char **argv);

/* Gives the program's stdin what waits for it. */
void child_feed(struct child *child);

/* One heartbeat byte; a full pipe has enough of them. */
void child_beat(struct child *child);

/* Sends a signal to its process group; 0 or an errno. */
int child_signal(const struct child *child, int signal);

/* Kills it, reaps it, closes everything, frees the slot. */
void child_discard(struct child *child);

/* Closes everything of an ended child and frees the slot. */
void child_free(struct child *child);

#endif
