/* The spin-gap benchmark: time that was taken from a thread which never gives it up. */
#ifndef PINLOAD_SPIN_GAP_H
#define PINLOAD_SPIN_GAP_H

#include "base.h"

int spin_gap_main(int argc, char **argv);

#endif
