/*
 * The earth mover's distance of two images' regions. See ferret.h.
 *
 * A transport problem, solved by shortest augmenting paths (Bellman-Ford): weights are supply
 * and demand, the cost of a unit is the sum of the features' differences.
 */
#include "ferret.h"

enum { FAR = 1 << 30 };

struct transport {
    size_t rows, columns;
    int cost[REGIONS_MOST][REGIONS_MOST], flow[REGIONS_MOST][REGIONS_MOST];
    int supply[REGIONS_MOST], demand[REGIONS_MOST]; /* what is left */
    /* Of the search: lengths of paths from any row with supply, and where they come from. */
    int to_row[REGIONS_MOST], to_column[REGIONS_MOST];
    size_t row_from[REGIONS_MOST], column_from[REGIONS_MOST];
};

static void set_costs(struct transport *transport, const struct regions *one,
                      const struct regions *other)
{
    for (size_t i = 0; i < one->count; i++)
        for (size_t j = 0; j < other->count; j++)
            for (int f = 0; f < FEATURES; f++) {
                const int difference = one->feature[i][f] - other->feature[j][f];
                transport->cost[i][j] += difference < 0 ? -difference : difference;
            }
}

/* Lengths of the shortest paths; those back from a column need flow there. */
static void search(struct transport *transport)
{
    bool changed = true;
    for (size_t i = 0; i < transport->rows; i++)
        transport->to_row[i] = transport->supply[i] > 0 ? 0 : FAR;
    for (size_t j = 0; j < transport->columns; j++)
        transport->to_column[j] = FAR;
    while (changed) {
        changed = false;
        for (size_t i = 0; i < transport->rows; i++)
            for (size_t j = 0; j < transport->columns; j++) {
                const int cost = transport->cost[i][j];
                if (transport->to_row[i] + cost < transport->to_column[j]) {
                    transport->to_column[j] = transport->to_row[i] + cost;
                    transport->column_from[j] = i;
                    changed = true;
                }
                if (transport->flow[i][j] > 0 && transport->to_column[j] < FAR &&
                    transport->to_column[j] - cost < transport->to_row[i]) {
                    transport->to_row[i] = transport->to_column[j] - cost;
                    transport->row_from[i] = j;
                    changed = true;
                }
            }
    }
}

/* Sends as much as can go along the path to a column. */
static int augment(struct transport *transport, size_t column)
{
    int amount = transport->demand[column];
    size_t j = column, i = transport->column_from[j];
    while (transport->supply[i] == 0) {
        j = transport->row_from[i];
        if (transport->flow[i][j] < amount)
            amount = transport->flow[i][j];
        i = transport->column_from[j];
    }
    if (transport->supply[i] < amount)
        amount = transport->supply[i];
    transport->supply[i] -= amount;
    transport->demand[column] -= amount;
    const size_t start = i;
    for (j = column, i = transport->column_from[j];; i = transport->column_from[j]) {
        transport->flow[i][j] += amount;
        if (i == start)
            break;
        j = transport->row_from[i];
        transport->flow[i][j] -= amount;
    }
    return amount;
}

int regions_distance(const struct regions *one, const struct regions *other)
{
    struct transport transport = {.rows = one->count, .columns = other->count};
    int sum = 0;
    if (one->count == 0 || other->count == 0)
        return FAR;
    set_costs(&transport, one, other);
    for (size_t i = 0; i < one->count; i++)
        transport.supply[i] = one->weight[i];
    for (size_t j = 0; j < other->count; j++)
        transport.demand[j] = other->weight[j];
    for (int left = WEIGHTS_SUM; left > 0;) {
        size_t best = 0;
        int least = FAR;
        search(&transport);
        for (size_t j = 0; j < other->count; j++)
            if (transport.demand[j] > 0 && transport.to_column[j] < least) {
                least = transport.to_column[j];
                best = j;
            }
        const int amount = augment(&transport, best);
        sum += amount * least;
        left -= amount;
    }
    return sum;
}
