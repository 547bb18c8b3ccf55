/*
 * Images, regions and their distances: what ferret's stages are made of.
 *
 * All of it is integers.
 */
#ifndef PINLOAD_FERRET_H
#define PINLOAD_FERRET_H

#include "parallel.h"

enum {
    SIDE = 64, /* of an image, in pixels */
    CHANNELS = 3,
    REGIONS_MOST = 8,
    FEATURES = 14,
    WEIGHTS_SUM = 1000,
    RESULTS = 10,
};

struct image {
    uint8_t pixels[SIDE * SIDE][CHANNELS];
};

/* Region + 1 of each pixel, 0 for those in none, largest region first. */
struct segments {
    size_t count;
    uint8_t region[SIDE * SIDE];
};

struct regions {
    size_t count;
    int feature[REGIONS_MOST][FEATURES]; /* 0 to 255 */
    int weight[REGIONS_MOST];            /* WEIGHTS_SUM in all */
};

/* Draws image `number` of a seed; another `variant` has its shapes a little changed. */
void image_draw(struct image *image, uint64_t seed, size_t number, size_t variant);

/* Cuts an image into regions of about one colour each. */
void image_segment(const struct image *image, struct segments *segments);

/* Colours, sizes, places and outlines of the regions. */
void regions_extract(const struct image *image, const struct segments *segments,
                     struct regions *regions);

/* Earth mover's distance. */
int regions_distance(const struct regions *one, const struct regions *other);

#endif
