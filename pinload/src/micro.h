/* The six micro-benchmarks of Buchert 2011: work over elapsed time. */
#ifndef PINLOAD_MICRO_H
#define PINLOAD_MICRO_H

#include "base.h"

int micro_main(int argc, char **argv);

#endif
