/*
 * pinload: every load and every in-workload benchmark of Pinfold in one program.
 *
 * The first argument names what to do. Started as process 1 it is the init of a
 * measurement guest, whatever its arguments: the kernel passes some of its own.
 * Nothing but the C library is needed, and no code depends on one architecture
 * without a fallback, so that the same source runs on the host and in guests.
 */
#include "base.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"
#include "bandwidth.h"
#include "burst.h"
#include "chase.h"
#include "churn.h"
#include "compute.h"
#include "hwlat.h"
#include "io_latency.h"
#include "intmix_score.h"
#include "ipc_bandwidth.h"
#include "load.h"
#include "loop64.h"
#include "micro.h"
#include "os_latency.h"
#include "parallel/parallel.h"
#include "profile.h"
#include "progress.h"
#include "spin_gap.h"
#include "stream_variant.h"
#include "switch.h"
#include "wakeup.h"

static const struct {
    const char *name;
    int (*main)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"spin-gap", spin_gap_main, "time taken from a spinning thread"},
    {"wakeup", wakeup_main, "lateness of timer wake-ups"},
    {"compute", compute_main, "integer work per second"},
    {"hwlat", hwlat_main, "the kernel's hwlat tracer, in a measurement guest"},
    {"io-latency", io_latency_main, "duration of random block reads"},
    {"progress", progress_main, "work done in each millisecond, and every stop"},
    {"burst", burst_main, "duration of bursts of work between sleeps"},
    {"micro", micro_main, "micro-benchmarks: cpu, udp, sleep, memory, processes, threads, cache"},
    {"churn", churn_main, "work of short-lived processes: fork, pipe, spawn"},
    {"bandwidth", bandwidth_main, "read, write and copy bandwidth by block size"},
    {"stream-variant", stream_variant_main, "copy, scale, add, triad: a variant of STREAM"},
    {"chase", chase_main, "latency of a load by size, alone and loaded"},
    {"loop64", loop64_main, "the 64 MB loop, pass by pass, alone and beside an interferer"},
    {"switch", switch_main, "context switches in rings of processes"},
    {"ipc-bandwidth", ipc_bandwidth_main, "bytes per second through pipes, sockets, files, mappings"},
    {"os-latency", os_latency_main, "system calls, signals, processes, page faults, files"},
    {"intmix", intmix_main, "scores of lists, matrices, state machines, CRC; also per MHz"},
    {"profile", profile_main, "scores of this machine by kind of work, for `pinfold run --like`"},
    {"parallel", parallel_main, "parallel programs with T_full and T_roi"},
    {"load", load_main, "background load: cpu, memory, io"},
    {"agent", agent_main, "serve framed commands (init of a measurement guest)"},
};

static void print_help(FILE *out)
{
    fprintf(out, "pinload %s: loads and benchmarks of Pinfold\n\n", PINLOAD_VERSION);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(out, "  pinload %-14s %s\n", commands[i].name, commands[i].help);
    fputs("\nEach takes --help. Exit codes: 0 done, 1 failed, 2 wrong arguments, 3 abandoned by "
          "its supervisor.\n",
          out);
}

int main(int argc, char **argv)
{
    if (getpid() == 1) {
        pinload_command = "agent";
        return agent_init();
    }
    if (argc < 2) {
        print_help(stderr);
        return PINLOAD_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "--version")) {
        if (argv[1][2] == 'h')
            print_help(stdout);
        else
            puts("pinload " PINLOAD_VERSION);
        return PINLOAD_OK;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (!strcmp(argv[1], commands[i].name)) {
            pinload_command = commands[i].name;
            return commands[i].main(argc - 2, argv + 2);
        }
    }
    complain("\"%s\" is not a command; pinload --help lists them", argv[1]);
    return PINLOAD_USAGE;
}
