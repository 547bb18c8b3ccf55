/*
 * UDP datagrams to an address that no host has.
 */
#ifndef PINLOAD_DATAGRAM_H
#define PINLOAD_DATAGRAM_H

#include "base.h"

enum { DATAGRAM_BYTES = 1024 };

struct datagrams {
    int sender;
    char bytes[DATAGRAM_BYTES];
};

/* Moves this process to a network namespace of its own and opens the socket; 0 or an errno. */
int datagrams_open(struct datagrams *datagrams);

/* Sends one; 0 or an errno. */
int datagrams_send(struct datagrams *datagrams);

void datagrams_close(struct datagrams *datagrams);

#endif
