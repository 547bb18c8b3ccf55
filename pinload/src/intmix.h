/* The integer kernel of the compute ruler and of the CPU load. */
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

void intmix_init(struct intmix *work);

/* One round: some 10 us of list, matrix, state machine and CRC work. Always the same work. */
uint32_t intmix_round(struct intmix *work);

#endif
