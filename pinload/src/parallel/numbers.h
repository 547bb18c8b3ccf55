/*
 * Numbers that are the same on every machine: random ones, hashes, elementary functions.
 *
 * C libraries round exp, log, sin and cos differently, even one library on two CPUs. The
 * programs' checksums are to be compared between host and guest and between
 * architectures, so they use these, which are made of operations that IEEE 754 rounds
 * in one way; `sqrt` is one of them. Accurate to some 1e-15, without special cases:
 * arguments must be finite and in the range that is stated.
 */
#ifndef PINLOAD_NUMBERS_H
#define PINLOAD_NUMBERS_H

#include "../base.h"

#include <string.h>

/* A stream of random numbers: splitmix64 (Steele, Lea, Flood 2014). */
struct random {
    uint64_t state;
};

/* The finaliser of splitmix64: a bijection in which every bit depends on every bit. */
static inline uint64_t mix64(uint64_t x)
{
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ x >> 27) * 0x94D049BB133111EBULL;
    return x ^ x >> 31;
}

/* Stream number `stream` of a seed: streams do not depend on who draws from the others. */
static inline struct random random_stream(uint64_t seed, uint64_t stream)
{
    return (struct random){mix64(mix64(seed + 0x9E3779B97F4A7C15ULL) ^ mix64(~stream))};
}

static inline uint64_t random_next(struct random *random)
{
    return mix64(random->state += 0x9E3779B97F4A7C15ULL);
}

/* In the open interval (0, 1). */
static inline double random_uniform(struct random *random)
{
    return ((double)(random_next(random) >> 12) + 0.5) * 0x1p-52;
}

/* From 0 to limit - 1; limit at most 2^32. */
static inline size_t random_below(struct random *random, size_t limit)
{
    return (size_t)((random_next(random) >> 32) * limit >> 32);
}

/* Standard normal. */
double random_normal(struct random *random);

/* e^x for |x| <= 700 (beyond that as at the bound). */
double portable_exp(double x);

/* Natural logarithm of a positive normal number. */
double portable_log(double x);

/* Both at once, for |x| <= 1e6. */
void portable_sincos(double x, double *sine, double *cosine);

static inline uint64_t double_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The share of item `index` in a checksum: shares are added, in any order. */
static inline uint64_t checksum_item(uint64_t index, uint64_t bits)
{
    return mix64(mix64(index + 0x9E3779B97F4A7C15ULL) ^ bits);
}

static inline uint64_t checksum_double(uint64_t index, double value)
{
    return checksum_item(index, double_bits(value));
}

/*
 * Sums that do not depend on the order of their terms: in units of 2^-36, each term cut
 * towards zero, so that fixed(-x) is -fixed(x), and bounded by 2^26. Sums wrap around
 * instead of overflowing.
 */
static inline uint64_t fixed(double value)
{
    const double limit = 0x1p26;
    const double cut = value > limit ? limit : value > -limit ? value : -limit;
    return (uint64_t)(int64_t)(cut * 0x1p36);
}

static inline double fixed_value(uint64_t sum)
{
    /* Two's complement, without a conversion that C leaves open. */
    return sum >> 63 ? -((double)(~sum + 1) * 0x1p-36) : (double)sum * 0x1p-36;
}

#endif
