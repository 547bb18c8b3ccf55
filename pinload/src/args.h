/*
 * Strict command-line arguments, table-driven.
 *
 * Every subcommand describes its arguments once; parsing, limits, error texts
 * and `--help` come from that table. Nothing is guessed: an unknown name, a
 * missing, repeated or out-of-range value is refused with the argument's name.
 */
#ifndef PINLOAD_ARGS_H
#define PINLOAD_ARGS_H

#include "base.h"

enum argument_kind {
    ARGUMENT_SECONDS, /* decimal seconds into uint64_t nanoseconds; limits in nanoseconds */
    ARGUMENT_INTEGER, /* decimal integer into uint64_t */
    ARGUMENT_BYTES,   /* the same, or with K, M or G behind it, times 1024 each */
    ARGUMENT_CPUS,    /* "all" or a list such as 0,2-3 into struct cpu_list */
    ARGUMENT_POLICY,  /* "other" or "fifo:N" into struct policy */
    ARGUMENT_TEXT,    /* non-empty text into const char * */
    ARGUMENT_FLAG,    /* no value; sets a bool */
};

enum argument_need { OPTIONAL, REQUIRED };

/* No table is longer. */
enum { ARGUMENT_TABLE_LIMIT = 16 };

struct argument {
    const char *name; /* with the dashes */
    enum argument_kind kind;
    void *value;
    uint64_t least;
    uint64_t most;
    enum argument_need need;
    const char *help;
};

enum parse_result { PARSE_DONE, PARSE_HELP, PARSE_REFUSED };

/* Reads argv[0..argc) by the table; complains and refuses at the first error. */
enum parse_result arguments_parse(int argc, char **argv, const struct argument *table,
                                  size_t count);

/* The exit code that belongs to a result other than PARSE_DONE. */
int parse_exit_code(enum parse_result result);

/* Decimal digits only; false on anything else or on overflow. */
bool parse_integer(const char *text, uint64_t *value);

/* Decimal seconds (no sign, no exponent, no "nan" or "inf") into nanoseconds. */
bool parse_seconds(const char *text, uint64_t *nanoseconds);

#endif
