/*
 * The command around the parallel programs. See parallel.h.
 *
 * T_full runs from the start of main to the proven result; T_roi is the parallel phase, from
 * the moment at which all threads stand ready to the end of the last one.
 * A number of threads that a program cannot have is refused, never rounded.
 */
#include "parallel.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../args.h"
#include "../clock.h"
#include "../worker_pool.h"
#include "../figure.h"
#include "../json.h"
#include "../supervise.h"

/* The large size on a guest of an emulator with many virtual CPUs may take hours. */
#define LIMIT_NS (24 * 3600 * NS_PER_S)

static const struct program *const programs[] = {
    &program_barnes,          &program_blackscholes,      &program_bodytrack,
    &program_cholesky,        &program_ferret,            &program_fft,
    &program_fluidanimate,    &program_freqmine,          &program_lu_contiguous,
    &program_lu_non_contiguous, &program_ocean,           &program_radix,
    &program_swaptions,       &program_water_nsquared,    &program_water_spatial,
};

enum { PROGRAMS = sizeof programs / sizeof *programs };

static const char *const size_names[SIZES] = {"small", "medium", "large"};
static const char *const rule_names[] = {"any", "power of two"};

struct request {
    const struct program *program;
    struct setting setting;
    struct cpu_list affinity;
    bool wrap;
    bool supervised;
    bool is_marked;
    uint64_t begin_ns;
};

static int list(void)
{
    fputc('[', stdout);
    for (size_t i = 0; i < PROGRAMS; i++) {
        const struct program *program = programs[i];
        printf("%s{\"name\":\"%s\",\"about\":", i ? "," : "", program->name);
        json_text(stdout, program->about);
        printf(",\"threads\":\"%s\",\"sizes\":[", rule_names[program->rule]);
        for (size_t size = 0; size < SIZES; size++) {
            printf("%s{\"name\":\"%s\",\"most_threads\":%zu,\"about\":", size ? "," : "",
                   size_names[size], program->most_threads[size]);
            json_text(stdout, program->sizes[size]);
            fputc('}', stdout);
        }
        fputs("]}", stdout);
    }
    fputs("]\n", stdout);
    return output_end();
}

static bool print(const struct request *request, const char *part, uint64_t ns, uint64_t checksum)
{
    const double sample = (double)ns;
    struct figure figure = {
        .probe = "parallel",
        .unit = "ns",
        .family = FIGURE_CAPACITY,
        .cpu = -1,
        .duration_ns = ns,
        .samples = &sample,
        .count = 1,
    };
    figure_label(&figure, "part", "%s", part);
    figure_label(&figure, "program", "%s", request->program->name);
    figure_label(&figure, "size", "%s", size_names[request->setting.size]);
    figure_label(&figure, "threads", "%zu", request->setting.threads);
    figure_label(&figure, "seed", "%" PRIu64, request->setting.seed);
    figure_label(&figure, "checksum", "%016" PRIx64, checksum);
    return figure_print(stdout, &figure);
}

static int run(const struct request *request)
{
    if (!supervise_measurement(LIMIT_NS, request->supervised, 0))
        return PINLOAD_FAILED;
    struct team team = {.threads = request->setting.threads,
                        .work = request->program->work,
                        .is_marked = request->is_marked};
    uint64_t checksum = 0;
    team.state = request->program->prepare(&request->setting);
    if (!team_run(&team, &request->affinity))
        return PINLOAD_FAILED;
    const bool proven = request->program->finish(team.state, &checksum);
    const uint64_t full_ns = raw_ns() - request->begin_ns;
    memory_release();
    if (!proven || !print(request, "full", full_ns, checksum) ||
        !print(request, "roi", team.roi_ns, checksum))
        return PINLOAD_FAILED;
    return output_end();
}

static bool threads_allowed(const struct request *request)
{
    const struct program *program = request->program;
    const size_t threads = request->setting.threads;
    const size_t most = program->most_threads[request->setting.size];
    const bool power = (threads & (threads - 1)) == 0;
    if (threads <= most && (power || program->rule == THREADS_ANY))
        return true;
    complain("--threads: %s, size %s, runs with %s up to %zu threads, not with %zu", program->name,
             size_names[request->setting.size],
             program->rule == THREADS_ANY ? "any number from 1" : "a power of two (1, 2, 4, ...)",
             most, threads);
    return false;
}

static bool settle(struct request *request, const char *size, const char *affinity)
{
    size_t index = 0;
    while (index < SIZES && strcmp(size_names[index], size) != 0)
        index++;
    if (index == SIZES) {
        complain("--size: \"%s\" is not small, medium or large", size);
        return false;
    }
    request->setting.size = (enum size)index;
    if (!threads_allowed(request))
        return false;
    if (affinity && !strcmp(affinity, "any"))
        affinity = NULL; /* nothing to go round on, and no need to */
    else if (request->wrap && !affinity) {
        complain("--wrap: there is no --affinity to go round on");
        return false;
    }
    if (affinity && !cpu_order_parse("--affinity", affinity, &request->affinity))
        return false;
    if (affinity && !request->wrap && request->affinity.count < request->setting.threads) {
        complain("--affinity: %zu CPUs for %zu threads; list one for each, or go round with --wrap",
                 request->affinity.count, request->setting.threads);
        return false;
    }
    return true;
}

static const struct program *find_program(const char *name)
{
    for (size_t i = 0; i < PROGRAMS; i++)
        if (!strcmp(programs[i]->name, name))
            return programs[i];
    return NULL;
}

int parallel_main(int argc, char **argv)
{
    struct request request = {.begin_ns = raw_ns(), .setting = {.seed = 1}};
    const char *size = NULL, *affinity = NULL;
    uint64_t threads = 0;
    const struct argument table[] = {
        {"--threads", ARGUMENT_INTEGER, &threads, 1, WORKER_POOL_LIMIT, REQUIRED, "number of threads"},
        {"--size", ARGUMENT_TEXT, &size, 0, 0, REQUIRED,
         "small, medium or large: about 0.1, 1 or 10 s of one core"},
        {"--seed", ARGUMENT_INTEGER, &request.setting.seed, 0, UINT64_MAX, OPTIONAL,
         "what the input is made from (1)"},
        {"--affinity", ARGUMENT_TEXT, &affinity, 0, 0, OPTIONAL,
         "CPUs in order, such as 0,4,1-3: thread i runs on the i-th (any: where it likes)"},
        {"--wrap", ARGUMENT_FLAG, &request.wrap, 0, 0, OPTIONAL,
         "more threads than CPUs in --affinity: go round"},
        {"--mark-roi", ARGUMENT_FLAG, &request.is_marked, 0, 0, OPTIONAL,
         "lines on stderr where the parallel phase begins and ends"},
        {"--supervised", ARGUMENT_FLAG, &request.supervised, 0, 0, OPTIONAL,
         "end unless stdin carries heartbeats"},
    };
    if (argc == 1 && !strcmp(argv[0], "--list"))
        return list();
    const bool help = argc > 0 && !strcmp(argv[0], "--help");
    if (!help && (argc == 0 || !(request.program = find_program(argv[0])))) {
        complain("%s%s%s is not a parallel program; pinload parallel --list names them",
                 argc ? "\"" : "", argc ? argv[0] : "nothing", argc ? "\"" : "");
        return PINLOAD_USAGE;
    }
    const enum parse_result parsed = arguments_parse(argc - !help, argv + !help, table,
                                                     sizeof table / sizeof *table);
    if (parsed != PARSE_DONE)
        return parse_exit_code(parsed);
    request.setting.threads = (size_t)threads;
    const int code = settle(&request, size, affinity) ? run(&request) : PINLOAD_USAGE;
    free(request.affinity.cpus);
    return code;
}
