/* How much memory there is. */
#ifndef PINLOAD_MEMORY_H
#define PINLOAD_MEMORY_H

#include "base.h"

/* KiB that can be taken without swapping, as the kernel tells; UINT64_MAX if it does not. */
uint64_t memory_available_kib(void);

/* Resident KiB of this process; 0 if the kernel does not tell (no /proc). */
uint64_t memory_resident_kib(void);

#endif
