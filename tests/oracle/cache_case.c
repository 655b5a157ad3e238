/* Cases of operations that write into caches: outputs, indices, angles. See cache.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "make.h"
#include "rotary.h"

/* --- outputs --- */

void oracle_keep_all(oracle_case *c)
{
    for (size_t i = 0; i < c->tensor_count; i++) {
        oracle_tensor *t = &c->tensor[i];
        if (!t->output)
            continue;
        memcpy(t->stored, t->host, t->bytes);
        memset(t->exact, 1, t->count * sizeof *t->exact);
    }
}

void oracle_add_errors(oracle_case *c)
{
    oracle_tensor *t = oracle_add_indices(c, "errors", FA_I32, 1);
    if (t->host)
        *(uint32_t *)t->host = 7; /* what was there is kept */
    oracle_keep_output(t);
}

/* --- indices --- */

int64_t oracle_draw(const oracle_case *c, uint64_t stream, int64_t i, int64_t limit)
{
    const double value = (double)oracle_uniform(c->seed + stream, (uint64_t)i, 0, 1);
    const int64_t drawn = (int64_t)floor(value * (double)limit);
    return drawn < limit ? drawn : limit - 1;
}

/* 0 to count - 1 in an order drawn at random. */
static int64_t *shuffled(const oracle_case *c, uint64_t stream, int64_t count)
{
    int64_t *order = malloc((size_t)(count ? count : 1) * sizeof *order);
    for (int64_t i = 0; i < count && order; i++)
        order[i] = i;
    for (int64_t i = count - 1; i > 0 && order; i--) {
        const int64_t k = oracle_draw(c, stream, i, i + 1), swap = order[i];
        order[i] = order[k];
        order[k] = swap;
    }
    return order;
}

/* Of 16 tokens two are padding, one lies before and one behind the cache: far behind where the type
 * allows, so that cutting an index to 32 bits is noticed. */
static int64_t spoil(const oracle_case *c, const oracle_tensor *t, int64_t capacity, int64_t i,
                     int64_t index)
{
    switch (oracle_draw(c, 20, i, 16)) {
    case 0:
    case 1:
        return -1;
    case 2:
        return -2 - i;
    case 3:
        return t->bytes / t->count == 4 ? capacity + i : (INT64_C(1) << 32) + index;
    default:
        return index;
    }
}

bool oracle_add_entries(oracle_case *c, const oracle_cache *r, const char *name, fa_index type,
                        bool spoilt)
{
    const bool slots = r->kind == FA_KV_SLOTS;
    const int64_t rows = slots ? 1 : r->batch, count = slots ? r->slot_count : r->tokens;
    const int64_t capacity = oracle_cache_capacity(r);
    oracle_tensor *t = oracle_add_indices(c, name, type, rows * count);
    for (int64_t row = 0; row < rows && t->host; row++) {
        int64_t *order = r->unique ? shuffled(c, 10 + (uint64_t)row, capacity) : NULL;
        if (r->unique && !order)
            return false;
        for (int64_t i = 0; i < count; i++) {
            const int64_t at = row * count + i;
            const int64_t entry = order ? order[i] : oracle_draw(c, 11, at, capacity);
            oracle_set_index(t, at, spoilt ? spoil(c, t, capacity, at, entry) : entry);
        }
        free(order);
    }
    return t->host != NULL;
}

void oracle_add_positions(oracle_case *c, const oracle_cache *r, fa_index type, int64_t limit)
{
    const int64_t tokens = r->batch * r->tokens;
    oracle_tensor *t = oracle_add_indices(c, "positions", type, tokens);
    for (int64_t i = 0; i < tokens && t->host; i++)
        oracle_set_index(t, i, oracle_draw(c, 12, i, limit));
}

bool oracle_add_block_table(oracle_case *c, const oracle_cache *r, bool spoilt)
{
    const int64_t count = r->batch * r->max_pages;
    oracle_tensor *t = oracle_add_indices(c, "block_table", FA_I32, count);
    int64_t *order = shuffled(c, 30, r->outer);
    for (int64_t i = 0; i < count && t->host && order; i++) {
        const bool bad = spoilt && oracle_draw(c, 31, i, 8) == 0;
        oracle_set_index(t, i, bad ? (i % 2 ? r->outer : -1) : order[i]);
    }
    free(order);
    return t->host && order;
}

/* --- angles --- */

void oracle_add_angles(oracle_case *c, const oracle_turn *by, int64_t rows)
{
    const int64_t pairs = by->dim / 2;
    const fa_rope_scaling unscaled = {0};
    if (by->rotation && by->angles == FA_ROPE_FREQUENCIES) {
        float *vector = oracle_add_tensor(c, "inv_freq", FA_F32, pairs)->host;
        for (int64_t j = 0; j < pairs && vector; j++)
            vector[j] = oracle_odd_frequency(
                oracle_rotary_frequency(by->base, &unscaled, 2 * pairs, 0, j), j, pairs);
    }
    if (!by->rotation || by->angles != FA_ROPE_TABLES)
        return;
    float *cosines = oracle_add_tensor(c, "cos", FA_F32, rows * pairs)->host;
    float *sines = oracle_add_tensor(c, "sin", FA_F32, rows * pairs)->host;
    for (int64_t i = 0; i < rows * pairs && cosines && sines; i++) {
        const double angle = (double)(i / pairs) *
                             oracle_rotary_frequency(by->base, &unscaled, 2 * pairs, 0, i % pairs);
        cosines[i] = (float)cos(angle);
        sines[i] = (float)sin(angle);
    }
}
