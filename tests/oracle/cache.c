/* Caches of keys and values in references: see cache.h. */
#include "cache.h"

#include <math.h>

#include "rotary.h"

int64_t oracle_pad_strides(fa_tensor *t, bool tokens_first, int64_t outer, int64_t heads,
                           int64_t tokens, int64_t row, int64_t pad)
{
    lattice l = strides_of(t, tokens_first, heads, tokens, row);
    if (pad) {
        const int64_t inner = row + pad;
        l.head = tokens_first ? inner : inner * tokens + pad;
        l.token = tokens_first ? inner * heads + pad : inner;
        l.outer = (tokens_first ? l.token * tokens : l.head * heads) + pad;
        t->stride_batch = l.outer;
        t->stride_head = l.head;
        t->stride_token = l.token;
    }
    if (!outer || !heads || !tokens)
        return 0;
    return (outer - 1) * l.outer + (heads - 1) * l.head + (tokens - 1) * l.token + row;
}

/* --- where a token goes --- */

int64_t oracle_cache_capacity(const oracle_cache *r)
{
    switch (r->kind) {
    case FA_KV_DENSE:
        return r->entries;
    case FA_KV_SLOTS:
        return r->outer * r->entries;
    case FA_KV_BLOCK_TABLE:
        return r->max_pages * r->entries;
    }
    return 0;
}

int oracle_cache_target(oracle_case *c, const oracle_cache *r, int64_t b, int64_t n,
                        oracle_target *to)
{
    const int64_t token = b * r->tokens + n;
    int64_t index = to->position;
    if (r->kind == FA_KV_SLOTS) {
        if (token >= r->slot_count)
            return ORACLE_SKIPPED;
        index = oracle_index(oracle_find_tensor(c, "slots"), token);
    }
    if (index == -1 || to->position == -1)
        return ORACLE_SKIPPED;
    if (index < 0 || index >= oracle_cache_capacity(r) || to->position < 0)
        return ORACLE_OUTSIDE;
    if (r->max_position && to->position >= r->max_position)
        return ORACLE_OUTSIDE;
    to->outer = r->kind == FA_KV_DENSE ? b : index / r->entries;
    to->entry = index % r->entries;
    if (r->kind == FA_KV_BLOCK_TABLE) {
        const int32_t *table = oracle_find_tensor(c, "block_table")->host;
        to->outer = table[b * r->table_stride + to->outer];
    }
    return to->outer < 0 || to->outer >= r->outer ? ORACLE_OUTSIDE : ORACLE_WRITTEN;
}

/* --- rotation --- */

static double frequency(oracle_case *c, const oracle_turn *by, int64_t pair)
{
    const oracle_tensor *vector = oracle_find_tensor(c, "inv_freq");
    return vector
               ? (double)((const float *)vector->host)[pair]
               : oracle_rotary_frequency(by->base, by->scaling, by->dim, by->sequence_length, pair);
}

void oracle_turn_row(oracle_case *c, const oracle_turn *by, int64_t position, double *row)
{
    const int64_t pairs = by->dim / 2;
    const bool tables = by->angles == FA_ROPE_TABLES;
    const float *cos_table = tables ? oracle_find_tensor(c, "cos")->host : NULL;
    const float *sin_table = tables ? oracle_find_tensor(c, "sin")->host : NULL;
    const double factor = tables ? 1 : oracle_rotary_attention_factor(by->scaling);
    double cosines[512], sines[512];
    for (int64_t j = 0; j < pairs; j++) {
        const double angle = tables ? 0 : (double)position * frequency(c, by, j);
        cosines[j] = tables ? (double)cos_table[position * pairs + j] : factor * cos(angle);
        sines[j] = tables ? (double)sin_table[position * pairs + j] : factor * sin(angle);
    }
    oracle_rotary_turn(row, by->rotation == FA_KV_ROTATE_HALF ? FA_ROPE_HALF : FA_ROPE_INTERLEAVED,
                       by->dim, cosines, sines);
}
