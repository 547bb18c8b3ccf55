/*
 * Files made and removed, empty ones and ones of 10 KiB. See os_latency.h.
 */
#include "os_latency.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static bool open_names(struct os *os)
{
    for (int i = 0; i < OS_FILES; i++)
        snprintf(os->names[i], sizeof os->names[i], "%d", i);
    return true;
}

static bool create(struct os *os, uint64_t n, size_t bytes)
{
    for (uint64_t i = 0; i < n; i++) {
        const int file = openat(os->scratch.directory, os->names[i],
                                O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        errno = file < 0 ? errno : ENOSPC; /* the answer to a short write */
        if (file < 0 || (bytes && write(file, os->bytes, bytes) != (ssize_t)bytes)) {
            complain_errno("--directory: cannot make a file in %s", os->scratch.path);
            return false;
        }
        close(file);
    }
    return true;
}

static bool create_empty(struct os *os, uint64_t n)
{
    return create(os, n, 0);
}

static bool create_full(struct os *os, uint64_t n)
{
    return create(os, n, OS_BYTES);
}

static bool delete_all(struct os *os, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        if (unlinkat(os->scratch.directory, os->names[i], 0) != 0) {
            complain_errno("--directory: cannot remove a file in %s", os->scratch.path);
            return false;
        }
    }
    return true;
}

const struct operation os_files[] = {
    {.name = "create-0k",
     .open = open_names,
     .run = create_empty,
     .tidy = delete_all,
     .most = OS_FILES,
     .quiet_only = true,
     .files = true},
    {.name = "delete-0k",
     .open = open_names,
     .prepare = create_empty,
     .run = delete_all,
     .most = OS_FILES,
     .quiet_only = true,
     .files = true},
    {.name = "create-10k",
     .open = open_names,
     .run = create_full,
     .tidy = delete_all,
     .most = OS_FILES,
     .quiet_only = true,
     .files = true},
    {.name = "delete-10k",
     .open = open_names,
     .prepare = create_full,
     .run = delete_all,
     .most = OS_FILES,
     .quiet_only = true,
     .files = true},
    {.name = NULL},
};
