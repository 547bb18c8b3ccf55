/*
 * What every file of pinload shares: feature macro, exit codes, messages, time.
 *
 * Included first everywhere, because _GNU_SOURCE must precede the C library's
 * headers. Holds nothing that belongs to one concept only.
 */
#ifndef PINLOAD_BASE_H
#define PINLOAD_BASE_H

#define _GNU_SOURCE

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PINLOAD_VERSION "0.1.0"

#define NS_PER_S 1000000000ULL
#define NS_PER_MS 1000000ULL
#define NS_PER_US 1000ULL

/* Exit codes, part of the interface: usage errors are the caller's, failures the host's. */
enum {
    PINLOAD_OK = 0,
    PINLOAD_FAILED = 1,
    PINLOAD_USAGE = 2,
    PINLOAD_ABANDONED = 3, /* the supervisor fell silent or the stream was malformed */
};

/* Name of the running subcommand; messages begin with it. */
extern const char *pinload_command;

/* Writes "pinload COMMAND: TEXT" to stderr. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same with ": " and the text of errno. */
void complain_errno(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Flushes standard output: the exit code of a command that has printed its result. */
int output_end(void);

/* CLOCK_MONOTONIC: the clock of sleeps and deadlines. */
uint64_t monotonic_ns(void);

/* CPU time of this process and of its children that were waited for, to the microsecond. */
uint64_t used_cpu_ns(void);

/* The middle one of some numbers, which it sorts. */
uint64_t median_of(uint64_t *values, size_t count);

/* Sleeps until CLOCK_MONOTONIC reaches `when`, whatever interrupts. */
void sleep_until(uint64_t when);

#endif
