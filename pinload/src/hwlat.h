/* The kernel's hwlat tracer, run in a measurement guest. */
#ifndef PINLOAD_HWLAT_H
#define PINLOAD_HWLAT_H

#include "base.h"

int hwlat_main(int argc, char **argv);

#endif
