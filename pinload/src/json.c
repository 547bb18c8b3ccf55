/*
 * Writing JSON. See json.h.
 *
 * Only what the benchmarks and HELLO need; there is no tree and no allocation.
 */
#include "json.h"

#include <math.h>

/* Length of the well-formed UTF-8 sequence at `text`, 0 if there is none. */
static size_t utf8_length(const unsigned char *text)
{
    const unsigned char lead = text[0];
    size_t length = lead < 0x80                   ? 1
                    : lead >= 0xC2 && lead < 0xE0 ? 2
                    : (lead & 0xF0) == 0xE0       ? 3
                    : lead >= 0xF0 && lead < 0xF5 ? 4
                                                  : 0;
    for (size_t i = 1; i < length; i++)
        if ((text[i] & 0xC0) != 0x80)
            return 0;
    /* Overlong forms, surrogates and values above U+10FFFF. */
    if ((lead == 0xE0 && text[1] < 0xA0) || (lead == 0xED && text[1] >= 0xA0) ||
        (lead == 0xF0 && text[1] < 0x90) || (lead == 0xF4 && text[1] >= 0x90))
        return 0;
    return length;
}

void json_text(FILE *out, const char *text)
{
    const unsigned char *rest = (const unsigned char *)text;
    fputc('"', out);
    while (*rest) {
        const size_t length = utf8_length(rest);
        if (length == 0) {
            fputs("\\ufffd", out);
            rest++;
        } else if (length > 1) {
            fwrite(rest, 1, length, out);
            rest += length;
        } else {
            if (*rest == '"' || *rest == '\\')
                fprintf(out, "\\%c", *rest);
            else if (*rest < 0x20 || *rest == 0x7F)
                fprintf(out, "\\u%04x", *rest);
            else
                fputc(*rest, out);
            rest++;
        }
    }
    fputc('"', out);
}

bool json_rate(FILE *out, double value)
{
    const bool finite = isfinite(value);
    fprintf(out, "%.3f", finite ? value : 0.0);
    return finite;
}
