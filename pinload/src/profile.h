/* The subcommand `profile`. */
#ifndef PINLOAD_PROFILE_H
#define PINLOAD_PROFILE_H

#include "base.h"

int profile_main(int argc, char **argv);

#endif
