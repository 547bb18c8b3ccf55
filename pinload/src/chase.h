/* The subcommand `chase`. */
#ifndef PINLOAD_CHASE_H
#define PINLOAD_CHASE_H

#include "base.h"

int chase_main(int argc, char **argv);

#endif
