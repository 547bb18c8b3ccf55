/*
 * Random reads of a device or file. See disk.h.
 */
#include "disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mount.h> /* BLKGETSIZE64, without the kernel's own headers */
#include <sys/stat.h>
#include <unistd.h>

uint64_t disk_random(struct disk *disk)
{
    uint64_t value = disk->random += 0x9E3779B97F4A7C15ULL;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
    return value ^ (value >> 31);
}

static int size_of(int file, uint64_t *bytes)
{
    struct stat status;
    if (fstat(file, &status) != 0)
        return errno;
    if (S_ISBLK(status.st_mode))
        return ioctl(file, BLKGETSIZE64, bytes) == 0 ? 0 : errno;
    if (!S_ISREG(status.st_mode))
        return S_ISDIR(status.st_mode) ? EISDIR : ENOTBLK;
    *bytes = (uint64_t)status.st_size;
    return 0;
}

/* One read decides whether O_DIRECT works: some file systems accept it and refuse the read. */
static int open_as(struct disk *disk, const char *path, bool direct)
{
    disk->file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | (direct ? O_DIRECT : 0));
    if (disk->file < 0)
        return errno;
    uint64_t bytes = 0;
    int error = size_of(disk->file, &bytes);
    disk->blocks = bytes / disk->block;
    disk->direct = direct;
    if (!error && disk->blocks == 0)
        error = ENOSPC;
    if (!error)
        error = disk_read(disk);
    if (error)
        close(disk->file);
    return error;
}

int disk_open(struct disk *disk, const char *path, uint64_t block, bool direct, uint64_t seed)
{
    *disk = (struct disk){.file = -1, .block = block, .random = seed};
    if (posix_memalign(&disk->buffer, 4096, block) != 0)
        return ENOMEM;
    int error = open_as(disk, path, direct);
    if (error == EINVAL && direct)
        error = open_as(disk, path, false);
    if (error) {
        free(disk->buffer);
        *disk = (struct disk){.file = -1};
    }
    return error;
}

int disk_read(struct disk *disk)
{
    const uint64_t offset = disk_random(disk) % disk->blocks * disk->block;
    if (!disk->direct)
        posix_fadvise(disk->file, (off_t)offset, (off_t)disk->block, POSIX_FADV_DONTNEED);
    for (;;) {
        const ssize_t length = pread(disk->file, disk->buffer, disk->block, (off_t)offset);
        if (length == (ssize_t)disk->block)
            return 0;
        if (length >= 0)
            return EIO; /* the device or file has shrunk */
        if (errno != EINTR)
            return errno;
    }
}

void disk_close(struct disk *disk)
{
    if (disk->file >= 0)
        close(disk->file);
    free(disk->buffer);
    *disk = (struct disk){.file = -1};
}
