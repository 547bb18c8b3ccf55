/* The subcommand `bandwidth`. */
#ifndef PINLOAD_BANDWIDTH_H
#define PINLOAD_BANDWIDTH_H

#include "base.h"

int bandwidth_main(int argc, char **argv);

#endif
