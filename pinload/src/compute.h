/* The compute benchmark: integer work per second, window by window. */
#ifndef PINLOAD_COMPUTE_H
#define PINLOAD_COMPUTE_H

#include "base.h"

int compute_main(int argc, char **argv);

#endif
