/* Caches of keys and values: what the references of the operations that write into them share, and the
 * makers of their cases. */
#ifndef FAJIT_ORACLE_CACHE_H
#define FAJIT_ORACLE_CACHE_H

#include "oracle.h"

/* --- strides --- */

/* In elements, as they count. */
typedef struct lattice {
    int64_t outer, head, token;
} lattice;

static inline lattice strides_of(const fa_tensor *t, bool tokens_first, int64_t heads,
                                 int64_t tokens, int64_t row)
{
    if (t->stride_batch || t->stride_head || t->stride_token)
        return (lattice){t->stride_batch, t->stride_head, t->stride_token};
    return (lattice){heads * tokens * row, (tokens_first ? 1 : tokens) * row,
                     (tokens_first ? heads : 1) * row};
}

/* Sets strides with `pad` elements behind each row, head and batch; returns how far they reach. */
int64_t oracle_pad_strides(fa_tensor *t, bool tokens_first, int64_t outer, int64_t heads,
                           int64_t tokens, int64_t row, int64_t pad);

/* --- where a token goes --- */

typedef struct oracle_cache {
    fa_kv_cache kind;
    int64_t batch, tokens;  /* tokens: of a batch */
    int64_t outer, entries; /* rows and their length, or pages and theirs */
    int64_t max_pages, table_stride;
    int64_t slot_count;   /* tokens that have a slot */
    int64_t max_position; /* positions from here on are outside; 0: there is no such limit */
    bool unique;          /* no two tokens of a batch go to one entry (of a pool: no two at all) */
} oracle_cache;

/* Entries that a token can go to. */
int64_t oracle_cache_capacity(const oracle_cache *r);

enum { ORACLE_WRITTEN, ORACLE_SKIPPED, ORACLE_OUTSIDE };

typedef struct oracle_target {
    int64_t outer, entry, position;
} oracle_target;

/* Of token n of batch b at to->position: by the case's slots and block_table. One of ORACLE_.... */
int oracle_cache_target(oracle_case *c, const oracle_cache *r, int64_t b, int64_t n,
                        oracle_target *to);

/* --- rotation --- */

/* From the case's cos and sin, its inv_freq, or base and scaling. */
typedef struct oracle_turn {
    fa_kv_rotation rotation;
    fa_rope_angles angles;
    double base;
    const fa_rope_scaling *scaling;
    int64_t dim;             /* at most 1024 */
    int64_t sequence_length; /* with DYNAMIC_NTK */
} oracle_turn;

void oracle_turn_row(oracle_case *c, const oracle_turn *by, int64_t position, double *row);

/* --- making a case (cache_case.c) --- */

/* Before the reference: nothing was written yet. */
void oracle_keep_all(oracle_case *c);

/* A number in [0, limit), by the case's seed, the stream and i. */
int64_t oracle_draw(const oracle_case *c, uint64_t stream, int64_t i, int64_t limit);

/* positions (DENSE, BLOCK_TABLE) or slots: an entry for each token. `spoilt`: some are padding or
 * outside. false without memory, here and below. */
bool oracle_add_entries(oracle_case *c, const oracle_cache *r, const char *name, fa_index type,
                        bool spoilt);
/* positions beside slots, below `limit`. */
void oracle_add_positions(oracle_case *c, const oracle_cache *r, fa_index type, int64_t limit);
/* A page for each entry of each table; `spoilt`: some are outside. */
bool oracle_add_block_table(oracle_case *c, const oracle_cache *r, bool spoilt);
/* cos and sin of `rows` positions, or inv_freq, as the angles need them; neither without rotation. */
void oracle_add_angles(oracle_case *c, const oracle_turn *by, int64_t rows);
/* The count of errors, which is added to. */
void oracle_add_errors(oracle_case *c);

#endif
