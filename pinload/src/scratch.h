/*
 * A folder for files that are measured, which is gone when the program is, however it ends.
 *
 * A small process waits until this one and all its children have ended, even by SIGKILL, and
 * removes the folder.
 */
#ifndef PINLOAD_SCRATCH_H
#define PINLOAD_SCRATCH_H

#include "base.h"

#include <sys/types.h>

struct scratch {
    char path[512];
    char filesystem[24]; /* its kind, such as "tmpfs" */
    int directory;
    int life; /* closed by our end */
    pid_t cleaner;
};

/* Makes it in `parent`, or if that is NULL in $TMPDIR or /tmp; false after a complaint. */
bool scratch_open(struct scratch *scratch, const char *parent);

/* A file of this many bytes, whose 64-bit words count from 0; -1 after a complaint. */
int scratch_file(const struct scratch *scratch, const char *name, uint64_t bytes);

/* Removes it and waits until it is gone. */
void scratch_close(struct scratch *scratch);

#endif
