/*
 * ferret: similarity search in images, as a pipeline.
 *
 * After the stages of Lv et al., "Ferret: a toolkit for content-based similarity search of
 * feature-rich data" (2006): an image is loaded (drawn), segmented, its regions' features
 * extracted, candidates found by locality-sensitive hashing with several probes (Lv et al.
 * 2007), ranked by earth mover's distance (Rubner et al. 2000), and put out. Each stage has
 * threads of its own, which wait at bounded queues; the first and the last stage have one.
 * Unlike PARSEC's program of the name, the number of threads is that of all stages together: with
 * fewer than six, stages next to each other share a thread; beyond that the inner ones get
 * shares by their costs. Images are drawn, and are 64 x 64.
 */
#include "ferret.h"

#include <stdlib.h>
#include <string.h>

enum { LOAD, SEGMENT, EXTRACT, INDEX, RANK, OUT, STAGES };
enum { TABLES = 6, HASHES = 5, BUCKETS = 4096, BUCKET_WIDTH = 128, CANDIDATES = 48, CAPACITY = 32 };
enum { IMAGES_MOST = 2048 };

static const struct {
    size_t images, queries;
} shapes[SIZES] = {{200, 100}, {1000, 1000}, {2000, 11000}};

/* Of 32 threads in the inner stages, by their costs. */
static const size_t shares[STAGES] = {0, 6, 2, 4, 20, 0};

struct item {
    size_t query;
    struct image image;
    struct segments segments;
    struct regions regions;
    size_t candidate_count;
    uint32_t candidates[CANDIDATES];
};

/* Items on their way from one group of stages to the next. */
struct queue {
    _Alignas(CACHE_LINE) pthread_mutex_t lock;
    pthread_cond_t filled, emptied;
    struct item *items[CAPACITY];
    size_t first, count;
    size_t producers; /* still at work */
};

/* Threads that do the stages from first to last with each item. */
struct group {
    int first, last;
    size_t threads;
    struct queue input;
};

struct entry {
    uint32_t image, next; /* entry + 1 in the same bucket */
};

struct table {
    int direction[HASHES][FEATURES], offset[HASHES];
    uint32_t buckets[BUCKETS];
    struct entry *entries;
    size_t count;
};

struct ferret {
    uint64_t seed;
    size_t images, queries;
    struct regions *database;
    struct table tables[TABLES];
    struct group groups[STAGES];
    size_t group_count;
    atomic_size_t ticket;
    uint32_t (*results)[RESULTS]; /* image + 1 */
};

static size_t image_of_query(const struct ferret *ferret, size_t query)
{
    return (size_t)(mix64(ferret->seed + mix64(query)) % ferret->images);
}

/* Where a region falls among each hash's slots. */
static void hash_region(const struct table *table, const int *feature, int slots[HASHES])
{
    for (int h = 0; h < HASHES; h++) {
        int sum = table->offset[h] + (1 << 20); /* above zero */
        for (int f = 0; f < FEATURES; f++)
            sum += table->direction[h][f] * feature[f] / 16;
        slots[h] = sum / BUCKET_WIDTH;
    }
}

static size_t bucket_of(const int slots[HASHES])
{
    uint64_t hash = 0;
    for (int h = 0; h < HASHES; h++)
        hash = mix64(hash + (uint64_t)slots[h]);
    return hash % BUCKETS;
}

static void make_tables(struct ferret *ferret, struct random *random)
{
    for (int t = 0; t < TABLES; t++) {
        struct table *table = &ferret->tables[t];
        table->entries = memory_take(ferret->images * REGIONS_MOST, sizeof *table->entries);
        for (int h = 0; h < HASHES; h++) {
            table->offset[h] = (int)random_below(random, BUCKET_WIDTH);
            for (int f = 0; f < FEATURES; f++) /* sixteenths of a standard normal number */
                table->direction[h][f] = (int)(16 * random_normal(random));
        }
        for (size_t image = 0; image < ferret->images; image++)
            for (size_t r = 0; r < ferret->database[image].count; r++) {
                int slots[HASHES];
                hash_region(table, ferret->database[image].feature[r], slots);
                uint32_t *bucket = &table->buckets[bucket_of(slots)];
                table->entries[table->count] = (struct entry){(uint32_t)image, *bucket};
                *bucket = (uint32_t)++table->count;
            }
    }
}

/* Stages in groups, threads for each group: one for each stage from six threads on. */
static void form_groups(struct ferret *ferret, size_t threads)
{
    static const int ends[STAGES][STAGES] = {
        {OUT}, {INDEX, OUT}, {INDEX, OUT}, {INDEX, OUT}, {EXTRACT, INDEX, OUT},
        {LOAD, SEGMENT, EXTRACT, INDEX, RANK, OUT},
    };
    const int *end = ends[threads < STAGES ? threads - 1 : STAGES - 1];
    size_t spare = threads;
    int first = 0;
    for (; first < STAGES; ferret->group_count++, spare--) {
        struct group *group = &ferret->groups[ferret->group_count];
        group->first = first;
        group->last = end[ferret->group_count];
        group->threads = 1;
        first = group->last + 1;
    }
    size_t most = 0, all = spare;
    for (size_t i = 0; i < ferret->group_count; i++) { /* rounded down; ranking gets the rest */
        struct group *group = &ferret->groups[i];
        if (group->first <= RANK && group->last >= RANK)
            most = i;
        const size_t more = threads < STAGES ? 0 : all * shares[group->first] / 32;
        group->threads += more;
        spare -= more;
    }
    ferret->groups[most].threads += spare;
    for (size_t i = 0; i < ferret->group_count; i++) {
        struct queue *queue = &ferret->groups[i].input;
        pthread_mutex_init(&queue->lock, NULL);
        pthread_cond_init(&queue->filled, NULL);
        pthread_cond_init(&queue->emptied, NULL);
        queue->producers = i > 0 ? ferret->groups[i - 1].threads : 0;
    }
}

static void *prepare(const struct setting *setting)
{
    struct ferret *ferret = memory_take(1, sizeof *ferret);
    struct random random = random_stream(setting->seed, ~0ULL);
    struct item *item = memory_take(1, sizeof *item);
    ferret->seed = setting->seed;
    ferret->images = shapes[setting->size].images;
    ferret->queries = shapes[setting->size].queries;
    ferret->database = memory_take(ferret->images, sizeof *ferret->database);
    ferret->results = memory_take(ferret->queries, sizeof *ferret->results);
    for (size_t i = 0; i < ferret->images; i++) {
        image_draw(&item->image, ferret->seed, i, 0);
        image_segment(&item->image, &item->segments);
        regions_extract(&item->image, &item->segments, &ferret->database[i]);
    }
    make_tables(ferret, &random);
    form_groups(ferret, setting->threads);
    return ferret;
}

static void push(struct queue *queue, struct item *item)
{
    pthread_mutex_lock(&queue->lock);
    while (queue->count == CAPACITY)
        pthread_cond_wait(&queue->emptied, &queue->lock);
    queue->items[(queue->first + queue->count++) % CAPACITY] = item;
    pthread_cond_signal(&queue->filled);
    pthread_mutex_unlock(&queue->lock);
}

/* The next item, or NULL when there will be none. */
static struct item *pop(struct queue *queue)
{
    struct item *item = NULL;
    pthread_mutex_lock(&queue->lock);
    while (queue->count == 0 && queue->producers > 0)
        pthread_cond_wait(&queue->filled, &queue->lock);
    if (queue->count > 0) {
        item = queue->items[queue->first];
        queue->first = (queue->first + 1) % CAPACITY;
        queue->count--;
        pthread_cond_signal(&queue->emptied);
    }
    pthread_mutex_unlock(&queue->lock);
    return item;
}

/* One producer has no more. */
static void leave(struct queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    if (--queue->producers == 0)
        pthread_cond_broadcast(&queue->filled);
    pthread_mutex_unlock(&queue->lock);
}

static struct item *load(struct ferret *ferret)
{
    const size_t query = ticket_take(&ferret->ticket);
    if (query >= ferret->queries)
        return NULL;
    struct item *item = malloc(sizeof *item);
    if (!item) {
        complain("ferret: out of memory");
        _Exit(PINLOAD_FAILED);
    }
    item->query = query;
    image_draw(&item->image, ferret->seed, image_of_query(ferret, query), 1 + query);
    return item;
}

static void count_bucket(const struct table *table, const int slots[HASHES], uint16_t *hits)
{
    for (uint32_t entry = table->buckets[bucket_of(slots)]; entry;
         entry = table->entries[entry - 1].next)
        hits[table->entries[entry - 1].image]++;
}

/* Images that share buckets with the query's regions, or nearly: those with the most hits. */
static void find_candidates(const struct ferret *ferret, struct item *item)
{
    uint16_t hits[IMAGES_MOST] = {0};
    for (int t = 0; t < TABLES; t++)
        for (size_t r = 0; r < item->regions.count; r++) {
            int slots[HASHES];
            hash_region(&ferret->tables[t], item->regions.feature[r], slots);
            count_bucket(&ferret->tables[t], slots, hits);
            for (int h = 0; h < HASHES; h++) {
                for (int side = -1; side <= 1; side += 2) {
                    slots[h] += side;
                    count_bucket(&ferret->tables[t], slots, hits);
                    slots[h] -= side;
                }
            }
        }
    item->candidate_count = 0;
    for (size_t image = 0; image < ferret->images; image++) { /* by hits, then by number */
        size_t place = item->candidate_count;
        if (hits[image] == 0 ||
            (place == CANDIDATES && hits[item->candidates[place - 1]] >= hits[image]))
            continue;
        if (place < CANDIDATES)
            item->candidate_count++;
        else
            place--;
        for (; place > 0 && hits[item->candidates[place - 1]] < hits[image]; place--)
            item->candidates[place] = item->candidates[place - 1];
        item->candidates[place] = (uint32_t)image;
    }
}

static void rank(const struct ferret *ferret, struct item *item)
{
    int distances[RESULTS];
    size_t count = 0;
    uint32_t *results = ferret->results[item->query];
    for (size_t i = 0; i < item->candidate_count; i++) {
        const uint32_t image = item->candidates[i];
        const int distance = regions_distance(&item->regions, &ferret->database[image]);
        size_t place = count;
        if (place == RESULTS && distances[place - 1] <= distance)
            continue;
        if (place < RESULTS)
            count++;
        else
            place--;
        for (; place > 0 && distances[place - 1] > distance; place--) {
            distances[place] = distances[place - 1];
            results[place] = results[place - 1];
        }
        distances[place] = distance;
        results[place] = image + 1;
    }
}

static void do_stage(const struct ferret *ferret, int stage, struct item *item)
{
    switch (stage) {
    case SEGMENT:
        image_segment(&item->image, &item->segments);
        break;
    case EXTRACT:
        regions_extract(&item->image, &item->segments, &item->regions);
        break;
    case INDEX:
        find_candidates(ferret, item);
        break;
    case RANK:
        rank(ferret, item);
        break;
    case OUT:
        free(item);
        break;
    default: /* LOAD: done when it came into being */
        break;
    }
}

static void work(void *state, struct team *team, size_t thread)
{
    struct ferret *ferret = state;
    struct group *group = ferret->groups;
    struct item *item;
    (void)team;
    for (; thread >= group->threads; group++)
        thread -= group->threads;
    while ((item = group->first == LOAD ? load(ferret) : pop(&group->input)) != NULL) {
        for (int stage = group->first; stage <= group->last; stage++)
            do_stage(ferret, stage, item);
        if (group->last != OUT)
            push(&group[1].input, item);
    }
    if (group->last != OUT)
        leave(&group[1].input);
}

/* Proof: three of four queries find the image that they were drawn after. */
static bool finish(void *state, uint64_t *checksum)
{
    struct ferret *ferret = state;
    size_t found = 0;
    for (size_t query = 0; query < ferret->queries; query++) {
        found += ferret->results[query][0] == image_of_query(ferret, query) + 1;
        for (size_t i = 0; i < RESULTS; i++)
            *checksum += checksum_item(query * RESULTS + i, ferret->results[query][i]);
    }
    for (size_t i = 0; i < ferret->group_count; i++) {
        pthread_mutex_destroy(&ferret->groups[i].input.lock);
        pthread_cond_destroy(&ferret->groups[i].input.filled);
        pthread_cond_destroy(&ferret->groups[i].input.emptied);
    }
    if (found * 4 >= ferret->queries * 3)
        return true;
    complain("ferret: %zu of %zu queries found their image", found, ferret->queries);
    return false;
}

const struct program program_ferret = {
    .name = "ferret",
    .about = "similarity search: a pipeline of six stages with bounded queues",
    .rule = THREADS_ANY,
    .most_threads = {1024, 1024, 1024},
    .sizes = {"100 queries in 200 images", "1,000 queries in 1,000 images",
              "11,000 queries in 2,000 images"},
    .prepare = prepare,
    .work = work,
    .finish = finish,
};
