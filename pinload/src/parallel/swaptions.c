/*
 * swaptions: payer swaptions by Monte Carlo simulation of the forward curve.
 *
 * Heath, Jarrow and Morton 1992, discretised without arbitrage as in Glasserman, "Monte
 * Carlo Methods in Financial Engineering" (2004), section 3.6: three factors, half-year
 * steps. Each thread has a part of the portfolio and meets the others only at the end.
 * Unlike PARSEC's program of the name there are 1,024 swaptions in every size (the sizes
 * differ in the trials), each trial has its own random stream, and paths are not simulated
 * in blocks.
 */
#include "parallel.h"

#include <math.h>

enum { SWAPTIONS = 1024, MATURITIES = 20, FACTORS = 3 };

static const double step = 0.5; /* years */
static const size_t trials[SIZES] = {150, 1500, 15000};

struct swaption {
    size_t expiry; /* steps; the swap runs from there to the last maturity */
    double strike;
    double price, error;
    double drift, drift_square; /* of the last bond against its price today: none is expected */
};

struct market {
    uint64_t seed;
    size_t trials;
    double forward[MATURITIES];
    double volatility[FACTORS][MATURITIES]; /* by steps to maturity; the first is unused */
    double drift[MATURITIES];
    double last_bond;
    struct swaption *swaptions;
};

static void *prepare(const struct setting *setting)
{
    struct market *market = memory_take(1, sizeof *market);
    struct random random = random_stream(setting->seed, 0);
    market->seed = setting->seed;
    market->trials = trials[setting->size];
    double rates = 0, before = 0;
    for (size_t j = 0; j < MATURITIES; j++) {
        const double years = (double)j * step;
        market->forward[j] = 0.03 + 0.002 * years + 0.002 * random_uniform(&random);
        rates += market->forward[j];
        market->volatility[0][j] = 0.010;
        market->volatility[1][j] = 0.008 * portable_exp(-0.3 * years);
        market->volatility[2][j] = 0.004 * (1 - 0.2 * years);
    }
    market->last_bond = portable_exp(-rates * step);
    for (size_t j = 1; j < MATURITIES; j++) { /* no drift of any discounted bond */
        double sum = 0;
        for (size_t k = 0; k < FACTORS; k++) {
            double all = 0;
            for (size_t l = 1; l <= j; l++)
                all += market->volatility[k][l] * step;
            sum += 0.5 * all * all;
        }
        market->drift[j] = sum - before; /* times one step, over the length of one step */
        before = sum;
    }
    market->swaptions = memory_take(SWAPTIONS, sizeof *market->swaptions);
    for (size_t i = 0; i < SWAPTIONS; i++) {
        market->swaptions[i].expiry = 2 + random_below(&random, 9);
        market->swaptions[i].strike = 0.03 + 0.03 * random_uniform(&random);
    }
    return market;
}

/* One path to the expiry: the curve then (from its shortest rate on); returns the discount. */
static double simulate(const struct market *market, size_t expiry, struct random *random,
                       double curve[MATURITIES])
{
    const double root = sqrt(step);
    double rates = 0;
    for (size_t j = 0; j < MATURITIES; j++)
        curve[j] = market->forward[j];
    for (size_t i = 0; i < expiry; i++) {
        double shock[FACTORS];
        for (size_t k = 0; k < FACTORS; k++)
            shock[k] = root * random_normal(random);
        rates += curve[0];
        for (size_t j = 1; j < MATURITIES - i; j++) {
            double rate = curve[j] + market->drift[j];
            for (size_t k = 0; k < FACTORS; k++)
                rate += market->volatility[k][j] * shock[k];
            curve[j - 1] = rate;
        }
    }
    return portable_exp(-rates * step);
}

static void price(const struct market *market, size_t index)
{
    struct swaption *swaption = &market->swaptions[index];
    double sum = 0, squares = 0;
    for (size_t trial = 0; trial < market->trials; trial++) {
        struct random random = random_stream(market->seed, 1 + index * market->trials + trial);
        double curve[MATURITIES], coupons = 0, rates = 0, bond = 1;
        const double discount = simulate(market, swaption->expiry, &random, curve);
        for (size_t j = 0; j < MATURITIES - swaption->expiry; j++) {
            rates += curve[j];
            bond = portable_exp(-rates * step);
            coupons += step * bond;
        }
        const double worth = 1 - bond - swaption->strike * coupons;
        const double payoff = worth > 0 ? discount * worth : 0;
        const double drift = discount * bond / market->last_bond - 1;
        sum += payoff;
        squares += payoff * payoff;
        swaption->drift += drift;
        swaption->drift_square += drift * drift;
    }
    const double count = (double)market->trials;
    swaption->price = sum / count;
    swaption->error = sqrt(fabs(squares / count - swaption->price * swaption->price) / count);
}

static void work(void *state, struct team *team, size_t thread)
{
    const struct market *market = state;
    const struct range own = range_part(SWAPTIONS, team->threads, thread);
    for (size_t i = own.begin; i < own.end; i++)
        price(market, i);
}

/* Proof: the discounted price of a bond is a martingale, within six standard errors. */
static bool finish(void *state, uint64_t *checksum)
{
    const struct market *market = state;
    double drift = 0, square = 0;
    for (size_t i = 0; i < SWAPTIONS; i++) {
        const struct swaption *swaption = &market->swaptions[i];
        drift += swaption->drift;
        square += swaption->drift_square;
        *checksum += checksum_double(2 * i, swaption->price);
        *checksum += checksum_double(2 * i + 1, swaption->error);
    }
    if (drift * drift < 36 * square)
        return true;
    complain("swaptions: the discounted bond drifts by %g over all trials", drift);
    return false;
}

const struct program program_swaptions = {
    .name = "swaptions",
    .about = "Monte Carlo pricing under Heath-Jarrow-Morton: independent parts, no communication",
    .rule = THREADS_ANY,
    .most_threads = {SWAPTIONS, SWAPTIONS, SWAPTIONS},
    .sizes = {"1,024 swaptions, 150 trials", "1,024 swaptions, 1,500 trials",
              "1,024 swaptions, 15,000 trials"},
    .prepare = prepare,
    .work = work,
    .finish = finish,
};
