/* Background loads: CPU, memory, I/O. */
#ifndef PINLOAD_LOAD_H
#define PINLOAD_LOAD_H

#include "base.h"

int load_main(int argc, char **argv);

#endif
