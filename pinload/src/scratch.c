/*
 * The folder of measured files, and the process that removes it. See scratch.h.
 */
#include "scratch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCK_WORDS = 8192 };

static void name_filesystem(struct scratch *scratch)
{
    /* linux/magic.h */
    static const struct {
        uint32_t magic;
        const char *name;
    } known[] = {
        {0x01021994, "tmpfs"}, {0x858458f6, "ramfs"}, {0xEF53, "ext"},
        {0x58465342, "xfs"},   {0x9123683E, "btrfs"}, {0x794c7630, "overlay"},
    };
    struct statfs status;
    snprintf(scratch->filesystem, sizeof scratch->filesystem, "unknown");
    if (fstatfs(scratch->directory, &status) != 0)
        return;
    snprintf(scratch->filesystem, sizeof scratch->filesystem, "0x%x",
             (unsigned)status.f_type);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].magic == (uint32_t)status.f_type)
            snprintf(scratch->filesystem, sizeof scratch->filesystem, "%s", known[i].name);
}

static void remove_all(const struct scratch *scratch)
{
    DIR *files = fdopendir(scratch->directory);
    const struct dirent *entry;
    while (files && (entry = readdir(files)))
        unlinkat(dirfd(files), entry->d_name, 0); /* refuses "." and ".." */
    rmdir(scratch->path);
}

/* Holds nothing open that somebody may wait for the end of. */
static _Noreturn void clean_up_later(struct scratch *scratch, int told)
{
    char byte;
    setsid();
    for (int file = 0; file <= 2; file++)
        close(file);
    signal(SIGHUP, SIG_IGN);
    while (read(told, &byte, 1) < 0 && errno == EINTR)
        ;
    remove_all(scratch);
    _exit(PINLOAD_OK);
}

static bool start_cleaner(struct scratch *scratch)
{
    int life[2];
    if (pipe2(life, O_CLOEXEC) != 0) {
        complain_errno("cannot make a pipe");
        return false;
    }
    scratch->cleaner = fork();
    if (scratch->cleaner == 0) {
        close(life[1]);
        clean_up_later(scratch, life[0]);
    }
    close(life[0]);
    scratch->life = life[1];
    if (scratch->cleaner > 0)
        return true;
    complain_errno("cannot start the process that removes the files");
    close(life[1]);
    return false;
}

bool scratch_open(struct scratch *scratch, const char *parent)
{
    const char *temporary = getenv("TMPDIR");
    if (!parent)
        parent = temporary && *temporary ? temporary : "/tmp";
    *scratch = (struct scratch){.directory = -1, .life = -1};
    if (snprintf(scratch->path, sizeof scratch->path, "%s/pinload-XXXXXX", parent) >=
        (int)sizeof scratch->path) {
        complain("--directory: the path is too long");
        return false;
    }
    if (!mkdtemp(scratch->path)) {
        complain_errno("--directory: cannot make a folder in %s", parent);
        return false;
    }
    scratch->directory = open(scratch->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (scratch->directory < 0) {
        complain_errno("--directory: cannot open %s", scratch->path);
        rmdir(scratch->path);
        return false;
    }
    name_filesystem(scratch);
    if (start_cleaner(scratch))
        return true;
    rmdir(scratch->path);
    return false;
}

static bool fill(int file, uint64_t bytes)
{
    uint64_t *block = malloc(BLOCK_WORDS * sizeof *block);
    uint64_t written = 0;
    while (block && written < bytes) {
        const size_t length = bytes - written < BLOCK_WORDS * sizeof *block
                                  ? (size_t)(bytes - written)
                                  : BLOCK_WORDS * sizeof *block;
        for (size_t i = 0; i < BLOCK_WORDS; i++)
            block[i] = written / sizeof *block + i;
        errno = ENOSPC; /* the answer to a short write */
        if (write(file, block, length) != (ssize_t)length)
            break;
        written += length;
    }
    free(block);
    return written == bytes;
}

int scratch_file(const struct scratch *scratch, const char *name, uint64_t bytes)
{
    const int file = openat(scratch->directory, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file >= 0 && fill(file, bytes))
        return file;
    complain_errno("--directory: cannot write %llu KiB to %s/%s",
                   (unsigned long long)(bytes / 1024), scratch->path, name);
    if (file >= 0)
        close(file);
    return -1;
}

void scratch_close(struct scratch *scratch)
{
    close(scratch->directory);
    close(scratch->life);
    while (waitpid(scratch->cleaner, NULL, 0) < 0 && errno == EINTR)
        ;
}
