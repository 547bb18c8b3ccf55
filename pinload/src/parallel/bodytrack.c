/*
 * bodytrack: a walking figure is followed through the images of four cameras.
 *
 * Deutscher and Reid, "Articulated body motion capture by stochastic search" (2005): an annealed
 * particle filter over 18 angles and coordinates. For each frame threads make edge and
 * silhouette maps, some rows each; then, layer by layer, they take particles in turn, move
 * them at random and weigh them against the maps, and one thread draws the next layer's
 * particles.
 * Unlike PARSEC's program of the name: the images are drawn here, limbs are stripes in the
 * image rather than cones, weights use one fixed annealing schedule, integer maps.
 */
#include "parallel.h"

#include <math.h>

enum {
    CAMERAS = 4,
    WIDTH = 160,
    HEIGHT = 120,
    PIXELS = WIDTH * HEIGHT,
    LAYERS = 5,
    LIMBS = 10,
    POINTS = 6, /* looked at along a limb */
};

/* What a pose is made of. Angles in radians; shoulders and hips have two. */
enum {
    X, Y, Z, HEADING, LEAN, NOD,
    LEFT_SHOULDER, LEFT_ELBOW = LEFT_SHOULDER + 2, RIGHT_SHOULDER, RIGHT_ELBOW = RIGHT_SHOULDER + 2,
    LEFT_HIP, LEFT_KNEE = LEFT_HIP + 2, RIGHT_HIP, RIGHT_KNEE = RIGHT_HIP + 2, FREEDOMS,
};

static const struct {
    size_t frames, particles;
} shapes[SIZES] = {{8, 320}, {36, 1000}, {90, 4000}};

struct pose {
    double of[FREEDOMS];
};

struct limb {
    double from[3], to[3], radius;
};

struct particle {
    struct pose pose;
    double error;
    uint32_t ancestor; /* whose moved copy the next layer's particle of this index is */
};

struct maps {
    uint8_t silhouette[PIXELS], edge[PIXELS];
};

struct tracker {
    uint64_t seed;
    size_t frames, count;
    uint8_t (*images)[CAMERAS][PIXELS];
    struct maps *raw, *rows, *maps; /* of each camera: marked, blurred along rows, blurred */
    struct particle *particles[2];
    struct pose *found;
    atomic_size_t ticket;
};

/* The angle of the walk at a frame. */
static struct pose true_pose(size_t frame)
{
    const double time = 0.12 * (double)frame;
    double swing, counter;
    struct pose pose = {{0}};
    portable_sincos(2.5 * time, &swing, &counter);
    pose.of[X] = -0.4 + 0.25 * time;
    pose.of[Y] = 0.95 + 0.02 * counter;
    pose.of[Z] = 0.1 * swing;
    pose.of[HEADING] = 0.6 + 0.2 * time;
    pose.of[LEAN] = 0.08;
    pose.of[NOD] = 0.1 * counter;
    for (int side = 0; side < 2; side++) {
        const double sign = side ? -1 : 1;
        const int arm = side ? RIGHT_SHOULDER : LEFT_SHOULDER, leg = side ? RIGHT_HIP : LEFT_HIP;
        pose.of[arm] = -0.6 * sign * swing;
        pose.of[arm + 1] = sign * 0.35;
        pose.of[arm + 2] = 0.5 + 0.2 * sign * counter;
        pose.of[leg] = 0.5 * sign * swing;
        pose.of[leg + 1] = sign * 0.08;
        pose.of[leg + 2] = 0.35 + 0.3 * sign * counter;
    }
    return pose;
}

/* From `from`, `length` along a direction that hangs down at zero pitch and roll. */
static struct limb hang(const double from[3], double pitch, double roll, const double heading[2],
                        double length, double radius)
{
    double pitch_sine, pitch_cosine, roll_sine, roll_cosine;
    portable_sincos(pitch, &pitch_sine, &pitch_cosine);
    portable_sincos(roll, &roll_sine, &roll_cosine);
    const double side = roll_sine, ahead = pitch_sine * roll_cosine;
    struct limb limb = {{from[0], from[1], from[2]}, {0}, radius};
    limb.to[0] = from[0] + length * (side * heading[1] + ahead * heading[0]);
    limb.to[1] = from[1] - length * pitch_cosine * roll_cosine;
    limb.to[2] = from[2] + length * (ahead * heading[1] - side * heading[0]);
    return limb;
}

static void place_limbs(const struct pose *pose, struct limb limbs[LIMBS])
{
    const double *of = pose->of, root[3] = {of[X], of[Y], of[Z]};
    double heading[2];
    portable_sincos(of[HEADING], &heading[0], &heading[1]);
    limbs[0] = hang(root, of[LEAN], 0, heading, -0.5, 0.14);
    limbs[1] = hang(limbs[0].to, of[LEAN] + of[NOD], 0, heading, -0.28, 0.10);
    for (int side = 0; side < 2; side++) {
        const double sign = side ? -1 : 1;
        const int arm = side ? RIGHT_SHOULDER : LEFT_SHOULDER, leg = side ? RIGHT_HIP : LEFT_HIP;
        double shoulder[3], hip[3];
        for (int k = 0; k < 3; k++) {
            const double across = k == 0 ? heading[1] : k == 2 ? -heading[0] : 0;
            shoulder[k] = limbs[0].to[k] + sign * 0.2 * across;
            hip[k] = root[k] + sign * 0.1 * across;
        }
        struct limb *limb = &limbs[2 + 4 * side];
        limb[0] = hang(shoulder, of[arm], of[arm + 1], heading, 0.3, 0.055);
        limb[1] = hang(limb[0].to, of[arm] + of[arm + 2], of[arm + 1], heading, 0.3, 0.045);
        limb[2] = hang(hip, of[leg], of[leg + 1], heading, 0.45, 0.08);
        limb[3] = hang(limb[2].to, of[leg] - of[leg + 2], of[leg + 1], heading, 0.45, 0.06);
    }
}

/* Column, row and pixels per metre of a point in the image of a camera 4 m away. */
static void project(size_t camera, const double at[3], double seen[3])
{
    static const double r = 0.7071067811865476;
    static const double sines[CAMERAS] = {r, r, -r, -r}, cosines[CAMERAS] = {r, -r, -r, r};
    const double depth = 4 + at[0] * sines[camera] + at[2] * cosines[camera];
    seen[2] = 200 / depth;
    seen[0] = WIDTH / 2.0 + seen[2] * (at[0] * cosines[camera] - at[2] * sines[camera]);
    seen[1] = HEIGHT / 2.0 - seen[2] * (at[1] - 1);
}

static void draw_limb(uint8_t image[PIXELS], size_t camera, const struct limb *limb)
{
    double from[3], to[3];
    project(camera, limb->from, from);
    project(camera, limb->to, to);
    const double radius = limb->radius * 0.5 * (from[2] + to[2]);
    const double along[2] = {to[0] - from[0], to[1] - from[1]};
    const double length = along[0] * along[0] + along[1] * along[1] + 1e-9;
    for (size_t row = 0; row < HEIGHT; row++)
        for (size_t column = 0; column < WIDTH; column++) {
            const double x = (double)column - from[0], y = (double)row - from[1];
            double share = (x * along[0] + y * along[1]) / length;
            share = share < 0 ? 0 : share > 1 ? 1 : share;
            const double dx = x - share * along[0], dy = y - share * along[1];
            if (dx * dx + dy * dy < radius * radius)
                image[row * WIDTH + column] = 170;
        }
}

static void *prepare(const struct setting *setting)
{
    struct tracker *tracker = memory_take(1, sizeof *tracker);
    tracker->seed = setting->seed;
    tracker->frames = shapes[setting->size].frames;
    tracker->count = shapes[setting->size].particles;
    tracker->images = memory_take(tracker->frames, sizeof *tracker->images);
    tracker->raw = memory_take(CAMERAS, sizeof *tracker->raw);
    tracker->rows = memory_take(CAMERAS, sizeof *tracker->rows);
    tracker->maps = memory_take(CAMERAS, sizeof *tracker->maps);
    tracker->found = memory_take(tracker->frames, sizeof *tracker->found);
    for (int i = 0; i < 2; i++)
        tracker->particles[i] = memory_take(tracker->count, sizeof *tracker->particles[i]);
    for (size_t i = 0; i < tracker->count; i++)
        tracker->particles[0][i].pose = true_pose(0);
    for (size_t frame = 0; frame < tracker->frames; frame++) {
        struct random random = random_stream(setting->seed, frame);
        const struct pose pose = true_pose(frame);
        struct limb limbs[LIMBS];
        place_limbs(&pose, limbs);
        for (size_t camera = 0; camera < CAMERAS; camera++) {
            uint8_t *image = tracker->images[frame][camera];
            for (int limb = 0; limb < LIMBS; limb++)
                draw_limb(image, camera, &limbs[limb]);
            for (size_t i = 0; i < PIXELS; i++)
                image[i] = (uint8_t)(image[i] + 40 + random_below(&random, 30));
        }
    }
    return tracker;
}

/* What is bright, and where brightness changes, in a row of an image. */
static void mark_row(const uint8_t *image, struct maps *maps, size_t row)
{
    for (size_t column = 0; column < WIDTH; column++) {
        const size_t i = row * WIDTH + column;
        const size_t up = row > 0 ? i - WIDTH : i, down = row + 1 < HEIGHT ? i + WIDTH : i;
        const size_t left = column > 0 ? i - 1 : i, right = column + 1 < WIDTH ? i + 1 : i;
        const int across = image[right] - image[left], along = image[down] - image[up];
        maps->silhouette[i] = image[i] > 120 ? 255 : 0;
        maps->edge[i] = across * across + along * along > 80 * 80 ? 255 : 0;
    }
}

/* One row, blurred by 1 4 6 4 1 with neighbours `stride` away. */
static void blur_row(const uint8_t *from, uint8_t *to, size_t row, bool vertical)
{
    static const int weights[5] = {1, 4, 6, 4, 1};
    for (int column = 0; column < WIDTH; column++) {
        int sum = 0;
        for (int k = -2; k <= 2; k++) {
            const int x = column + (vertical ? 0 : k), y = (int)row + (vertical ? k : 0);
            if (x >= 0 && x < WIDTH && y >= 0 && y < HEIGHT)
                sum += weights[k + 2] * from[y * WIDTH + x];
        }
        to[row * WIDTH + (size_t)column] = (uint8_t)(sum / 16);
    }
}

static void make_maps(struct tracker *tracker, struct team *team, size_t thread, size_t frame)
{
    const struct range own = range_part(CAMERAS * HEIGHT, team->threads, thread);
    for (size_t i = own.begin; i < own.end; i++)
        mark_row(tracker->images[frame][i / HEIGHT], &tracker->raw[i / HEIGHT], i % HEIGHT);
    team_wait(team);
    for (size_t i = own.begin; i < own.end; i++) {
        const struct maps *from = &tracker->raw[i / HEIGHT];
        struct maps *to = &tracker->rows[i / HEIGHT];
        blur_row(from->silhouette, to->silhouette, i % HEIGHT, false);
        blur_row(from->edge, to->edge, i % HEIGHT, false);
    }
    team_wait(team);
    for (size_t i = own.begin; i < own.end; i++) {
        const struct maps *from = &tracker->rows[i / HEIGHT];
        struct maps *to = &tracker->maps[i / HEIGHT];
        blur_row(from->silhouette, to->silhouette, i % HEIGHT, true);
        blur_row(from->edge, to->edge, i % HEIGHT, true);
    }
    team_wait(team);
}

/* How much a map lacks at a point: 0 to 1, squared. */
static double lack(const uint8_t *map, double x, double y)
{
    if (!(x >= 0 && x < WIDTH && y >= 0 && y < HEIGHT))
        return 1;
    const double missing = (255 - map[(size_t)y * WIDTH + (size_t)x]) / 255.0;
    return missing * missing;
}

/* The limb's middle is to lie in the silhouette, its sides on edges. */
static double limb_error(const struct maps *maps, size_t camera, const struct limb *limb)
{
    double from[3], to[3], error = 0;
    project(camera, limb->from, from);
    project(camera, limb->to, to);
    const double x = to[0] - from[0], y = to[1] - from[1];
    const double scale = limb->radius * 0.5 * (from[2] + to[2]) / sqrt(x * x + y * y + 1e-9);
    for (int point = 0; point < POINTS; point++) {
        const double share = (point + 0.5) / POINTS;
        const double column = from[0] + share * x, row = from[1] + share * y;
        error += 2 * lack(maps->silhouette, column, row);
        error += lack(maps->edge, column - scale * y, row + scale * x);
        error += lack(maps->edge, column + scale * y, row - scale * x);
    }
    return error / (4 * POINTS);
}

static double pose_error(const struct tracker *tracker, const struct pose *pose)
{
    struct limb limbs[LIMBS];
    double error = 0;
    place_limbs(pose, limbs);
    for (size_t camera = 0; camera < CAMERAS; camera++)
        for (int limb = 0; limb < LIMBS; limb++)
            error += limb_error(&tracker->maps[camera], camera, &limbs[limb]);
    return error / (CAMERAS * LIMBS);
}

/*
 * A particle of a layer: its ancestor's pose, moved less in each layer, and weighed. Each freedom
 * is moved by what it may change by from frame to frame, as the paper has it.
 */
static void move_particle(struct tracker *tracker, size_t number, size_t layer, size_t index)
{
    static const double spread[LAYERS] = {1, 0.6, 0.36, 0.22, 0.13};
    static const double change[FREEDOMS] = {
        [X] = 0.04,        [Y] = 0.02,        [Z] = 0.04,
        [HEADING] = 0.05,  [LEAN] = 0.03,     [NOD] = 0.03,
        [LEFT_SHOULDER] = 0.18,  0.03,        [LEFT_ELBOW] = 0.06,
        [RIGHT_SHOULDER] = 0.18, 0.03,        [RIGHT_ELBOW] = 0.06,
        [LEFT_HIP] = 0.15, 0.03,              [LEFT_KNEE] = 0.09,
        [RIGHT_HIP] = 0.15, 0.03,             [RIGHT_KNEE] = 0.09,
    };
    const struct particle *old = tracker->particles[number & 1];
    struct particle *particle = &tracker->particles[~number & 1][index];
    struct random random = random_stream(tracker->seed,
                                         (number + 1) * 1000003 + index + tracker->frames);
    particle->pose = old[old[index].ancestor].pose;
    for (int i = 0; i < FREEDOMS; i++)
        particle->pose.of[i] += change[i] * spread[layer] * random_normal(&random);
    particle->error = pose_error(tracker, &particle->pose);
}

/* Draws ancestors by weight, at equal distances; gives the mean pose. */
static struct pose resample(struct tracker *tracker, size_t number, size_t layer)
{
    static const double sharpness[LAYERS] = {30, 60, 120, 240, 480};
    struct particle *particles = tracker->particles[~number & 1];
    struct random random = random_stream(tracker->seed, ~number);
    struct pose mean = {{0}};
    double least = 1, all = 0, sum = 0;
    for (size_t i = 0; i < tracker->count; i++)
        least = particles[i].error < least ? particles[i].error : least;
    for (size_t i = 0; i < tracker->count; i++) {
        const double weight = portable_exp(-sharpness[layer] * (particles[i].error - least));
        particles[i].error = weight;
        all += weight;
        for (int k = 0; k < FREEDOMS; k++)
            mean.of[k] += weight * particles[i].pose.of[k];
    }
    for (int k = 0; k < FREEDOMS; k++)
        mean.of[k] /= all;
    const double pace = all / (double)tracker->count, offset = random_uniform(&random);
    size_t source = 0;
    for (size_t i = 0; i < tracker->count; i++) {
        while (source + 1 < tracker->count &&
               sum + particles[source].error < ((double)i + offset) * pace)
            sum += particles[source++].error;
        particles[i].ancestor = (uint32_t)source;
    }
    return mean;
}

static void work(void *state, struct team *team, size_t thread)
{
    struct tracker *tracker = state;
    for (size_t frame = 0; frame < tracker->frames; frame++) {
        make_maps(tracker, team, thread, frame);
        for (size_t layer = 0; layer < LAYERS; layer++) {
            const size_t number = frame * LAYERS + layer;
            size_t index;
            while ((index = ticket_take(&tracker->ticket)) < tracker->count)
                move_particle(tracker, number, layer, index);
            team_wait(team);
            if (thread == 0) {
                tracker->found[frame] = resample(tracker, number, layer);
                atomic_store(&tracker->ticket, 0);
            }
            team_wait(team);
        }
    }
}

/* How far the ends of the limbs of two poses are apart, on average, in metres. */
static double distance(const struct pose *one, const struct pose *other)
{
    struct limb limbs[LIMBS], others[LIMBS];
    double sum = 0;
    place_limbs(one, limbs);
    place_limbs(other, others);
    for (int i = 0; i < LIMBS; i++) {
        const double *to = limbs[i].to, *at = others[i].to;
        const double x = to[0] - at[0], y = to[1] - at[1], z = to[2] - at[2];
        sum += sqrt(x * x + y * y + z * z);
    }
    return sum / LIMBS;
}

/*
 * Proof: the figure was followed. Limbs are found on average within 10 cm of where they were, and
 * within half of what one would be wrong by who took the figure to stand where it stood at first.
 */
static bool finish(void *state, uint64_t *checksum)
{
    const struct tracker *tracker = state;
    const struct pose first = true_pose(0);
    double wrong = 0, standing = 0;
    for (size_t frame = 0; frame < tracker->frames; frame++) {
        const struct pose pose = true_pose(frame);
        wrong += distance(&pose, &tracker->found[frame]) / (double)tracker->frames;
        standing += distance(&pose, &first) / (double)tracker->frames;
        for (size_t k = 0; k < FREEDOMS; k++)
            *checksum += checksum_double(frame * FREEDOMS + k, tracker->found[frame].of[k]);
    }
    if (wrong < 0.1 && wrong < 0.5 * standing)
        return true;
    complain("bodytrack: limbs are %g m from where they were, those of a figure that stands %g m",
             wrong, standing);
    return false;
}

const struct program program_bodytrack = {
    .name = "bodytrack",
    .about = "annealed particle filter on images: particles taken in turn, serial redrawing",
    .rule = THREADS_ANY,
    .most_threads = {1024, 1024, 1024},
    .sizes = {"8 frames of 4 cameras, 320 particles", "36 frames of 4 cameras, 1,000 particles",
              "90 frames of 4 cameras, 4,000 particles"},
    .prepare = prepare,
    .work = work,
    .finish = finish,
};
