/*
 * Writing files on behalf of the host. See upload.h and FILE in frame.h.
 *
 * Every frame repeats path and mode, so that each can be checked by itself.
 */
#include "upload.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void upload_discard(struct upload *upload)
{
    if (upload->file >= 0)
        close(upload->file);
    free(upload->path);
    *upload = (struct upload){.file = -1};
}

/* The slot stays: further frames of this file may be under way, until its CLOSE. */
static const char *failed(struct upload *upload, const char *why)
{
    if (upload->file >= 0)
        close(upload->file);
    upload->file = -1;
    upload->failed = true;
    return why;
}

static const char *begin(struct upload *upload, const char *path, uint32_t mode)
{
    upload->path = strdup(path);
    if (!upload->path)
        return failed(upload, strerror(ENOMEM));
    upload->file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode);
    /* The umask and an older file's mode must not decide. */
    if (upload->file < 0 || fchmod(upload->file, mode) != 0)
        return failed(upload, strerror(errno));
    return NULL;
}

static const char *append(struct upload *upload, const uint8_t *data, size_t length)
{
    while (length > 0) {
        const ssize_t written = write(upload->file, data, length);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return failed(upload, strerror(written < 0 ? errno : EIO));
        data += written;
        length -= (size_t)written;
    }
    return NULL;
}

const char *upload_take(struct upload *upload, const struct frame *frame)
{
    if (upload->failed)
        return NULL; /* told already */
    upload->channel = frame->channel;
    const uint8_t *end = memchr(frame->payload, 0, frame->length);
    if (!end || (size_t)(frame->payload + frame->length - end) < 5)
        return failed(upload, "a FILE frame holds a path, NUL, a mode of 4 bytes and data");
    const char *path = (const char *)frame->payload;
    const uint32_t mode = frame_u32(end + 1);
    if (*path != '/' || end - frame->payload >= PATH_MAX)
        return failed(upload, "the path of a FILE frame must be absolute");
    if (mode > 07777)
        return failed(upload, "the mode of a FILE frame is above 07777");
    if (!upload->path) {
        const char *why = begin(upload, path, mode);
        if (why)
            return why;
    } else if (strcmp(upload->path, path) != 0) {
        return failed(upload, "a channel writes one file only");
    }
    const uint8_t *data = end + 5;
    return append(upload, data, (size_t)(frame->payload + frame->length - data));
}

const char *upload_end(struct upload *upload)
{
    const int file = upload->file;
    upload->file = -1;
    const char *why = file < 0           ? "the file was not written"
                      : close(file) == 0 ? NULL
                                         : strerror(errno);
    upload_discard(upload);
    return why;
}
