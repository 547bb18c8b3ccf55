/* Scores of the integer kernel, by part and together. */
#ifndef PINLOAD_INTMIX_SCORE_H
#define PINLOAD_INTMIX_SCORE_H

#include "base.h"

/* `pinload intmix ...`; returns the exit code. */
int intmix_main(int argc, char **argv);

#endif
