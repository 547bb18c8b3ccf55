/*
 * Writing JSON: escaped text and numbers that are always finite.
 */
#ifndef PINLOAD_JSON_H
#define PINLOAD_JSON_H

#include "base.h"

#include <stdio.h>

/* A quoted string; control characters and bytes that are not UTF-8 are escaped or replaced. */
void json_text(FILE *out, const char *text);

/* A number with three decimals; a value that is not finite becomes 0 and returns false. */
bool json_rate(FILE *out, double value);

#endif
