/*
 * UDP datagrams to nowhere.
 */
#ifndef PINLOAD_DATAGRAM_H
#define PINLOAD_DATAGRAM_H

#include "base.h"

enum { DATAGRAM_BYTES = 1024 };

struct datagrams {
    int sender;
    int nowhere; /* where they go; never read */
    char bytes[DATAGRAM_BYTES];
};

/* Opens both ends on the loopback interface; 0 or an errno. */
int datagrams_open(struct datagrams *datagrams);

/* Sends one; 0 or an errno. */
int datagrams_send(struct datagrams *datagrams);

void datagrams_close(struct datagrams *datagrams);

#endif
