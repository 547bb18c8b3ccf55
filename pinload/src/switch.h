/* Context switches in a ring of processes. */
#ifndef PINLOAD_SWITCH_H
#define PINLOAD_SWITCH_H

#include "base.h"

/* `pinload switch ...`; returns the exit code. */
int switch_main(int argc, char **argv);

#endif
