/*
 * Intmix: list sorting, matrix products, number scanning and a CRC over all of it.
 *
 * Own code with the usual ingredients of integer benchmarks; it is not, and is
 * not named after, any of them. Each round starts from the same values and must
 * end with the same checksum, so that a wrong result is noticed and the
 * compiler cannot drop the work.
 */
#include "intmix.h"

#include <string.h>

const uint32_t INTMIX_CHECKSUM = 0x31be6170;

static uint32_t crc32_byte(uint32_t crc, uint8_t byte)
{
    crc ^= byte;
    for (int bit = 0; bit < 8; bit++)
        crc = (crc >> 1) ^ (0xEDB88320U & (0U - (crc & 1U)));
    return crc;
}

static uint32_t crc32_word(uint32_t crc, uint32_t word)
{
    for (int byte = 0; byte < 4; byte++)
        crc = crc32_byte(crc, (uint8_t)(word >> (8 * byte)));
    return crc;
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525U + 1013904223U;
    return *state >> 8;
}

static void fill_text(char *text)
{
    static const char numbers[] = "17 -4.25 0x1f 3e8 abc 900719 -0.5 12e-3 ";
    for (size_t i = 0; i < INTMIX_TEXT - 1; i++)
        text[i] = numbers[i % (sizeof numbers - 1)];
    text[INTMIX_TEXT - 1] = 0;
}

void intmix_init(struct intmix *work)
{
    memset(work, 0, sizeof *work);
    fill_text(work->text);
}

enum { SEED = 20230601 };

static void reset_list(struct intmix *work, uint32_t *state)
{
    for (size_t i = 0; i < INTMIX_NODES; i++) {
        work->list[i].key = next_random(state);
        work->list[i].next = (uint16_t)(i + 1);
    }
}

static void reset_matrix(struct intmix *work, uint32_t *state)
{
    for (size_t i = 0; i < INTMIX_SIDE * INTMIX_SIDE; i++) {
        work->matrix[0][i] = (int32_t)(next_random(state) % 201) - 100;
        work->matrix[1][i] = (int32_t)(next_random(state) % 201) - 100;
    }
}

/* Insertion sort of the linked list; index INTMIX_NODES is the end. Returns the head. */
static uint16_t sort_list(struct intmix *work)
{
    uint16_t head = INTMIX_NODES, rest = 0;
    while (rest != INTMIX_NODES) {
        const uint16_t node = rest;
        uint16_t before = INTMIX_NODES, after = head;
        rest = work->list[node].next;
        while (after != INTMIX_NODES && work->list[after].key <= work->list[node].key) {
            before = after;
            after = work->list[after].next;
        }
        work->list[node].next = after;
        if (before == INTMIX_NODES)
            head = node;
        else
            work->list[before].next = node;
    }
    return head;
}

static uint32_t list_part(struct intmix *work, uint32_t crc)
{
    uint16_t node = sort_list(work);
    for (int i = 0; node != INTMIX_NODES; i++, node = work->list[node].next)
        if (i % 8 == 0)
            crc = crc32_word(crc, work->list[node].key);
    return crc;
}

static uint32_t matrix_part(struct intmix *work, uint32_t crc)
{
    for (int row = 0; row < INTMIX_SIDE; row++) {
        for (int column = 0; column < INTMIX_SIDE; column++) {
            int32_t sum = 0;
            for (int i = 0; i < INTMIX_SIDE; i++)
                sum += work->matrix[0][row * INTMIX_SIDE + i] *
                       work->matrix[1][i * INTMIX_SIDE + column];
            work->matrix[2][row * INTMIX_SIDE + column] = sum;
        }
        crc = crc32_word(crc, (uint32_t)work->matrix[2][row * INTMIX_SIDE + row]);
    }
    return crc;
}

/* Counts integers, decimals, exponents and words of the text with a small state machine. */
static uint32_t scan_part(const struct intmix *work, uint32_t crc)
{
    enum { GAP, INTEGER, DECIMAL, EXPONENT, WORD, STATES } state = GAP;
    uint32_t counts[STATES] = {0};
    for (const char *text = work->text; *text; text++) {
        const bool digit = *text >= '0' && *text <= '9';
        if (*text == ' ') {
            counts[state]++;
            state = GAP;
        } else if (state == GAP) {
            state = digit || *text == '-' ? INTEGER : WORD;
        } else if (state == INTEGER && *text == '.') {
            state = DECIMAL;
        } else if ((state == INTEGER || state == DECIMAL) && *text == 'e') {
            state = EXPONENT;
        } else if (!digit && !(state == EXPONENT && *text == '-')) {
            state = WORD;
        }
    }
    for (size_t i = 0; i < STATES; i++)
        crc = crc32_word(crc, counts[i]);
    return crc;
}

uint32_t intmix_round(struct intmix *work)
{
    uint32_t state = SEED;
    reset_list(work, &state);
    reset_matrix(work, &state);
    return ~scan_part(work, matrix_part(work, list_part(work, UINT32_MAX)));
}

static uint32_t crc_of_text(const struct intmix *work)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < INTMIX_TEXT; i++)
        crc = crc32_byte(crc, (uint8_t)work->text[i]);
    return crc;
}

bool intmix_part(struct intmix *work, enum intmix_part part)
{
    uint32_t state = SEED;
    switch (part) {
    case INTMIX_LIST:
        reset_list(work, &state);
        return ~list_part(work, UINT32_MAX) == 0xadd37657;
    case INTMIX_MATRIX:
        reset_matrix(work, &state);
        return ~matrix_part(work, UINT32_MAX) == 0x0e2149a5;
    case INTMIX_STATES:
        return ~scan_part(work, UINT32_MAX) == 0x3df515a8;
    case INTMIX_CRC:
        return ~crc_of_text(work) == 0xd1934ce7;
    case INTMIX_ALL:
        return intmix_round(work) == INTMIX_CHECKSUM;
    case INTMIX_PARTS:
        break;
    }
    return false;
}
