/*
 * Drawing, segmentation and features of images. See ferret.h.
 *
 * Segmentation joins neighbours of about one colour after a blur, the simplest of the graph
 * methods (Felzenszwalb and Huttenlocher 2004).
 */
#include "ferret.h"

#include <string.h>

enum { SHAPES = 6, LIKENESS = 12, AREA_LEAST = 40 };

static int clamp(int value)
{
    return value < 0 ? 0 : value > 255 ? 255 : value;
}

/* From -limit to limit. */
static int jitter(struct random *random, int limit)
{
    return (int)random_below(random, (size_t)(2 * limit + 1)) - limit;
}

static void draw_shape(struct image *image, struct random *shapes, struct random *changes)
{
    const bool ellipse = random_below(shapes, 2) == 0;
    const int x = (int)random_below(shapes, SIDE) + jitter(changes, 1);
    const int y = (int)random_below(shapes, SIDE) + jitter(changes, 1);
    const int half_width = 5 + (int)random_below(shapes, 14);
    const int half_height = 5 + (int)random_below(shapes, 14);
    int colour[CHANNELS];
    for (int c = 0; c < CHANNELS; c++)
        colour[c] = clamp((int)random_below(shapes, 256) + jitter(changes, 6));
    for (int row = clamp(y - half_height); row < SIDE && row <= y + half_height; row++)
        for (int column = clamp(x - half_width); column < SIDE && column <= x + half_width;
             column++) {
            const int dx = (column - x) * half_height, dy = (row - y) * half_width;
            const int limit = half_width * half_height;
            const bool inside = !ellipse || dx * dx + dy * dy <= limit * limit;
            for (int c = 0; inside && c < CHANNELS; c++)
                image->pixels[row * SIDE + column][c] = (uint8_t)colour[c];
        }
}

void image_draw(struct image *image, uint64_t seed, size_t number, size_t variant)
{
    struct random shapes = random_stream(seed, number);
    struct random changes = random_stream(seed + 1, number << 32 | variant);
    int ground[CHANNELS];
    for (int c = 0; c < CHANNELS; c++)
        ground[c] = (int)random_below(&shapes, 256);
    for (size_t i = 0; i < SIDE * SIDE; i++)
        for (int c = 0; c < CHANNELS; c++)
            image->pixels[i][c] = (uint8_t)ground[c];
    for (int shape = 0; shape < SHAPES; shape++)
        draw_shape(image, &shapes, &changes);
    for (size_t i = 0; i < SIDE * SIDE; i++) {
        uint64_t noise = random_next(&changes);
        for (int c = 0; c < CHANNELS; c++, noise >>= 8)
            image->pixels[i][c] = (uint8_t)clamp(image->pixels[i][c] + (int)(noise & 7) - 3);
    }
}

/* Mean of a pixel and its eight neighbours, as far as there are any. */
static void blur(const struct image *image, struct image *blurred)
{
    for (int row = 0; row < SIDE; row++)
        for (int column = 0; column < SIDE; column++)
            for (int c = 0; c < CHANNELS; c++) {
                int sum = 0, count = 0;
                for (int y = row > 0 ? row - 1 : 0; y <= row + 1 && y < SIDE; y++)
                    for (int x = column > 0 ? column - 1 : 0; x <= column + 1 && x < SIDE; x++) {
                        sum += image->pixels[y * SIDE + x][c];
                        count++;
                    }
                blurred->pixels[row * SIDE + column][c] = (uint8_t)(sum / count);
            }
}

static size_t find(uint16_t *parent, size_t pixel)
{
    while (parent[pixel] != pixel)
        pixel = parent[pixel] = parent[parent[pixel]];
    return pixel;
}

/* Joins two pixels if they are alike; the lower number stands for both. */
static void join(const struct image *image, uint16_t *parent, size_t one, size_t other)
{
    for (int c = 0; c < CHANNELS; c++) {
        const int difference = image->pixels[one][c] - image->pixels[other][c];
        if (difference > LIKENESS || difference < -LIKENESS)
            return;
    }
    const size_t a = find(parent, one), b = find(parent, other);
    parent[a > b ? a : b] = (uint16_t)(a > b ? b : a);
}

void image_segment(const struct image *image, struct segments *segments)
{
    struct image blurred;
    uint16_t parent[SIDE * SIDE], area[SIDE * SIDE] = {0};
    blur(image, &blurred);
    for (size_t i = 0; i < SIDE * SIDE; i++)
        parent[i] = (uint16_t)i;
    for (size_t i = 0; i < SIDE * SIDE; i++) {
        if (i % SIDE > 0)
            join(&blurred, parent, i, i - 1);
        if (i >= SIDE)
            join(&blurred, parent, i, i - SIDE);
    }
    for (size_t i = 0; i < SIDE * SIDE; i++)
        area[find(parent, i)]++;
    memset(segments, 0, sizeof *segments);
    size_t roots[REGIONS_MOST];
    for (; segments->count < REGIONS_MOST; segments->count++) {
        size_t largest = 0;
        for (size_t i = 1; i < SIDE * SIDE; i++)
            if (area[i] > area[largest])
                largest = i;
        if (area[largest] < AREA_LEAST)
            break;
        area[largest] = 0;
        roots[segments->count] = largest;
    }
    for (size_t i = 0; i < SIDE * SIDE; i++) {
        const size_t root = find(parent, i);
        for (size_t region = 0; region < segments->count; region++)
            if (roots[region] == root)
                segments->region[i] = (uint8_t)(region + 1);
    }
}

struct moments {
    int area, sum[CHANNELS], squares[CHANNELS], x, y, left, right, top, bottom, outline;
};

static bool on_outline(const struct segments *segments, size_t i)
{
    const uint8_t region = segments->region[i];
    return i % SIDE == 0 || i % SIDE == SIDE - 1 || i < SIDE || i >= SIDE * (SIDE - 1) ||
           segments->region[i - 1] != region || segments->region[i + 1] != region ||
           segments->region[i - SIDE] != region || segments->region[i + SIDE] != region;
}

static void take_moments(const struct image *image, const struct segments *segments,
                         struct moments moments[REGIONS_MOST])
{
    for (size_t i = 0; i < segments->count; i++)
        moments[i] = (struct moments){.left = SIDE, .top = SIDE};
    for (size_t i = 0; i < SIDE * SIDE; i++) {
        if (!segments->region[i])
            continue;
        struct moments *of = &moments[segments->region[i] - 1];
        const int x = (int)(i % SIDE), y = (int)(i / SIDE);
        of->area++;
        for (int c = 0; c < CHANNELS; c++) {
            of->sum[c] += image->pixels[i][c];
            of->squares[c] += image->pixels[i][c] * image->pixels[i][c];
        }
        of->x += x;
        of->y += y;
        of->left = x < of->left ? x : of->left;
        of->right = x > of->right ? x : of->right;
        of->top = y < of->top ? y : of->top;
        of->bottom = y > of->bottom ? y : of->bottom;
        of->outline += on_outline(segments, i);
    }
}

void regions_extract(const struct image *image, const struct segments *segments,
                     struct regions *regions)
{
    struct moments moments[REGIONS_MOST];
    int covered = 0, rest = WEIGHTS_SUM;
    take_moments(image, segments, moments);
    memset(regions, 0, sizeof *regions);
    regions->count = segments->count;
    for (size_t i = 0; i < regions->count; i++)
        covered += moments[i].area;
    for (size_t i = 0; i < regions->count; i++) {
        const struct moments *of = &moments[i];
        const int width = of->right - of->left + 1, height = of->bottom - of->top + 1;
        int *feature = regions->feature[i];
        for (int c = 0; c < CHANNELS; c++) {
            const int mean = of->sum[c] / of->area;
            feature[c] = mean;
            feature[CHANNELS + c] = clamp(of->squares[c] / of->area - mean * mean);
        }
        feature[6] = clamp(of->area * 255 / (SIDE * SIDE));
        feature[7] = of->x * 4 / of->area;
        feature[8] = of->y * 4 / of->area;
        feature[9] = clamp(width * 4);
        feature[10] = clamp(height * 4);
        feature[11] = 255 * width / (width + height);
        feature[12] = 255 * of->area / (width * height);
        feature[13] = clamp(255 * of->outline / of->area);
        regions->weight[i] = i + 1 < regions->count ? WEIGHTS_SUM * of->area / covered : rest;
        rest -= regions->weight[i];
    }
}
