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
    ARGUMENT_LIST,    /* decimal integers such as 2,4,8 into struct integer_list */
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

enum { INTEGER_LIST_LIMIT = 32 };

/* Different values, in the order in which they were given. */
struct integer_list {
    size_t count;
    uint64_t values[INTEGER_LIST_LIMIT];
};

enum parse_result { PARSE_DONE, PARSE_HELP, PARSE_REFUSED };

/* Reads argv[0..argc) by the table; complains and refuses at the first error. */
enum parse_result arguments_parse(int argc, char **argv, const struct argument *table,
                                  size_t count);

/*
 * Takes the leading word, which chooses one of `words`: the index. `what` names the choice in
 * complaints, such as "kind of load". With --help in its place all is left for the table.
 */
enum parse_result arguments_word(int *argc, char ***argv, const char *what,
                                 const char *const *words, size_t count, size_t *index);

/* The word that the value of an argument is; false after a complaint. */
bool choose_word(const char *argument, const char *text, const char *const *words, size_t count,
                 size_t *index);

/* The same for several with commas between them, at most 64: bits of `chosen`. */
bool choose_words(const char *argument, const char *text, const char *const *words, size_t count,
                  uint64_t *chosen);

/* The exit code that belongs to a result other than PARSE_DONE. */
int parse_exit_code(enum parse_result result);

/* Decimal digits only; false on anything else or on overflow. */
bool parse_integer(const char *text, uint64_t *value);

/* Decimal seconds (no sign, no exponent, no "nan" or "inf") into nanoseconds. */
bool parse_seconds(const char *text, uint64_t *nanoseconds);

#endif
