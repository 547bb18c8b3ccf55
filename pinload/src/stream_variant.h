/* The subcommand `stream-variant`. */
#ifndef PINLOAD_STREAM_VARIANT_H
#define PINLOAD_STREAM_VARIANT_H

#include "base.h"

int stream_variant_main(int argc, char **argv);

#endif
