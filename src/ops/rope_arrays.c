/* What rope reads beside q and k: positions, tables, frequencies, weights. Each is checked and held
 * apart from the outputs. */
#include <inttypes.h>

#include "ops/rope.h"
#include "status.h"

static fa_status check_array(const rope_views *v, const char *name, const void *data, int64_t count,
                             int64_t element_bytes)
{
    fa__view array;
    fa_status status = fa__view_make_array(&array, "rope", name, data, count, element_bytes);
    for (int i = 0; i < v->outputs && !status; i++)
        status = fa__view_check_apart(&v->view[i], &array);
    return status;
}

/* --- positions --- */

/* Adds (count - 1) * stride to the elements that a vector reaches. */
static fa_status add_reach(const char *name, int64_t stride, int64_t count, int64_t *reach)
{
    int64_t steps = 0;
    if (__builtin_mul_overflow(stride, count - 1, &steps) ||
        __builtin_add_overflow(*reach, steps, reach) || *reach > INT64_C(1) << 54)
        return fa__fail(FA_ERR_STRIDE,
                        "rope: %s = %" PRId64 " leads outside any address space (fa_rope_args.%s)",
                        name, stride, name);
    if (stride < 0)
        return fa__fail(FA_ERR_STRIDE, "rope: %s = %" PRId64 " is negative (fa_rope_args.%s)", name,
                        stride, name);
    return FA_OK;
}

static fa_status check_vector(const fa_rope_spec *s, const fa_rope_args *a, const rope_sizes *n,
                              const rope_views *v, rope_kernel_params *k)
{
    int64_t reach = n->seqlen;
    fa_status status = add_reach("positions_stride", a->positions_stride, n->batch, &reach);
    k->positions_stride = a->positions_stride;
    if (!status && s->sections) {
        k->positions_axis_stride = a->positions_axis_stride;
        if (!k->positions_axis_stride) /* one vector or batch behind the other */
            k->positions_axis_stride =
                a->positions_stride ? a->positions_stride * n->batch : n->seqlen;
        status = add_reach("positions_axis_stride", k->positions_axis_stride, 3, &reach);
    }
    return status ? status
                  : check_array(v, "positions", a->positions, reach,
                                fa__index_bytes(s->position_type));
}

static fa_status check_cumulative(const fa_rope_spec *s, const fa_rope_args *a, const rope_views *v,
                                  rope_kernel_params *k)
{
    const int64_t bytes = fa__index_bytes(s->position_type);
    if (a->sequences < 1)
        return fa__fail(
            FA_ERR_SIZE,
            "rope: sequences = %d; positions holds the cumulative lengths of at least 1 "
            "(fa_rope_args.sequences)",
            a->sequences);
    k->sequences = a->sequences;
    k->sequence_offsets = (uintptr_t)a->sequence_offsets;
    fa_status status = check_array(v, "positions", a->positions, (int64_t)a->sequences + 1, bytes);
    if (!status && a->sequence_offsets)
        status = check_array(v, "sequence_offsets", a->sequence_offsets, a->sequences, bytes);
    return status;
}

static fa_status check_positions(const fa_rope_spec *s, const fa_rope_args *a, const rope_sizes *n,
                                 const rope_views *v, rope_kernel_params *k)
{
    k->position_offset = a->position_offset;
    if (s->positions == FA_ROPE_RANGE)
        return FA_OK;
    k->positions = (uintptr_t)a->positions;
    switch (s->positions) {
    case FA_ROPE_OFFSETS:
        return check_array(v, "positions", a->positions, n->batch,
                           fa__index_bytes(s->position_type));
    case FA_ROPE_CUMULATIVE:
        return check_cumulative(s, a, v, k);
    default:
        return check_vector(s, a, n, v, k);
    }
}

/* --- angles --- */

static fa_status check_tables(const fa_rope_spec *s, const fa_rope_args *a, const rope_sizes *n,
                              const rope_views *v, rope_kernel_params *k)
{
    if (a->max_position <= 0)
        return fa__fail(FA_ERR_SIZE,
                        "rope: max_position = %d; the tables need at least 1 row "
                        "(fa_rope_args.max_position)",
                        a->max_position);
    int64_t end = (int64_t)a->position_offset + n->seqlen;
    if (s->positions == FA_ROPE_RANGE && (a->position_offset < 0 || end > a->max_position))
        return fa__fail(FA_ERR_LIMIT,
                        "rope: positions %d to %" PRId64
                        " are not all in the tables, which hold "
                        "0 to %d (fa_rope_args.position_offset, max_position)",
                        a->position_offset, end - 1, a->max_position - 1);
    k->max_position = a->max_position;
    k->cos = (uintptr_t)a->cos;
    k->sin = (uintptr_t)a->sin;
    int64_t count = a->max_position * (n->rotary_dim / 2);
    fa_status status = check_array(v, "cos", a->cos, count, 4);
    return status ? status : check_array(v, "sin", a->sin, count, 4);
}

static fa_status check_angles(const fa_rope_spec *s, const fa_rope_args *a, const rope_sizes *n,
                              const rope_views *v, rope_kernel_params *k)
{
    switch (s->angles) {
    case FA_ROPE_TABLES:
        return check_tables(s, a, n, v, k);
    case FA_ROPE_FREQUENCIES:
        k->inv_freq = (uintptr_t)a->inv_freq;
        return check_array(v, "inv_freq", a->inv_freq, n->rotary_dim / 2, 4);
    default:
        return FA_OK;
    }
}

/* --- weights --- */

static fa_status check_norm(const fa_rope_spec *s, const fa_rope_args *a, const rope_sizes *n,
                            const rope_views *v, rope_kernel_params *k)
{
    const int64_t bytes =
        s->norm == FA_ROPE_RMS_NORM ? (int64_t)fa__dtype_bytes(s->dtype) : (int64_t)sizeof(float);
    fa_status status = FA_OK;
    if (n->heads_q)
        status = check_array(v, "q_norm", a->q_norm, n->head_dim, bytes);
    if (n->heads_k && !status)
        status = check_array(v, "k_norm", a->k_norm, n->head_dim, bytes);
    k->q.norm = (uintptr_t)a->q_norm;
    k->k.norm = (uintptr_t)a->k_norm;
    return status;
}

fa_status fa__rope_arrays(const fa_rope_spec *s, const fa_rope_args *a, const rope_sizes *n,
                          const rope_views *v, rope_kernel_params *k)
{
    fa_status status = check_positions(s, a, n, v, k);
    if (!status)
        status = check_angles(s, a, n, v, k);
    return status || !s->norm ? status : check_norm(s, a, n, v, k);
}
