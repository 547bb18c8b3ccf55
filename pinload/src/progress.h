/* The progress benchmark: work done in each millisecond, and every stop. */
#ifndef PINLOAD_PROGRESS_H
#define PINLOAD_PROGRESS_H

#include "base.h"

int progress_main(int argc, char **argv);

#endif
