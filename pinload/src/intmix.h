/* The integer kernel of the compute benchmark, of the CPU load and of `pinload intmix`. */
#ifndef PINLOAD_INTMIX_H
#define PINLOAD_INTMIX_H

#include "base.h"

enum { INTMIX_NODES = 128, INTMIX_SIDE = 12, INTMIX_TEXT = 256 };

/* Working memory of one thread; fits a level-1 cache. */
struct intmix {
    struct {
        uint32_t key;
        uint16_t next;
    } list[INTMIX_NODES];
    int32_t matrix[3][INTMIX_SIDE * INTMIX_SIDE];
    char text[INTMIX_TEXT];
};

/* The checksum that every round must give. */
extern const uint32_t INTMIX_CHECKSUM;

/* A part of a round by itself, and all four as one round. */
enum intmix_part { INTMIX_LIST, INTMIX_MATRIX, INTMIX_STATES, INTMIX_CRC, INTMIX_ALL, INTMIX_PARTS };

void intmix_init(struct intmix *work);

/* One round: some 10 us of list, matrix, state machine and CRC work. Always the same work. */
uint32_t intmix_round(struct intmix *work);

/* One part, which starts from the same values each time; whether its checksum is right. */
bool intmix_part(struct intmix *work, enum intmix_part part);

#endif
