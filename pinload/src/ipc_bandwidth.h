/* Bandwidth between two processes and from files in the page cache. */
#ifndef PINLOAD_IPC_BANDWIDTH_H
#define PINLOAD_IPC_BANDWIDTH_H

#include "base.h"

/* `pinload ipc-bandwidth ...`; returns the exit code. */
int ipc_bandwidth_main(int argc, char **argv);

#endif
