/* The subcommand `loop64`. */
#ifndef PINLOAD_LOOP64_H
#define PINLOAD_LOOP64_H

#include "base.h"

int loop64_main(int argc, char **argv);

#endif
