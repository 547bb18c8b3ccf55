/* The churn benchmark: work of short-lived and of alternating processes. */
#ifndef PINLOAD_CHURN_H
#define PINLOAD_CHURN_H

#include "base.h"

int churn_main(int argc, char **argv);

#endif
