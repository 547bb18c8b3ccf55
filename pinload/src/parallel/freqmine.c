/*
 * freqmine: frequent itemsets by FP-growth.
 *
 * Han, Pei, Yin, "Mining frequent patterns without candidate generation" (2000), on
 * transactions as Agrawal and Srikant generate them ("Fast algorithms for mining association
 * rules", 1994). Threads count items; sort each transaction by frequency; build the
 * FP-tree, whose branches below the root are taken in turn; and take items in turn, the rarest
 * first, each with all its itemsets.
 * Unlike PARSEC's program of the name: threads instead of OpenMP, one tree per branch of the
 * root, no FP-array. Every itemset's items and support are in the checksum.
 */
#include "parallel.h"

#include <stdlib.h>

enum { ITEMS = 1000, LENGTH_MOST = 40, PATTERNS = 400, PATTERN_MOST = 10, SIZE_PROVEN = 2 };

static const struct {
    size_t transactions, support; /* at least */
} shapes[SIZES] = {{20000, 60}, {100000, 100}, {400000, 100}};

/* Items are named by rank from here on: 0 is the most frequent one. */
struct node {
    uint32_t rank, count;
    uint32_t parent, child, sibling;
    uint32_t same; /* next node of the same item */
};

/* Node 0 is the root. */
struct tree {
    struct node *nodes;
    uint32_t *heads; /* first node of each item */
    uint32_t used;
};

struct tally {
    _Alignas(CACHE_LINE) uint64_t checksum;
    uint64_t sets, sets_of[SIZE_PROVEN + 1], support_of[SIZE_PROVEN + 1];
};

struct mine {
    size_t transactions, support;
    uint16_t (*items)[LENGTH_MOST];
    uint16_t *lengths;
    uint32_t *next; /* transaction + 1 with the same first item */
    atomic_uint counts[ITEMS], first[ITEMS];
    size_t frequent;
    uint16_t rank[ITEMS], item[ITEMS]; /* ITEMS: not frequent */
    struct tree trees[ITEMS];          /* by the first item */
    atomic_size_t tickets[2];
    size_t threads;
    struct tally *tallies;
};

/* A pattern takes about half its items from the one before it. */
static void make_patterns(struct random *random, uint16_t patterns[PATTERNS][PATTERN_MOST + 1])
{
    for (size_t i = 0; i < PATTERNS; i++) {
        const size_t length = 2 + random_below(random, PATTERN_MOST - 2);
        patterns[i][0] = (uint16_t)length;
        for (size_t j = 1; j <= length; j++) {
            const bool again = i > 0 && j <= patterns[i - 1][0] && random_below(random, 2) == 0;
            const double draw = random_uniform(random); /* low numbers are more frequent */
            patterns[i][j] = again ? patterns[i - 1][j] : (uint16_t)(ITEMS * draw * draw);
        }
    }
}

static void add_item(struct mine *mine, size_t transaction, uint16_t item)
{
    const uint16_t length = mine->lengths[transaction];
    for (uint16_t i = 0; i < length; i++)
        if (mine->items[transaction][i] == item)
            return;
    if (length < LENGTH_MOST) {
        mine->items[transaction][length] = item;
        mine->lengths[transaction]++;
    }
}

static void *prepare(const struct setting *setting)
{
    struct mine *mine = memory_take(1, sizeof *mine);
    uint16_t(*patterns)[PATTERN_MOST + 1] = memory_take(PATTERNS, sizeof *patterns);
    struct random random = random_stream(setting->seed, 0);
    mine->transactions = shapes[setting->size].transactions;
    mine->support = shapes[setting->size].support;
    mine->threads = setting->threads;
    mine->items = memory_take(mine->transactions, sizeof *mine->items);
    mine->lengths = memory_take(mine->transactions, sizeof *mine->lengths);
    mine->next = memory_take(mine->transactions, sizeof *mine->next);
    mine->tallies = memory_take(setting->threads, sizeof *mine->tallies);
    make_patterns(&random, patterns);
    for (size_t i = 0; i < mine->transactions; i++) {
        const size_t length = 4 + random_below(&random, 17);
        while (mine->lengths[i] < length) {
            const double draw = random_uniform(&random);
            const uint16_t *pattern = patterns[(size_t)(PATTERNS * draw * draw)];
            for (size_t j = 1; j <= pattern[0]; j++)
                if (random_below(&random, 8) > 0) /* patterns come incomplete */
                    add_item(mine, i, pattern[j]);
            add_item(mine, i, (uint16_t)random_below(&random, ITEMS));
        }
    }
    return mine;
}

/* Ranks the frequent items; equally frequent ones by their names. */
static void rank_items(struct mine *mine)
{
    for (size_t i = 0; i < ITEMS; i++) {
        const unsigned count = atomic_load(&mine->counts[i]);
        mine->rank[i] = ITEMS;
        if (count < mine->support)
            continue;
        size_t place = mine->frequent++;
        for (; place > 0 && atomic_load(&mine->counts[mine->item[place - 1]]) < count; place--)
            mine->item[place] = mine->item[place - 1];
        mine->item[place] = (uint16_t)i;
    }
    for (size_t place = 0; place < mine->frequent; place++)
        mine->rank[mine->item[place]] = (uint16_t)place;
}

/* Keeps frequent items, as ranks in ascending order, and lists the transaction by the first. */
static void order_transaction(struct mine *mine, size_t transaction)
{
    uint16_t *items = mine->items[transaction], length = 0;
    for (uint16_t i = 0; i < mine->lengths[transaction]; i++) {
        const uint16_t rank = mine->rank[items[i]];
        uint16_t place = length;
        if (rank == ITEMS)
            continue;
        for (; place > 0 && items[place - 1] > rank; place--)
            items[place] = items[place - 1];
        items[place] = rank;
        length++;
    }
    mine->lengths[transaction] = length;
    if (length > 0)
        mine->next[transaction] = atomic_exchange(&mine->first[items[0]],
                                                  (unsigned)transaction + 1);
}

static struct tree tree_take(size_t nodes, size_t ranks)
{
    struct tree tree = {calloc(nodes + 1, sizeof *tree.nodes), calloc(ranks + 1, sizeof(uint32_t)),
                        1};
    if (!tree.nodes || !tree.heads) {
        complain("freqmine: no memory for a tree of %zu nodes", nodes);
        _Exit(PINLOAD_FAILED);
    }
    return tree;
}

static void tree_release(struct tree *tree)
{
    free(tree->nodes);
    free(tree->heads);
}

/* Adds a path of ascending ranks. */
static void tree_insert(struct tree *tree, const uint16_t *path, size_t length, uint32_t count)
{
    uint32_t parent = 0;
    for (size_t i = 0; i < length; i++) {
        uint32_t child = tree->nodes[parent].child;
        while (child && tree->nodes[child].rank != path[i])
            child = tree->nodes[child].sibling;
        if (!child) {
            child = tree->used++;
            tree->nodes[child] = (struct node){path[i], 0, parent, 0, tree->nodes[parent].child,
                                               tree->heads[path[i]]};
            tree->nodes[parent].child = child;
            tree->heads[path[i]] = child;
        }
        tree->nodes[child].count += count;
        parent = child;
    }
}

static void build(struct mine *mine, size_t first)
{
    size_t nodes = 0;
    for (uint32_t i = atomic_load(&mine->first[first]); i; i = mine->next[i - 1])
        nodes += mine->lengths[i - 1];
    mine->trees[first] = tree_take(nodes, mine->frequent);
    for (uint32_t i = atomic_load(&mine->first[first]); i; i = mine->next[i - 1])
        tree_insert(&mine->trees[first], mine->items[i - 1], mine->lengths[i - 1], 1);
}

/* An itemset's name does not depend on the order of its items: the sum of their hashes. */
static void tell(struct tally *tally, uint64_t name, size_t size, uint32_t support)
{
    tally->checksum += checksum_item(name, support);
    tally->sets++;
    if (size <= SIZE_PROVEN) {
        tally->sets_of[size]++;
        tally->support_of[size] += support;
    }
}

/* Adds to counts[] the supports of all items on the way up from the nodes of `rank`. */
static size_t count_paths(const struct tree *tree, uint32_t rank, uint32_t *counts)
{
    size_t length = 0;
    for (uint32_t node = tree->heads[rank]; node; node = tree->nodes[node].same)
        for (uint32_t up = tree->nodes[node].parent; up; up = tree->nodes[up].parent) {
            counts[tree->nodes[up].rank] += tree->nodes[node].count;
            length++;
        }
    return length;
}

/* Inserts those paths, without rare items, into the tree that is conditional on `rank`. */
static void insert_paths(const struct tree *tree, uint32_t rank, const uint32_t *counts,
                         size_t support, struct tree *conditional)
{
    for (uint32_t node = tree->heads[rank]; node; node = tree->nodes[node].same) {
        uint16_t path[LENGTH_MOST];
        size_t start = LENGTH_MOST; /* from the end: the way up is in descending order */
        for (uint32_t up = tree->nodes[node].parent; up; up = tree->nodes[up].parent)
            if (counts[tree->nodes[up].rank] >= support)
                path[--start] = (uint16_t)tree->nodes[up].rank;
        tree_insert(conditional, path + start, LENGTH_MOST - start, tree->nodes[node].count);
    }
}

/* All itemsets that end in `rank`, in one tree or in all those of the first step. */
static void grow(const struct mine *mine, struct tally *tally, const struct tree *trees,
                 size_t tree_count, uint32_t rank, uint64_t name, size_t size)
{
    uint32_t *counts = calloc(rank + 1, sizeof *counts);
    size_t nodes = 0;
    if (!counts) {
        complain("freqmine: out of memory");
        _Exit(PINLOAD_FAILED);
    }
    for (size_t i = 0; i < tree_count; i++)
        nodes += count_paths(&trees[i], rank, counts);
    if (nodes > 0) {
        struct tree conditional = tree_take(nodes, rank);
        for (size_t i = 0; i < tree_count; i++)
            insert_paths(&trees[i], rank, counts, mine->support, &conditional);
        for (uint32_t other = rank; other-- > 0;) {
            if (counts[other] < mine->support)
                continue;
            const uint64_t longer = name + mix64(mine->item[other] + 1);
            tell(tally, longer, size + 1, counts[other]);
            grow(mine, tally, &conditional, 1, other, longer, size + 1);
        }
        tree_release(&conditional);
    }
    free(counts);
}

static void count_items(struct mine *mine, struct range own)
{
    uint32_t counts[ITEMS] = {0};
    for (size_t i = own.begin; i < own.end; i++)
        for (uint16_t j = 0; j < mine->lengths[i]; j++)
            counts[mine->items[i][j]]++;
    for (size_t i = 0; i < ITEMS; i++)
        atomic_fetch_add(&mine->counts[i], counts[i]);
}

static void work(void *state, struct team *team, size_t thread)
{
    struct mine *mine = state;
    struct tally *tally = &mine->tallies[thread];
    const struct range own = range_part(mine->transactions, team->threads, thread);
    size_t rank;
    count_items(mine, own);
    team_wait(team);
    if (thread == 0)
        rank_items(mine);
    team_wait(team);
    for (size_t i = own.begin; i < own.end; i++)
        order_transaction(mine, i);
    team_wait(team);
    while ((rank = ticket_take(&mine->tickets[0])) < mine->frequent)
        build(mine, rank);
    team_wait(team);
    while ((rank = ticket_take(&mine->tickets[1])) < mine->frequent) {
        rank = mine->frequent - 1 - rank;
        const uint16_t item = mine->item[rank];
        tell(tally, mix64(item + 1), 1, atomic_load(&mine->counts[item]));
        grow(mine, tally, mine->trees, rank + 1, (uint32_t)rank, mix64(item + 1), 1);
    }
}

/* Proof: number and supports of all frequent pairs, counted one by one. */
static bool finish(void *state, uint64_t *checksum)
{
    struct mine *mine = state;
    uint32_t *pairs = memory_take(ITEMS * ITEMS, sizeof *pairs);
    uint64_t sets = 0, support = 0, found_sets = 0, found_support = 0, all = 0;
    for (size_t i = 0; i < mine->transactions; i++)
        for (uint16_t j = 0; j < mine->lengths[i]; j++)
            for (uint16_t k = 0; k < j; k++)
                pairs[mine->items[i][j] * ITEMS + mine->items[i][k]]++;
    for (size_t i = 0; i < ITEMS * ITEMS; i++)
        if (pairs[i] >= mine->support) {
            sets++;
            support += pairs[i];
        }
    for (size_t i = 0; i < mine->threads; i++) {
        const struct tally *tally = &mine->tallies[i];
        *checksum += tally->checksum;
        all += tally->sets;
        found_sets += tally->sets_of[2];
        found_support += tally->support_of[2];
    }
    *checksum += checksum_item(0, all);
    for (size_t i = 0; i < mine->frequent; i++)
        tree_release(&mine->trees[i]);
    if (sets == found_sets && support == found_support && sets > 0)
        return true;
    complain("freqmine: %llu pairs instead of %llu", (unsigned long long)found_sets,
             (unsigned long long)sets);
    return false;
}

const struct program program_freqmine = {
    .name = "freqmine",
    .about = "frequent itemsets by FP-growth: shared counts, trees and items taken in turn",
    .rule = THREADS_ANY,
    .most_threads = {1024, 1024, 1024},
    .sizes = {"20,000 transactions, support 60", "100,000 transactions, support 100",
              "400,000 transactions, support 100"},
    .prepare = prepare,
    .work = work,
    .finish = finish,
};
