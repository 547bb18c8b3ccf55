/*
 * Where and under which policy a thread runs.
 *
 * CPUs are OS indexes. Sets are allocated for the largest index that Linux
 * knows, because the fixed cpu_set_t ends at 1023.
 */
#ifndef PINLOAD_RT_H
#define PINLOAD_RT_H

#include "base.h"

enum { CPU_LIMIT = 8192 };

struct cpu_list {
    bool given;
    size_t count;
    int *cpus; /* ascending, unless the order was asked for */
};

struct policy {
    bool fifo;
    int priority;
};

/* "all" (the CPUs this process may use) or a list such as "0,2-3"; each must be usable here. */
bool cpu_list_parse(const char *argument, const char *text, struct cpu_list *list);

/* A list whose order counts, such as "0,4,1-3": CPUs as they are written, each usable and once. */
bool cpu_order_parse(const char *argument, const char *text, struct cpu_list *list);

/* "other" or "fifo:1" to "fifo:99". */
bool policy_parse(const char *argument, const char *text, struct policy *policy);

/* Text of a policy, as it is written on the command line. */
void policy_text(const struct policy *policy, char *text, size_t size);

/* Restricts the calling thread to one CPU. */
bool thread_pin(int cpu);

/* Restricts the calling thread to the CPUs of the list. */
bool thread_confine(const struct cpu_list *list);

/* Gives the calling thread the policy; false (with errno) if the kernel refuses. */
bool thread_enter_policy(const struct policy *policy);

#endif
