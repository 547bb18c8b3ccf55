/*
 * A block device or file that is read at random aligned offsets.
 *
 * O_DIRECT is used where the file system allows it; where it does not, the page
 * cache is told to forget each block before it is read, and the caller is told
 * that reads were buffered.
 */
#ifndef PINLOAD_DISK_H
#define PINLOAD_DISK_H

#include "base.h"

struct disk {
    int file;
    bool direct;
    uint64_t block;  /* bytes per read; a multiple of 512 */
    uint64_t blocks; /* whole blocks in the device or file */
    uint64_t random; /* state of the generator */
    void *buffer;    /* aligned to 4096 */
};

/* Opens `path` for reading; 0, or the errno of what failed (ENOSPC: smaller than one block). */
int disk_open(struct disk *disk, const char *path, uint64_t block, bool direct, uint64_t seed);

/* Reads one block at a random place; 0 or an errno. */
int disk_read(struct disk *disk);

/* Next value of the generator (splitmix64). */
uint64_t disk_random(struct disk *disk);

void disk_close(struct disk *disk);

#endif
