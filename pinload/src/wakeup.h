/* The wake-up benchmark: lateness of an absolute timer. */
#ifndef PINLOAD_WAKEUP_H
#define PINLOAD_WAKEUP_H

#include "base.h"

int wakeup_main(int argc, char **argv);

#endif
