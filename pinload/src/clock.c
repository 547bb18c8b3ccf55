/*
 * Choice and calibration of the benchmarks' clock. See clock.h.
 *
 * A calibration point is (counter, clock, counter) with the counter readings as
 * close together as could be had in many tries: under steal an untested single
 * reading is wrong by whole scheduling periods, and a short calibration made
 * that way was seen to err by up to 15 %.
 */
#include "clock.h"

#include <stdio.h>

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum { POINT_TRIES = 2000 };

#if defined(__x86_64__)
/* The kernel of this machine keeps its own time by the TSC (directly or through its hypervisor). */
static bool kernel_trusts_tsc(void)
{
    char text[64] = "";
    const int file = open("/sys/devices/system/clocksource/clocksource0/current_clocksource",
                          O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    const ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0)
        return false;
    text[length] = 0;
    return !strncmp(text, "tsc", 3) || !strncmp(text, "kvm-clock", 9) ||
           !strncmp(text, "hyperv_clocksource_tsc", 22);
}

/* QEMU's translator serves rdtsc from the host's counter, the same for all vCPUs. */
static bool under_tcg(void)
{
    uint32_t a, b, c, d;
    char name[13] = "";
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & (1U << 31)))
        return false;
    __cpuid(0x40000000, a, b, c, d);
    memcpy(name, &b, 4);
    memcpy(name + 4, &c, 4);
    memcpy(name + 8, &d, 4);
    return !strcmp(name, "TCGTCGTCGTCG");
}

static bool counter_is_trusted(void)
{
    uint32_t a, b, c, d;
    if (__get_cpuid(0x80000007, &a, &b, &c, &d) && (d & (1U << 8)))
        return true; /* invariant TSC */
    return kernel_trusts_tsc() || under_tcg();
}
#elif defined(__aarch64__) || (defined(__riscv) && __riscv_xlen == 64)
/* Architected: constant rate, and the kernel's own clock source. */
static bool counter_is_trusted(void)
{
    return true;
}
#else
static bool counter_is_trusted(void)
{
    return false;
}
#endif

static const char *counter_name(void)
{
#if defined(__x86_64__)
    return "tsc";
#elif defined(__aarch64__)
    return "cntvct";
#elif defined(__riscv) && __riscv_xlen == 64
    return "time";
#else
    return "monotonic-raw";
#endif
}

static struct clock_point take_point(void)
{
    struct clock_point best = {0, 0};
    uint64_t tightest = UINT64_MAX;
    for (int i = 0; i < POINT_TRIES; i++) {
        const uint64_t before = counter_ticks();
        const uint64_t now = raw_ns();
        const uint64_t after = counter_ticks();
        if (after - before < tightest) {
            tightest = after - before;
            best = (struct clock_point){before + tightest / 2, now};
        }
    }
    return best;
}

static double rate_since(const struct clock_point *first)
{
    const struct clock_point last = take_point();
    if (last.raw_ns <= first->raw_ns || last.ticks <= first->ticks)
        return 0;
    return (double)(last.ticks - first->ticks) / (double)(last.raw_ns - first->raw_ns);
}

static void use_kernel_clock(struct tick_clock *clock)
{
    *clock = (struct tick_clock){
        .hardware = false, .name = "monotonic-raw", .rough_ticks_per_ns = 1, .ticks_per_ns = 1};
}

void tick_clock_open(struct tick_clock *clock)
{
    if (!counter_is_trusted()) {
        use_kernel_clock(clock);
        return;
    }
    *clock = (struct tick_clock){.hardware = true, .name = counter_name(), .first = take_point()};
    sleep_until(monotonic_ns() + 20 * NS_PER_MS);
    clock->rough_ticks_per_ns = rate_since(&clock->first);
    clock->ticks_per_ns = clock->rough_ticks_per_ns;
    if (clock->rough_ticks_per_ns <= 0)
        use_kernel_clock(clock); /* a counter that stands still */
}

void tick_clock_close(struct tick_clock *clock)
{
    if (!clock->hardware)
        return;
    clock->ticks_per_ns = rate_since(&clock->first);
    const double ratio = clock->ticks_per_ns / clock->rough_ticks_per_ns;
    clock->drifted = !(ratio > 0.99 && ratio < 1.01);
    if (clock->ticks_per_ns <= 0)
        clock->ticks_per_ns = clock->rough_ticks_per_ns;
}

double cpufreq_mhz(int cpu)
{
    char path[96];
    double khz = 0;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cpufreq/scaling_cur_freq", cpu);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    if (fscanf(file, "%lf", &khz) != 1)
        khz = 0;
    fclose(file);
    return khz / 1000;
}
