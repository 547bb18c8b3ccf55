/* The I/O benchmark: duration of single random block reads. */
#ifndef PINLOAD_IO_LATENCY_H
#define PINLOAD_IO_LATENCY_H

#include "base.h"

int io_latency_main(int argc, char **argv);

#endif
