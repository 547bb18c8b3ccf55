/*
 * Elementary functions from operations that round in one way. See numbers.h.
 */
#include "numbers.h"

#include <math.h>

static const double ln2_high = 0x1.62e42fefa3800p-1, ln2_low = 0x1.ef35793c76730p-45;

static double power_of_two(int64_t exponent)
{
    const uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static int64_t nearest(double x)
{
    return (int64_t)(x < 0 ? x - 0.5 : x + 0.5);
}

double portable_exp(double x)
{
    const double bounded = x > 700 ? 700 : x < -700 ? -700 : x;
    const int64_t k = nearest(bounded * 1.4426950408889634);
    const double r = bounded - (double)k * ln2_high - (double)k * ln2_low;
    const double square = r * r;
    double even = 1.0 / 479001600, odd = 1.0 / 6227020800; /* Taylor; |r| <= 0.35 */
    even = even * square + 1.0 / 3628800, odd = odd * square + 1.0 / 39916800;
    even = even * square + 1.0 / 40320, odd = odd * square + 1.0 / 362880;
    even = even * square + 1.0 / 720, odd = odd * square + 1.0 / 5040;
    even = even * square + 1.0 / 24, odd = odd * square + 1.0 / 120;
    even = even * square + 1.0 / 2, odd = odd * square + 1.0 / 6;
    const double sum = (even * square + 1) + r * (odd * square + 1);
    return sum * power_of_two(k);
}

double portable_log(double x)
{
    uint64_t bits = double_bits(x);
    int64_t exponent = (int64_t)(bits >> 52) - 1023;
    bits = (bits & 0xFFFFFFFFFFFFFULL) | 1023ULL << 52;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        exponent++;
    }
    const double s = (m - 1) / (m + 1), square = s * s;
    double sum = 2.0 / 21; /* of the inverse hyperbolic tangent */
    sum = sum * square + 2.0 / 19;
    sum = sum * square + 2.0 / 17;
    sum = sum * square + 2.0 / 15;
    sum = sum * square + 2.0 / 13;
    sum = sum * square + 2.0 / 11;
    sum = sum * square + 2.0 / 9;
    sum = sum * square + 2.0 / 7;
    sum = sum * square + 2.0 / 5;
    sum = sum * square + 2.0 / 3;
    sum = sum * square + 2.0;
    return (double)exponent * ln2_high + ((double)exponent * ln2_low + s * sum);
}

void portable_sincos(double x, double *sine, double *cosine)
{
    static const double high = 0x1.921fb54400000p+0, low = 0x1.0b4611a626331p-34;
    const int64_t quadrant = nearest(x * 0.6366197723675814);
    const double r = x - (double)quadrant * high - (double)quadrant * low, square = r * r;
    double s = 1, c = 1;
    for (int term = 8; term > 0; term--) {
        s = 1 - s * square * (1.0 / (2.0 * term * (2.0 * term + 1)));
        c = 1 - c * square * (1.0 / (2.0 * term * (2.0 * term - 1)));
    }
    s *= r;
    const uint64_t turn = (uint64_t)quadrant & 3;
    *sine = turn == 0 ? s : turn == 1 ? c : turn == 2 ? -s : -c;
    *cosine = turn == 0 ? c : turn == 1 ? -s : turn == 2 ? -c : s;
}

/* Inverse of the normal distribution: Beasley and Springer 1977, tails by Moro 1995. */
static double normal_quantile(double p)
{
    static const double a[] = {2.50662823884, -18.61500062529, 41.39119773534, -25.44106049637};
    static const double b[] = {-8.47351093090, 23.08336743743, -21.06224101826, 3.13082909833};
    static const double c[] = {0.3374754822726147, 0.9761690190917186, 0.1607979714918209,
                               0.0276438810333863, 0.0038405729373609, 0.0003951896511919,
                               0.0000321767881768, 0.0000002888167364, 0.0000003960315187};
    const double y = p - 0.5;
    if (y > -0.42 && y < 0.42) {
        const double r = y * y;
        return y * (((a[3] * r + a[2]) * r + a[1]) * r + a[0]) /
               ((((b[3] * r + b[2]) * r + b[1]) * r + b[0]) * r + 1);
    }
    const double r = portable_log(-portable_log(y > 0 ? 1 - p : p));
    double sum = 0;
    for (int i = 8; i >= 0; i--)
        sum = sum * r + c[i];
    return y > 0 ? sum : -sum;
}

double random_normal(struct random *random)
{
    return normal_quantile(random_uniform(random));
}
