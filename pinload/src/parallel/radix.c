/*
 * radix: parallel sort of 64-bit keys, least significant digit first.
 *
 * Blelloch et al., "A comparison of sorting algorithms for the Connection Machine CM-2"
 * (1991): in each pass every thread counts the digits of its keys, the counts are
 * scanned over digits and threads, and every thread sends its keys to their places, all
 * over the other array. Several sorts follow each other, each of freshly scrambled keys.
 * Unlike SPLASH's program of the name: digits of 8 bits, the scan over threads is Hillis and
 * Steele's instead of a tree (any number of threads), and keys are uniform.
 */
#include "parallel.h"

enum { DIGITS = 256, PASSES = 8 };

static const struct {
    size_t keys, sorts;
} shapes[SIZES] = {{1 << 21, 1}, {1 << 22, 6}, {1 << 23, 22}};

struct sort {
    uint64_t seed;
    size_t count, sorts;
    uint64_t *keys[2];
    uint32_t (*counts[2])[DIGITS]; /* of each thread, and scanned */
};

static uint64_t first_key(const struct sort *sort, size_t index)
{
    return mix64(sort->seed ^ mix64(index + 1));
}

static void *prepare(const struct setting *setting)
{
    struct sort *sort = memory_take(1, sizeof *sort);
    sort->seed = mix64(setting->seed + 1);
    sort->count = shapes[setting->size].keys;
    sort->sorts = shapes[setting->size].sorts;
    for (int i = 0; i < 2; i++) {
        sort->keys[i] = memory_take(sort->count, sizeof *sort->keys[i]);
        sort->counts[i] = memory_take(setting->threads, sizeof *sort->counts[i]);
    }
    for (size_t i = 0; i < sort->count; i++)
        sort->keys[0][i] = first_key(sort, i);
    return sort;
}

/* Sums of each digit over all threads up to each one; the buffer that holds them. */
static int scan_threads(struct sort *sort, struct team *team, size_t thread)
{
    int from = 0;
    for (size_t distance = 1; distance < team->threads; distance *= 2, from ^= 1) {
        for (size_t digit = 0; digit < DIGITS; digit++)
            sort->counts[from ^ 1][thread][digit] =
                sort->counts[from][thread][digit] +
                (thread >= distance ? sort->counts[from][thread - distance][digit] : 0);
        team_wait(team);
    }
    return from;
}

static void pass(struct sort *sort, struct team *team, size_t thread, int number)
{
    const struct range own = range_part(sort->count, team->threads, thread);
    const uint64_t *from = sort->keys[number & 1];
    uint64_t *to = sort->keys[~number & 1];
    uint32_t place[DIGITS] = {0};
    for (size_t i = own.begin; i < own.end; i++)
        place[from[i] >> 8 * number & (DIGITS - 1)]++;
    for (size_t digit = 0; digit < DIGITS; digit++)
        sort->counts[0][thread][digit] = place[digit];
    team_wait(team);
    const int scanned = scan_threads(sort, team, thread);
    uint32_t before = 0;
    for (size_t digit = 0; digit < DIGITS; digit++) {
        place[digit] = before + sort->counts[scanned][thread][digit] - place[digit];
        before += sort->counts[scanned][team->threads - 1][digit];
    }
    for (size_t i = own.begin; i < own.end; i++)
        to[place[from[i] >> 8 * number & (DIGITS - 1)]++] = from[i];
    team_wait(team);
}

static void work(void *state, struct team *team, size_t thread)
{
    struct sort *sort = state;
    const struct range own = range_part(sort->count, team->threads, thread);
    for (size_t number = 0; number < sort->sorts; number++) {
        for (size_t i = own.begin; number > 0 && i < own.end; i++)
            sort->keys[0][i] = mix64(sort->keys[0][i] + 1);
        for (int digit = 0; digit < PASSES; digit++)
            pass(sort, team, thread, digit);
    }
}

/* Proof: in order, and as many keys with the same sum as there were, each scrambled as often. */
static bool finish(void *state, uint64_t *checksum)
{
    const struct sort *sort = state;
    const uint64_t *keys = sort->keys[0];
    uint64_t sum = 0;
    for (size_t i = 0; i < sort->count; i++) {
        uint64_t key = first_key(sort, i);
        for (size_t number = 1; number < sort->sorts; number++)
            key = mix64(key + 1);
        sum += mix64(key) - mix64(keys[i]);
        if (i > 0 && keys[i - 1] > keys[i]) {
            complain("radix: key %zu is less than the one before it", i);
            return false;
        }
        *checksum += checksum_item(i, keys[i]);
    }
    if (sum == 0)
        return true;
    complain("radix: the keys are not those that were to be sorted");
    return false;
}

const struct program program_radix = {
    .name = "radix",
    .about = "radix sort: histograms, scan over threads, all-to-all permutation; barriers",
    .rule = THREADS_ANY,
    .most_threads = {1024, 1024, 1024},
    .sizes = {"2,097,152 keys of 64 bits, sorted once", "4,194,304 keys, sorted 6 times",
              "8,388,608 keys, sorted 22 times"},
    .prepare = prepare,
    .work = work,
    .finish = finish,
};
