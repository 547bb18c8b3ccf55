/*
 * Setting up a guest in which pinload is process 1: mounts, loopback, modules, the port, the end.
 */
#ifndef PINLOAD_GUEST_H
#define PINLOAD_GUEST_H

#include "base.h"

#include <stdio.h>

#define GUEST_PORT "org.pinfold.agent"

/* Mounts proc, sysfs, devtmpfs and tmpfs and gives the process standard files. */
void guest_mount(void);

/* Brings the loopback interface up, on which `micro udp` sends; a kernel without one is no failure. */
void guest_raise_loopback(void);

/* Inserts the modules of /pinload/modules.list; writes failures to `report` as JSON objects. */
void guest_insert_modules(FILE *report);

/* Brings every CPU online that the kernel left offline, one after the other. */
void guest_bring_cpus_online(void);

/* Levels of this kernel's page tables; 0 where that cannot be asked. */
int guest_page_table_levels(void);

/* Opens the virtio-serial port named GUEST_PORT, waiting for it; -1 after `limit_ns`. */
int guest_open_port(uint64_t limit_ns);

/* Syncs and powers off; resets the machine if that is refused. */
_Noreturn void guest_power_off(void);

#endif
