/*
 * Latency of operations of the operating system: the command, and what its parts share.
 *
 * An operation is done many times in a window; between windows it may prepare and tidy up,
 * which is not measured.
 */
#ifndef PINLOAD_OS_LATENCY_H
#define PINLOAD_OS_LATENCY_H

#include "base.h"

#include "scratch.h"

enum { OS_FILES = 1000, OS_DESCRIPTORS = 900, OS_BYTES = 10240 };

/* What the operations work on. */
struct os {
    struct scratch scratch;
    uint64_t descriptors; /* of select and poll */
    int files[OS_DESCRIPTORS];
    int writing_end; /* of the pipe that they read */
    char names[OS_FILES][12];
    char bytes[OS_BYTES];
    unsigned char *pages; /* of the page faults */
    size_t page;
    long faults_before; /* minor faults of this process when the window began */
    uint64_t faults, touches;
};

struct operation {
    const char *name;
    bool (*open)(struct os *os);              /* once before all windows; may be NULL */
    bool (*prepare)(struct os *os, uint64_t n); /* before each window; may be NULL */
    bool (*run)(struct os *os, uint64_t n);     /* n operations; false after a complaint */
    bool (*tidy)(struct os *os, uint64_t n);    /* after each window; may be NULL */
    void (*close)(struct os *os);             /* may be NULL */
    uint64_t most;                            /* operations of a window */
    bool quiet_only;  /* a window in which the thread was preempted is disturbed */
    bool files;       /* needs the scratch folder */
    bool descriptors; /* measured for each number of descriptors */
};

/* The operations, each in the file of its kind; NULL-named at the end. */
extern const struct operation os_calls[], os_processes[], os_memory[], os_files[];

/* `pinload os-latency ...`; returns the exit code. */
int os_latency_main(int argc, char **argv);

#endif
