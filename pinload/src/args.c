/*
 * Strict command-line arguments, table-driven. See args.h.
 *
 * Numbers are read by hand rather than with strtod, which accepts "nan",
 * "inf", "0x10", signs and leading blanks.
 */
#include "args.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "rt.h"

bool parse_integer(const char *text, uint64_t *value)
{
    uint64_t number = 0;
    if (!*text)
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9')
            return false;
        const uint64_t digit = (uint64_t)(*text - '0');
        if (number > (UINT64_MAX - digit) / 10)
            return false;
        number = number * 10 + digit;
    }
    *value = number;
    return true;
}

bool parse_seconds(const char *text, uint64_t *nanoseconds)
{
    uint64_t whole = 0, fraction = 0, scale = NS_PER_S;
    bool digits = false;
    for (; *text >= '0' && *text <= '9'; text++, digits = true) {
        whole = whole * 10 + (uint64_t)(*text - '0');
        if (whole >
            1000000000ULL) /* more than 30 years: beyond every limit, and far from overflow */
            return false;
    }
    if (*text == '.') {
        for (text++; *text >= '0' && *text <= '9'; text++, digits = true) {
            if (scale > 1) {
                scale /= 10;
                fraction += (uint64_t)(*text - '0') * scale;
            }
        }
    }
    if (*text || !digits)
        return false;
    *nanoseconds = whole * NS_PER_S + fraction;
    return true;
}

static bool in_range(const struct argument *argument, uint64_t value)
{
    return value >= argument->least && value <= argument->most;
}

static bool read_seconds(const struct argument *argument, const char *text)
{
    uint64_t value;
    if (parse_seconds(text, &value) && in_range(argument, value)) {
        *(uint64_t *)argument->value = value;
        return true;
    }
    complain("%s: \"%s\" is not a number of seconds from %g to %g", argument->name, text,
             (double)argument->least / 1e9, (double)argument->most / 1e9);
    return false;
}

static bool read_integer(const struct argument *argument, const char *text)
{
    uint64_t value;
    if (parse_integer(text, &value) && in_range(argument, value)) {
        *(uint64_t *)argument->value = value;
        return true;
    }
    complain("%s: \"%s\" is not an integer from %" PRIu64 " to %" PRIu64, argument->name, text,
             argument->least, argument->most);
    return false;
}

static bool read_bytes(const struct argument *argument, const char *text)
{
    char digits[24] = "";
    uint64_t value;
    size_t length = strlen(text);
    const char *const suffixes = "KMG", *suffix = length ? strchr(suffixes, text[length - 1]) : NULL;
    const int shift = suffix ? 10 * (int)(suffix - suffixes + 1) : 0;
    length -= suffix != NULL;
    if (length < sizeof digits) {
        memcpy(digits, text, length);
        if (parse_integer(digits, &value) && value <= UINT64_MAX >> shift) {
            value <<= shift;
            if (in_range(argument, value)) {
                *(uint64_t *)argument->value = value;
                return true;
            }
        }
    }
    complain("%s: \"%s\" is not a number of bytes (or with K, M, G) from %" PRIu64 " to %" PRIu64,
             argument->name, text, argument->least, argument->most);
    return false;
}

/* The part before the next comma; moves the text behind it. Empty if it is too long to be right. */
static void next_part(const char **text, char part[32])
{
    const size_t length = strcspn(*text, ",");
    snprintf(part, 32, "%.*s", length < 32 ? (int)length : 0, *text);
    *text += length;
}

static bool read_list(const struct argument *argument, const char *text)
{
    struct integer_list list = {0};
    for (const char *rest = text;; rest++) {
        char part[32];
        uint64_t value;
        next_part(&rest, part);
        if (!parse_integer(part, &value) || !in_range(argument, value)) {
            complain("%s: \"%s\" is not a list of integers from %" PRIu64 " to %" PRIu64
                     " such as %" PRIu64 ",%" PRIu64,
                     argument->name, text, argument->least, argument->most, argument->least,
                     argument->least + 1);
            return false;
        }
        for (size_t i = 0; i < list.count; i++) {
            if (list.values[i] == value) {
                complain("%s: %" PRIu64 " is listed twice", argument->name, value);
                return false;
            }
        }
        if (list.count == INTEGER_LIST_LIMIT) {
            complain("%s: more than %d values", argument->name, INTEGER_LIST_LIMIT);
            return false;
        }
        list.values[list.count++] = value;
        if (!*rest)
            break;
    }
    *(struct integer_list *)argument->value = list;
    return true;
}

static bool read_value(const struct argument *argument, const char *text)
{
    switch (argument->kind) {
    case ARGUMENT_SECONDS:
        return read_seconds(argument, text);
    case ARGUMENT_INTEGER:
        return read_integer(argument, text);
    case ARGUMENT_BYTES:
        return read_bytes(argument, text);
    case ARGUMENT_LIST:
        return read_list(argument, text);
    case ARGUMENT_CPUS:
        return cpu_list_parse(argument->name, text, argument->value);
    case ARGUMENT_POLICY:
        return policy_parse(argument->name, text, argument->value);
    case ARGUMENT_TEXT:
        if (!*text) {
            complain("%s: the value is empty", argument->name);
            return false;
        }
        *(const char **)argument->value = text;
        return true;
    case ARGUMENT_FLAG:
        break;
    }
    return false;
}

/* Index of the argument, or `count`. */
static size_t find(const char *name, const struct argument *table, size_t count)
{
    size_t i = 0;
    while (i < count && strcmp(table[i].name, name) != 0)
        i++;
    return i;
}

static void print_help(const struct argument *table, size_t count)
{
    printf("pinload %s\n\n", pinload_command);
    for (size_t i = 0; i < count; i++)
        printf("  %-20s %s%s\n", table[i].name, table[i].help,
               table[i].need == REQUIRED ? " (required)" : "");
}

static bool required_are_there(const struct argument *table, const bool *seen, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (table[i].need == REQUIRED && !seen[i]) {
            complain("%s: this argument is required", table[i].name);
            return false;
        }
    }
    return true;
}

enum parse_result arguments_parse(int argc, char **argv, const struct argument *table, size_t count)
{
    bool seen[ARGUMENT_TABLE_LIMIT] = {false};
    for (int i = 0; i < argc; i++) {
        const size_t index = find(argv[i], table, count);
        if (!strcmp(argv[i], "--help")) {
            print_help(table, count);
            return PARSE_HELP;
        }
        if (index == count) {
            complain("%s: unknown argument", argv[i]);
            return PARSE_REFUSED;
        }
        if (seen[index]) {
            complain("%s: given twice", argv[i]);
            return PARSE_REFUSED;
        }
        seen[index] = true;
        if (table[index].kind == ARGUMENT_FLAG) {
            *(bool *)table[index].value = true;
            continue;
        }
        if (i + 1 >= argc) {
            complain("%s: the value is missing", argv[i]);
            return PARSE_REFUSED;
        }
        if (!read_value(&table[index], argv[++i]))
            return PARSE_REFUSED;
    }
    return required_are_there(table, seen, count) ? PARSE_DONE : PARSE_REFUSED;
}

/* Index of the word, or `count`. */
static size_t find_word(const char *text, const char *const *words, size_t count)
{
    size_t i = 0;
    while (i < count && strcmp(words[i], text) != 0)
        i++;
    return i;
}

/* "cpu, memory or io" */
static const char *choices(const char *const *words, size_t count)
{
    static char text[512];
    size_t length = 0;
    text[0] = 0;
    for (size_t i = 0; i < count && length < sizeof text; i++)
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%s",
                                   i == 0           ? ""
                                   : i + 1 == count ? " or "
                                                    : ", ",
                                   words[i]);
    return text;
}

enum parse_result arguments_word(int *argc, char ***argv, const char *what,
                                 const char *const *words, size_t count, size_t *index)
{
    if (*argc < 1) {
        complain("the %s is missing; use %s", what, choices(words, count));
        return PARSE_REFUSED;
    }
    if (!strcmp((*argv)[0], "--help"))
        return PARSE_DONE;
    *index = find_word((*argv)[0], words, count);
    if (*index == count) {
        complain("\"%s\" is not a %s; use %s", (*argv)[0], what, choices(words, count));
        return PARSE_REFUSED;
    }
    --*argc, ++*argv;
    return PARSE_DONE;
}

bool choose_word(const char *argument, const char *text, const char *const *words, size_t count,
                 size_t *index)
{
    *index = find_word(text, words, count);
    if (*index == count)
        complain("%s: \"%s\" is not %s", argument, text, choices(words, count));
    return *index < count;
}

bool choose_words(const char *argument, const char *text, const char *const *words, size_t count,
                  uint64_t *chosen)
{
    *chosen = 0;
    for (const char *rest = text;; rest++) {
        char part[32];
        size_t index;
        next_part(&rest, part);
        if (!choose_word(argument, part, words, count, &index))
            return false;
        if (*chosen >> index & 1) {
            complain("%s: %s is listed twice", argument, part);
            return false;
        }
        *chosen |= UINT64_C(1) << index;
        if (!*rest)
            return true;
    }
}

int parse_exit_code(enum parse_result result)
{
    return result == PARSE_HELP ? PINLOAD_OK : PINLOAD_USAGE;
}
