/* Device time of kv_update: a large prefill, limited by memory, and two small updates, limited by
 * launches, each against the time its bytes take at the copy rate measured in the same run.
 *
 *     bench_kv_update [--quick] [--only PATTERN]        PATTERN is part of a bench name
 */
#include "bench_op.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SETS 64

typedef struct kv_case {
    char name[96];
    fa_kv_update_spec spec; /* every size is baked */
    size_t sets;            /* of new values, positions and, where they fit, caches */
    bool one_cache;         /* the sets share one, and go to other entries of it */
} kv_case;

/* What the launches of one case work on. */
typedef struct kv_run {
    const kv_case *kv;
    fa_kernel *kernel;
    fa_args args[MAX_SETS];
    int32_t *positions[MAX_SETS]; /* host copies */
    float *tables[2];
    size_t fresh, cache; /* elements of k_new, and of cache_k */
    size_t sets;         /* in use */
} kv_run;

static void launch(void *user, size_t i, gpu_stream stream)
{
    kv_run *run = user;
    bench_check(fa_launch(run->kernel, &run->args[i % run->sets], stream), "fa_launch");
}

/* --- setting up --- */

/* Each batch goes on from a place of its own, as a prefill in chunks does. */
static int32_t *make_positions(const fa_kv_update_spec *s, size_t set)
{
    const size_t count = (size_t)s->batch * (size_t)s->tokens;
    int32_t *positions = calloc(count, sizeof *positions);
    uint64_t seed = set + 1;
    if (!positions)
        bench_die("out of memory");
    for (int32_t b = 0; b < s->batch; b++) {
        const uint64_t places = (uint64_t)(s->cache_len - s->tokens) + 1;
        const int32_t begin = (int32_t)(bench_random(&seed) % places);
        for (int32_t n = 0; n < s->tokens; n++)
            positions[b * s->tokens + n] = begin + n;
    }
    return positions;
}

static void make_set(kv_run *run, size_t i)
{
    const fa_dtype dtype = run->kv->spec.dtype;
    const fa_kv_update_spec *s = &run->kv->spec;
    const size_t count = (size_t)s->batch * (size_t)s->tokens;
    fa_kv_update_args *a = &run->args[i].kv_update;
    run->args[i] = (fa_args)FA_ARGS_INIT(FA_OP_KV_UPDATE);
    a->k_new.data = bench_alloc_random(dtype, run->fresh, 8 * i + 1);
    a->v_new.data = bench_alloc_random(dtype, run->fresh, 8 * i + 2);
    if (i && run->kv->one_cache) {
        a->cache_k = run->args[0].kv_update.cache_k;
        a->cache_v = run->args[0].kv_update.cache_v;
    } else {
        a->cache_k.data = bench_alloc_random(dtype, run->cache, 8 * i + 3);
        a->cache_v.data = bench_alloc_random(dtype, run->cache, 8 * i + 4);
    }
    if (!s->in_place) {
        const size_t bytes = 2 * run->cache * bench_dtype_bytes(s->dtype);
        a->k_out.data = gpu_alloc(bytes);
        gpu_fill(a->k_out.data, 0xff, bytes); /* NaN in both types */
    }
    run->positions[i] = make_positions(s, i);
    int32_t *positions = gpu_alloc(count * sizeof *positions);
    gpu_upload(positions, run->positions[i], count * sizeof *positions);
    a->positions = positions;
    a->positions_stride = s->tokens;
    a->cos = run->tables[0];
    a->sin = run->tables[1];
    a->max_position = s->cache_len;
}

/* false, with the reason reported, when there is no kernel for this case. */
static bool set_up(kv_run *run, fa_context *ctx, const kv_case *kv)
{
    const fa_kv_update_spec *s = &kv->spec;
    const size_t row = (size_t)s->heads * (size_t)s->head_dim;
    *run = (kv_run){.kv = kv, .sets = kv->sets};
    run->fresh = (size_t)s->batch * (size_t)s->tokens * row;
    run->cache = (size_t)s->batch * (size_t)s->cache_len * row;
    fa_spec spec = FA_SPEC_INIT(FA_OP_KV_UPDATE);
    spec.kv_update = *s;
    if (fa_compile(ctx, &spec, &run->kernel) != FA_OK) {
        bench_emit_missing(kv->name, "fajit", fa_last_error());
        return false;
    }
    if (s->angles == FA_ROPE_TABLES)
        bench_tables(run->tables, s->cache_len, s->head_dim);
    for (size_t i = 0; i < run->sets; i++)
        make_set(run, i);
    return true;
}

static void tear_down(kv_run *run)
{
    for (size_t i = 0; i < run->kv->sets; i++) {
        const fa_kv_update_args *a = &run->args[i].kv_update;
        gpu_free(a->k_new.data);
        gpu_free(a->v_new.data);
        if (i == 0 || !run->kv->one_cache) {
            gpu_free(a->cache_k.data);
            gpu_free(a->cache_v.data);
        }
        if (a->k_out.data)
            gpu_free(a->k_out.data);
        gpu_free((void *)(uintptr_t)a->positions);
        free(run->positions[i]);
    }
    for (int which = 0; which < 2 && run->tables[0]; which++)
        gpu_free(run->tables[which]);
    fa_kernel_release(run->kernel);
}

/* --- right before fast --- */

#define SAMPLES 64

/* One head of one token as it came into the cache; `index` is the token's among all. */
static bool head_is_right(const kv_run *run, size_t index, size_t head)
{
    const fa_kv_update_spec *s = &run->kv->spec;
    const fa_kv_update_args *a = &run->args[0].kv_update;
    const size_t heads = (size_t)s->heads, dim = (size_t)s->head_dim, half = dim / 2;
    const size_t row = dim * bench_dtype_bytes(s->dtype), batch = index / (size_t)s->tokens;
    const int32_t position = run->positions[0][index];
    const size_t from = (index * heads + head) * row;
    const size_t to = ((batch * (size_t)s->cache_len + (size_t)position) * heads + head) * row;
    const size_t plane = run->cache * bench_dtype_bytes(s->dtype);
    const char *k_out = s->in_place ? a->cache_k.data : a->k_out.data;
    const char *v_out = s->in_place ? a->cache_v.data : k_out + plane;
    char in[2][4096], out[2][4096];
    gpu_download(in[0], (const char *)a->k_new.data + from, row);
    gpu_download(in[1], (const char *)a->v_new.data + from, row);
    gpu_download(out[0], k_out + to, row);
    gpu_download(out[1], v_out + to, row);
    bool right = memcmp(in[1], out[1], row) == 0;
    for (size_t i = 0; i < dim; i++) {
        const bool pairs = s->rotation == FA_KV_ROTATE_INTERLEAVED;
        const size_t j = pairs ? i / 2 : i % half, other = pairs ? i ^ 1 : (i + half) % dim;
        const bool first = pairs ? i % 2 == 0 : i < half;
        const double angle = bench_angle(position, (int32_t)j, s->head_dim);
        const double x = bench_load(s->dtype, in[0], i), y = bench_load(s->dtype, in[0], other);
        const double want = x * cos(angle) + (first ? -y : y) * sin(angle);
        const double rounding = s->dtype == FA_F32 ? 1e-5 : 0x1p-8;
        right &= fabs(bench_load(s->dtype, out[0], i) - want) <= 1e-5 + rounding * fabs(want);
    }
    return right;
}

/* Not in place: an entry that no token came to. */
static bool copy_is_right(const kv_run *run, size_t entry)
{
    const fa_kv_update_spec *s = &run->kv->spec;
    const fa_kv_update_args *a = &run->args[0].kv_update;
    const size_t row = (size_t)(s->heads * s->head_dim) * bench_dtype_bytes(s->dtype);
    const size_t b = entry / (size_t)s->cache_len;
    char in[8192], out[8192];
    if (row > sizeof in)
        bench_die("rows of %zu bytes", row);
    for (int32_t n = 0; n < s->tokens; n++)
        if ((size_t)run->positions[0][b * (size_t)s->tokens + (size_t)n] ==
            entry % (size_t)s->cache_len)
            return true;
    gpu_download(in, (const char *)a->cache_k.data + entry * row, row);
    gpu_download(out, (const char *)a->k_out.data + entry * row, row);
    return memcmp(in, out, row) == 0;
}

/* Launches once on the first set and looks at heads drawn at random. */
static bool result_is_right(const kv_run *run, gpu_stream stream)
{
    const fa_kv_update_spec *s = &run->kv->spec;
    uint64_t seed = 7;
    bench_check(fa_launch(run->kernel, &run->args[0], stream), run->kv->name);
    gpu_synchronize(stream, NULL);
    bool right = true;
    for (size_t i = 0; i < SAMPLES && right; i++) {
        const size_t index = bench_random(&seed) % ((size_t)s->batch * (size_t)s->tokens);
        right = head_is_right(run, index, bench_random(&seed) % (size_t)s->heads);
        if (right && !s->in_place)
            right =
                copy_is_right(run, bench_random(&seed) % ((size_t)s->batch * (size_t)s->cache_len));
    }
    if (!right)
        bench_emit_missing(run->kv->name, "fajit", "wrong result");
    return right;
}

/* --- measuring --- */

/* New values are read and written; not in place, the other entries too. */
static double floor_bytes(const kv_run *run)
{
    const fa_kv_update_spec *s = &run->kv->spec;
    const double bytes = (double)bench_dtype_bytes(s->dtype), fresh = (double)run->fresh * bytes;
    double moved = 4 * fresh + (double)s->batch * s->tokens * 4;
    if (!s->in_place)
        moved += 4 * ((double)run->cache * bytes - fresh);
    if (s->angles == FA_ROPE_TABLES)
        moved += (double)s->batch * s->tokens * s->head_dim * 4;
    return moved;
}

static void run_case(fa_context *ctx, const kv_case *kv, bool small, bool quick, double gb_per_s,
                     gpu_stream stream)
{
    const fa_kv_update_spec *s = &kv->spec;
    kv_run run;
    if (!set_up(&run, ctx, kv))
        return;
    bench_op op = {.name = kv->name,
                   .kernel = run.kernel,
                   .launch = launch,
                   .user = &run,
                   .sets = &run.sets,
                   .floor_bytes = floor_bytes(&run)};
    snprintf(op.sizes, sizeof op.sizes, "[%d,%d,%d,%d,%d]", s->batch, s->tokens, s->cache_len,
             s->heads, s->head_dim);
    if (result_is_right(&run, stream))
        (small ? bench_op_small : bench_op_large)(&op, quick, gb_per_s, stream);
    tear_down(&run);
}

static const fa_kv_update_spec canonical = {.rotation = FA_KV_ROTATE_INTERLEAVED,
                                            .angles = FA_ROPE_TABLES,
                                            .head_dim = 32,
                                            .batch = 2,
                                            .tokens = 16,
                                            .heads = 4,
                                            .cache_len = 128};
static const fa_kv_update_spec large = {.rotation = FA_KV_ROTATE_INTERLEAVED,
                                        .in_place = true,
                                        .head_dim = 128,
                                        .batch = 8,
                                        .tokens = 1024,
                                        .heads = 8,
                                        .cache_len = 8192};
static const fa_kv_update_spec decode = {.dtype = FA_BF16,
                                         .rotation = FA_KV_ROTATE_HALF,
                                         .in_place = true,
                                         .head_dim = 128,
                                         .batch = 64,
                                         .tokens = 1,
                                         .heads = 8,
                                         .cache_len = 4096};

static void run_all(fa_context *ctx, bool quick, const char *only, double gb_per_s,
                    gpu_stream stream)
{
    kv_case cases[] = {
        {"kv_canonical_f32_stacked", canonical, 64, false},
        {"kv_canonical_f32_in", canonical, 64, false},
        {"kv_large_f32_tables_in", large, 2, false},
        {"kv_large_f32_computed_in", large, 2, false},
        {"kv_large_f32_tables_in_unique", large, 2, false},
        {"kv_decode_bf16_computed_in", decode, 32, true},
        {"kv_decode_bf16_tables_in", decode, 32, true},
        {"kv_large_f32_computed_in_unique", large, 2, false},
        {"kv_one_row_f32_tables_in", large, 2, false},
    };
    cases[1].spec.in_place = true;
    cases[2].spec.angles = cases[4].spec.angles = cases[6].spec.angles = FA_ROPE_TABLES;
    cases[4].spec.unique = cases[7].spec.unique = true;
    cases[8].spec.angles = FA_ROPE_TABLES;
    cases[8].spec.tokens *= cases[8].spec.batch; /* as many tokens, of which each block sees all */
    cases[8].spec.batch = 1;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (!bench_wanted(only, cases[i].name))
            continue;
        const bool small = cases[i].sets > 2;
        if (quick && !small)
            cases[i].spec.tokens /= 8;
        run_case(ctx, &cases[i], small, quick, gb_per_s, stream);
    }
}

int main(int argc, char **argv)
{
    return bench_op_main(argc, argv, "bench_kv_update", "kv_update", run_all);
}
