/*
 * cholesky: factorisation of a sparse matrix by blocks.
 *
 * Rothberg and Gupta, "An efficient block-oriented approach to parallel sparse Cholesky
 * factorization" (1994), of the matrix of a grid in space (7 points) in the order of nested
 * dissection (George 1973). Columns are cut into blocks along the separators; a block of the
 * factor that has any non-zero is dense. Blocks belong to threads in a two-dimensional
 * cycle. A block is put into the queue of its owner when the last block that it needs is
 * done: there is no barrier.
 * Unlike SPLASH's program of the name: the matrix is generated, and a block is updated by all
 * its sources at once, in a fixed order, when all of them are done, rather than by each as
 * it comes.
 */
#include "parallel.h"

#include <math.h>

enum { BLOCK = 32, LEAF = 24 };

static const size_t sides[SIZES] = {18, 26, 38};

struct block {
    uint32_t row, column; /* in blocks */
    double *elements;     /* column after column */
    atomic_uint missing;  /* sources that are not done */
    uint32_t next;        /* in a queue */
};

struct queue {
    _Alignas(CACHE_LINE) pthread_mutex_t lock;
    pthread_cond_t filled;
    uint32_t first, last;
    size_t blocks; /* that its thread owns */
};

struct cholesky {
    uint64_t seed;
    size_t side, order;       /* of the grid, of the matrix */
    uint32_t *place;          /* of a node of the grid, among the columns */
    uint32_t *node;           /* and back */
    uint32_t *block_of;       /* of a column */
    uint32_t *start;          /* first column of a block of columns; one more at the end */
    size_t columns;           /* blocks of columns */
    uint32_t *where;          /* columns x columns: the block of the factor, 0 if there is none */
    uint32_t **below, **left; /* of a diagonal block: rows below it, columns left of it; from 1 */
    struct block *blocks;     /* from 1 on */
    size_t count;
    struct queue *queues;
    struct thread_grid grid;
};

/* Appends nodes of a box to the order, as blocks of at most `most` columns. */
static void append(struct cholesky *matrix, const size_t low[3], const size_t high[3], size_t most)
{
    size_t filled = most;
    for (size_t z = low[2]; z < high[2]; z++)
        for (size_t y = low[1]; y < high[1]; y++)
            for (size_t x = low[0]; x < high[0]; x++) {
                const size_t node = (z * matrix->side + y) * matrix->side + x;
                if (filled++ == most) {
                    matrix->start[matrix->columns++] = (uint32_t)matrix->order;
                    filled = 1;
                }
                matrix->block_of[matrix->order] = (uint32_t)matrix->columns - 1;
                matrix->node[matrix->order] = (uint32_t)node;
                matrix->place[node] = (uint32_t)matrix->order++;
            }
}

/* Two halves of a box, then the plane between them. */
static void dissect(struct cholesky *matrix, const size_t low[3], const size_t high[3])
{
    size_t volume = 1, widest = 0;
    for (size_t k = 0; k < 3; k++) {
        volume *= high[k] - low[k];
        if (high[k] - low[k] > high[widest] - low[widest])
            widest = k;
    }
    if (volume <= LEAF) {
        append(matrix, low, high, LEAF);
        return;
    }
    size_t end[3] = {high[0], high[1], high[2]}, begin[3] = {low[0], low[1], low[2]};
    end[widest] = (low[widest] + high[widest]) / 2;
    begin[widest] = end[widest] + 1;
    dissect(matrix, low, end);
    dissect(matrix, begin, high);
    begin[widest] = end[widest];
    end[widest]++;
    append(matrix, begin, end, BLOCK);
}

/* The neighbour of a node in one of six directions, or the node itself at the border. */
static size_t neighbour(const struct cholesky *matrix, size_t node, size_t direction)
{
    const size_t strides[3] = {1, matrix->side, matrix->side * matrix->side};
    const size_t stride = strides[direction / 2], at = node / stride % matrix->side;
    if (direction % 2)
        return at + 1 < matrix->side ? node + stride : node;
    return at > 0 ? node - stride : node;
}

/* The element between two neighbours. */
static double coupling(const struct cholesky *matrix, size_t a, size_t b)
{
    struct random random = random_stream(matrix->seed, a < b ? a << 32 | b : b << 32 | a);
    return -0.5 - random_uniform(&random);
}

/* The element on the diagonal: a little more than all beside it. */
static double weight(const struct cholesky *matrix, size_t node)
{
    double sum = 0.1;
    for (size_t direction = 0; direction < 6; direction++) {
        const size_t other = neighbour(matrix, node, direction);
        if (other != node)
            sum -= coupling(matrix, node, other);
    }
    return sum;
}

/* Marks in `where` all blocks that have a non-zero, and counts them. */
static void find_structure(struct cholesky *matrix)
{
    const size_t n = matrix->columns;
    for (size_t column = 0; column < matrix->order; column++) {
        const size_t block = matrix->block_of[column];
        matrix->where[block * n + block] = 1;
        for (size_t direction = 0; direction < 6; direction++) {
            const size_t other = neighbour(matrix, matrix->node[column], direction);
            const size_t row = matrix->block_of[matrix->place[other]];
            if (row > block)
                matrix->where[block * n + row] = 1;
        }
    }
    for (size_t column = 0; column < n; column++) { /* fill goes to the first block below */
        size_t parent = column + 1;
        while (parent < n && !matrix->where[column * n + parent])
            parent++;
        for (size_t row = parent; row < n; row++)
            if (matrix->where[column * n + row])
                matrix->where[parent * n + row] = 1;
    }
    for (size_t i = 0; i < n * n; i++)
        if (matrix->where[i])
            matrix->where[i] = (uint32_t)++matrix->count;
}

static struct block *block_at(const struct cholesky *matrix, size_t row, size_t column)
{
    return &matrix->blocks[matrix->where[column * matrix->columns + row]];
}

static size_t width(const struct cholesky *matrix, size_t block)
{
    return matrix->start[block + 1] - matrix->start[block];
}

/* Lists of what is below and left of each diagonal block, both in ascending order. */
static void list_structure(struct cholesky *matrix)
{
    const size_t n = matrix->columns;
    for (size_t i = 0; i < n; i++) {
        size_t below = 0, left = 0;
        for (size_t j = 0; j < n; j++) {
            below += j > i && matrix->where[i * n + j];
            left += j < i && matrix->where[j * n + i];
        }
        matrix->below[i] = memory_take(below + 1, sizeof **matrix->below);
        matrix->left[i] = memory_take(left + 1, sizeof **matrix->left);
        for (size_t j = 0; j < n; j++) {
            if (j > i && matrix->where[i * n + j])
                matrix->below[i][++matrix->below[i][0]] = (uint32_t)j;
            if (j < i && matrix->where[j * n + i])
                matrix->left[i][++matrix->left[i][0]] = (uint32_t)j;
        }
    }
}

static struct queue *queue_of(const struct cholesky *matrix, const struct block *block)
{
    return &matrix->queues[block->row % matrix->grid.rows * matrix->grid.columns +
                           block->column % matrix->grid.columns];
}

static void push(struct cholesky *matrix, struct block *block)
{
    struct queue *queue = queue_of(matrix, block);
    const uint32_t index = (uint32_t)(block - matrix->blocks);
    pthread_mutex_lock(&queue->lock);
    if (queue->first)
        matrix->blocks[queue->last].next = index;
    else
        queue->first = index;
    queue->last = index;
    pthread_cond_signal(&queue->filled);
    pthread_mutex_unlock(&queue->lock);
}

static struct block *pop(struct cholesky *matrix, struct queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    while (!queue->first)
        pthread_cond_wait(&queue->filled, &queue->lock);
    struct block *block = &matrix->blocks[queue->first];
    queue->first = block->next;
    pthread_mutex_unlock(&queue->lock);
    return block;
}

/* The sources of each block: for each column on the left that has both rows, one or two. */
static void count_sources(struct cholesky *matrix)
{
    for (size_t index = 1; index <= matrix->count; index++) {
        struct block *block = &matrix->blocks[index];
        const uint32_t *left = matrix->left[block->column];
        unsigned missing = block->row != block->column;
        for (uint32_t i = 1; i <= left[0]; i++)
            if (matrix->where[left[i] * matrix->columns + block->row])
                missing += block->row == block->column ? 1 : 2;
        atomic_init(&block->missing, missing);
        queue_of(matrix, block)->blocks++;
        if (missing == 0)
            push(matrix, block);
    }
}

static void take_blocks(struct cholesky *matrix)
{
    const size_t n = matrix->columns;
    matrix->blocks = memory_take(matrix->count + 1, sizeof *matrix->blocks);
    for (size_t column = 0; column < n; column++)
        for (size_t row = column; row < n; row++) {
            struct block *block = block_at(matrix, row, column);
            if (block == matrix->blocks)
                continue;
            block->row = (uint32_t)row;
            block->column = (uint32_t)column;
            block->elements = memory_take(width(matrix, row) * width(matrix, column),
                                          sizeof *block->elements);
        }
}

static double *element_at(const struct cholesky *matrix, size_t row, size_t column)
{
    const struct block *block = block_at(matrix, matrix->block_of[row], matrix->block_of[column]);
    return block->elements +
           (column - matrix->start[block->column]) * width(matrix, block->row) +
           (row - matrix->start[block->row]);
}

static void fill(struct cholesky *matrix)
{
    for (size_t column = 0; column < matrix->order; column++) {
        const size_t node = matrix->node[column];
        *element_at(matrix, column, column) = weight(matrix, node);
        for (size_t direction = 0; direction < 6; direction++) {
            const size_t other = neighbour(matrix, node, direction);
            if (matrix->place[other] > column)
                *element_at(matrix, matrix->place[other], column) = coupling(matrix, node, other);
        }
    }
}

static void *prepare(const struct setting *setting)
{
    struct cholesky *matrix = memory_take(1, sizeof *matrix);
    const size_t side = sides[setting->size], nodes = side * side * side;
    matrix->seed = setting->seed;
    matrix->side = side;
    matrix->grid = thread_grid(setting->threads);
    matrix->place = memory_take(nodes, sizeof *matrix->place);
    matrix->node = memory_take(nodes, sizeof *matrix->node);
    matrix->block_of = memory_take(nodes, sizeof *matrix->block_of);
    matrix->start = memory_take(nodes + 1, sizeof *matrix->start);
    dissect(matrix, (const size_t[3]){0, 0, 0}, (const size_t[3]){side, side, side});
    matrix->start[matrix->columns] = (uint32_t)matrix->order;
    const size_t n = matrix->columns;
    matrix->where = memory_take(n * n, sizeof *matrix->where);
    matrix->below = memory_take(n, sizeof *matrix->below);
    matrix->left = memory_take(n, sizeof *matrix->left);
    matrix->queues = memory_take(setting->threads, sizeof *matrix->queues);
    for (size_t i = 0; i < setting->threads; i++) {
        pthread_mutex_init(&matrix->queues[i].lock, NULL);
        pthread_cond_init(&matrix->queues[i].filled, NULL);
    }
    find_structure(matrix);
    list_structure(matrix);
    take_blocks(matrix);
    fill(matrix);
    count_sources(matrix);
    return matrix;
}

/* target -= one other^T, in blocks of `rows` x `columns` with `depth` columns in the sources. */
static void update(double *restrict target, const double *restrict one,
                   const double *restrict other, size_t rows, size_t columns, size_t depth)
{
    for (size_t k = 0; k < depth; k++)
        for (size_t j = 0; j < columns; j++) {
            const double scale = other[k * columns + j];
            for (size_t i = 0; i < rows; i++)
                target[j * rows + i] -= one[k * rows + i] * scale;
        }
}

/* Cholesky's factor of a diagonal block; what is above its diagonal is not looked at. */
static void factor(double *block, size_t rows)
{
    for (size_t k = 0; k < rows; k++) {
        const double root = sqrt(block[k * rows + k]);
        for (size_t i = k; i < rows; i++)
            block[k * rows + i] /= root;
        for (size_t j = k + 1; j < rows; j++)
            for (size_t i = j; i < rows; i++)
                block[j * rows + i] -= block[k * rows + i] * block[k * rows + j];
    }
}

/* block := block L^-T. */
static void solve(double *block, const double *diagonal, size_t rows, size_t columns)
{
    for (size_t k = 0; k < columns; k++) {
        for (size_t i = 0; i < rows; i++)
            block[k * rows + i] /= diagonal[k * columns + k];
        for (size_t j = k + 1; j < columns; j++)
            for (size_t i = 0; i < rows; i++)
                block[j * rows + i] -= block[k * rows + i] * diagonal[k * columns + j];
    }
}

static void compute(const struct cholesky *matrix, const struct block *block)
{
    const size_t rows = width(matrix, block->row), columns = width(matrix, block->column);
    const uint32_t *left = matrix->left[block->column];
    for (uint32_t i = 1; i <= left[0]; i++) {
        const struct block *one = block_at(matrix, block->row, left[i]);
        if (one != matrix->blocks)
            update(block->elements, one->elements,
                   block_at(matrix, block->column, left[i])->elements, rows, columns,
                   width(matrix, left[i]));
    }
    if (block->row == block->column)
        factor(block->elements, rows);
    else
        solve(block->elements, block_at(matrix, block->column, block->column)->elements, rows,
              columns);
}

static void one_less(struct cholesky *matrix, struct block *block)
{
    if (atomic_fetch_sub_explicit(&block->missing, 1, memory_order_acq_rel) == 1)
        push(matrix, block);
}

/* Tells all blocks that need this one. */
static void announce(struct cholesky *matrix, const struct block *block)
{
    const uint32_t *below = matrix->below[block->column];
    for (uint32_t i = 1; i <= below[0]; i++) {
        const size_t other = below[i];
        if (block->row == block->column)
            one_less(matrix, block_at(matrix, other, block->column));
        else if (other < block->row)
            one_less(matrix, block_at(matrix, block->row, other));
        else
            one_less(matrix, block_at(matrix, other, block->row));
    }
}

static void work(void *state, struct team *team, size_t thread)
{
    struct cholesky *matrix = state;
    struct queue *queue = &matrix->queues[thread];
    (void)team;
    for (size_t done = 0; done < queue->blocks; done++) {
        struct block *block = pop(matrix, queue);
        compute(matrix, block);
        announce(matrix, block);
    }
}

/* x -> L^T x or L x, block by block. */
static void multiply(const struct cholesky *matrix, const double *from, double *to, bool transposed)
{
    for (size_t index = 1; index <= matrix->count; index++) {
        const struct block *block = &matrix->blocks[index];
        const size_t rows = width(matrix, block->row);
        const size_t row = matrix->start[block->row], column = matrix->start[block->column];
        for (size_t j = 0; j < width(matrix, block->column); j++)
            for (size_t i = block->row == block->column ? j : 0; i < rows; i++) {
                const double element = block->elements[j * rows + i];
                if (transposed)
                    to[column + j] += element * from[row + i];
                else
                    to[row + i] += element * from[column + j];
            }
    }
}

/* Proof: the factor times its transpose, applied to a vector, does what the matrix does. */
static bool finish(void *state, uint64_t *checksum)
{
    struct cholesky *matrix = state;
    double *vector[3];
    for (int i = 0; i < 3; i++)
        vector[i] = memory_take(matrix->order, sizeof *vector[i]);
    for (size_t i = 0; i < matrix->order; i++)
        vector[0][i] = 1 + (double)(i % 7);
    multiply(matrix, vector[0], vector[1], true);
    multiply(matrix, vector[1], vector[2], false);
    for (size_t i = 0; i < matrix->order; i++) {
        const size_t node = matrix->node[i];
        double wanted = weight(matrix, node) * vector[0][i];
        for (size_t direction = 0; direction < 6; direction++) {
            const size_t other = neighbour(matrix, node, direction);
            if (other != node)
                wanted += coupling(matrix, node, other) * vector[0][matrix->place[other]];
        }
        if (!(fabs(vector[2][i] - wanted) < 1e-9)) {
            complain("cholesky: row %zu of the product is wrong by %g", i, vector[2][i] - wanted);
            return false;
        }
        *checksum += checksum_double(i, vector[1][i]);
    }
    for (size_t i = 0; i < matrix->grid.rows * matrix->grid.columns; i++) {
        pthread_mutex_destroy(&matrix->queues[i].lock);
        pthread_cond_destroy(&matrix->queues[i].filled);
    }
    return true;
}

const struct program program_cholesky = {
    .name = "cholesky",
    .about = "sparse Cholesky by blocks: tasks in a queue per thread, no barrier",
    .rule = THREADS_ANY,
    .most_threads = {1024, 1024, 1024},
    .sizes = {"grid of 18 x 18 x 18", "grid of 26 x 26 x 26", "grid of 38 x 38 x 38"},
    .prepare = prepare,
    .work = work,
    .finish = finish,
};
