/* See cycle.h. */
#include "cycle.h"

/* PCG by O'Neill, 64 bits of state. */
static uint32_t draw(uint64_t *state)
{
    const uint64_t old = *state;
    *state = old * 6364136223846793005ULL + 1442695040888963407ULL;
    const uint32_t shifted = (uint32_t)(((old >> 18U) ^ old) >> 27U);
    const uint32_t turn = (uint32_t)(old >> 59U);
    return shifted >> turn | shifted << (-turn & 31);
}

static struct line *line_at(char *bytes, uint64_t size, uint64_t index)
{
    return (struct line *)(void *)(bytes + index * size);
}

/* First the index of each line's successor, then its address. */
void cycle_link(char *bytes, uint64_t lines, uint64_t size, bool random, uint64_t seed)
{
    uint64_t state = seed;
    draw(&state);
    for (uint64_t i = 0; i < lines; i++)
        line_at(bytes, size, i)->next = line_at(bytes, size, random ? i : (i + 1) % lines);
    for (uint64_t i = lines - 1; random && i > 0; i--) {
        const uint64_t drawn = (uint64_t)draw(&state) << 32 | draw(&state);
        struct line *const one = line_at(bytes, size, i);
        struct line *const other = line_at(bytes, size, drawn % i);
        struct line *const next = one->next;
        one->next = other->next;
        other->next = next;
    }
}
