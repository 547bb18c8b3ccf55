/*
 * Messages, the clock of deadlines, and what CPU time was used.
 *
 * Messages go to stderr only: stdout carries JSON lines or frames.
 */
#include "base.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

const char *pinload_command = "";

static void start_message(void)
{
    fputs("pinload", stderr);
    if (*pinload_command)
        fprintf(stderr, " %s", pinload_command);
    fputs(": ", stderr);
}

void complain(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    start_message();
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
}

void complain_errno(const char *format, ...)
{
    const int error = errno;
    va_list list;
    va_start(list, format);
    start_message();
    vfprintf(stderr, format, list);
    fprintf(stderr, ": %s\n", strerror(error));
    va_end(list);
}

uint64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static uint64_t used_by(int whom)
{
    struct rusage used;
    getrusage(whom, &used);
    return ((uint64_t)used.ru_utime.tv_sec + (uint64_t)used.ru_stime.tv_sec) * NS_PER_S +
           ((uint64_t)used.ru_utime.tv_usec + (uint64_t)used.ru_stime.tv_usec) * NS_PER_US;
}

uint64_t used_cpu_ns(void)
{
    return used_by(RUSAGE_SELF) + used_by(RUSAGE_CHILDREN);
}

void sleep_until(uint64_t when)
{
    const struct timespec at = {
        .tv_sec = (time_t)(when / NS_PER_S),
        .tv_nsec = (long)(when % NS_PER_S),
    };
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
        ;
}

static int ascending(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

uint64_t median_of(uint64_t *values, size_t count)
{
    qsort(values, count, sizeof *values, ascending);
    return values[count / 2];
}

int output_end(void)
{
    if (fflush(stdout) == 0)
        return PINLOAD_OK;
    complain_errno("cannot write the result");
    return PINLOAD_FAILED;
}
