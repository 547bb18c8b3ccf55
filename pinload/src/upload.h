/* Files that the host writes into the guest, frame by frame. */
#ifndef PINLOAD_UPLOAD_H
#define PINLOAD_UPLOAD_H

#include "base.h"

#include "frame.h"

struct upload {
    uint32_t channel; /* 0: this slot is free */
    int file;
    char *path;
    bool failed; /* the host has been told; waits for CLOSE */
};

/* Takes a FILE frame; NULL, or a text that says what is wrong with it, once. Takes the slot. */
const char *upload_take(struct upload *upload, const struct frame *frame);

/* Ends the file; NULL, or what went wrong. Frees the slot. */
const char *upload_end(struct upload *upload);

/* Frees the slot, whatever was written so far. */
void upload_discard(struct upload *upload);

#endif
