/*
 * blackscholes: a portfolio of European options valued by the closed formula.
 *
 * Black and Scholes, "The pricing of options and corporate liabilities" (1973); the normal
 * distribution by Abramowitz and Stegun 26.2.17. Each thread has a part of the portfolio
 * and meets the others only at the end.
 * Unlike PARSEC's program of the name, the repeated valuations are not all the same: each is
 * a scenario in which the spot prices have moved, and the checksum is over the mean values.
 */
#include "parallel.h"

#include <math.h>

enum { SCENARIOS = 100 };

static const size_t counts[SIZES] = {12288, 122880, 1228800};

struct option {
    double spot, strike, rate, volatility, years;
    bool put;
};

struct portfolio {
    size_t count;
    struct option *options;
    double *values;
};

static void *prepare(const struct setting *setting)
{
    struct portfolio *portfolio = memory_take(1, sizeof *portfolio);
    portfolio->count = counts[setting->size];
    portfolio->options = memory_take(portfolio->count, sizeof *portfolio->options);
    portfolio->values = memory_take(portfolio->count, sizeof *portfolio->values);
    struct random random = random_stream(setting->seed, 0);
    for (size_t i = 0; i < portfolio->count; i++) {
        portfolio->options[i] = (struct option){
            .spot = 20 + 180 * random_uniform(&random),
            .strike = 20 + 180 * random_uniform(&random),
            .rate = 0.01 + 0.09 * random_uniform(&random),
            .volatility = 0.05 + 0.6 * random_uniform(&random),
            .years = 0.05 + 2 * random_uniform(&random),
            .put = random_below(&random, 2) == 1,
        };
    }
    return portfolio;
}

/* The normal distribution's mass below x. */
static double normal_below(double x)
{
    const double size = fabs(x), k = 1 / (1 + 0.2316419 * size);
    const double density = 0.3989422804014327 * portable_exp(-0.5 * size * size);
    const double polynomial =
        k * (0.319381530 +
             k * (-0.356563782 + k * (1.781477937 + k * (-1.821255978 + k * 1.330274429))));
    return x < 0 ? density * polynomial : 1 - density * polynomial;
}

static double value_of(const struct option *option, double spot, bool put)
{
    const double spread = option->volatility * sqrt(option->years);
    const double d1 = (portable_log(spot / option->strike) +
                       (option->rate + 0.5 * option->volatility * option->volatility) *
                           option->years) /
                      spread;
    const double above = normal_below(d1), paid = normal_below(d1 - spread);
    const double strike_now = option->strike * portable_exp(-option->rate * option->years);
    return put ? strike_now * (1 - paid) - spot * (1 - above) : spot * above - strike_now * paid;
}

static void work(void *state, struct team *team, size_t thread)
{
    struct portfolio *portfolio = state;
    const struct range own = range_part(portfolio->count, team->threads, thread);
    for (int scenario = 0; scenario < SCENARIOS; scenario++) {
        const double move = 1 + 0.002 * (scenario - SCENARIOS / 2);
        for (size_t i = own.begin; i < own.end; i++) {
            const struct option *option = &portfolio->options[i];
            portfolio->values[i] += value_of(option, option->spot * move, option->put);
        }
    }
}

/* Proof: a call less a put is the spot less the strike of today, whatever the volatility. */
static bool finish(void *state, uint64_t *checksum)
{
    const struct portfolio *portfolio = state;
    for (size_t i = 0; i < portfolio->count; i++) {
        const struct option *option = &portfolio->options[i];
        const double parity = option->spot -
                              option->strike * portable_exp(-option->rate * option->years);
        const double found = value_of(option, option->spot, false) -
                             value_of(option, option->spot, true);
        if (!(fabs(found - parity) < 1e-9) || !(portfolio->values[i] > -0.01)) {
            complain("blackscholes: option %zu breaks the parity of calls and puts by %g", i,
                     found - parity);
            return false;
        }
        *checksum += checksum_double(i, portfolio->values[i] / SCENARIOS);
    }
    return true;
}

const struct program program_blackscholes = {
    .name = "blackscholes",
    .about = "closed-form option pricing: independent parts, no communication",
    .rule = THREADS_ANY,
    .most_threads = {1024, 1024, 1024},
    .sizes = {"12,288 options, 100 scenarios", "122,880 options, 100 scenarios",
              "1,228,800 options, 100 scenarios"},
    .prepare = prepare,
    .work = work,
    .finish = finish,
};
