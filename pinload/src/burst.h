/* The burst benchmark: duration of bursts of work between sleeps. */
#ifndef PINLOAD_BURST_H
#define PINLOAD_BURST_H

#include "base.h"

int burst_main(int argc, char **argv);

#endif
