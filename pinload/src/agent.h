/* The agent: serves framed commands, as init of a guest or for tests on the host. */
#ifndef PINLOAD_AGENT_H
#define PINLOAD_AGENT_H

#include "base.h"

int agent_main(int argc, char **argv);

/* As process 1: sets the guest up, serves its virtio-serial port, never returns normally. */
int agent_init(void);

#endif
