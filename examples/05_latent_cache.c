/* Multi-head latent attention (DeepSeek-V2) keeps, for each token, a latent and one rotary key that
 * all heads share, instead of the keys and values of every head. Prefill: the hidden states of a
 * prompt go down to latents, which are normalized and written with their rotated keys into a cache
 * whose rows are [latent | rotary key]. Decode: one token more, then the whole cache is expanded to
 * the keys and values that attention reads. Both are checked against a computation on the host in
 * double precision. Without a GPU nothing is launched.
 * SPDX-License-Identifier: MIT */
#include <fajit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpu.h"

#define CHECK(call)                                                                                \
    do {                                                                                           \
        fa_status status_ = (call);                                                                \
        if (status_ != FA_OK) {                                                                    \
            fprintf(stderr, "%s: %s: %s\n", #call, fa_status_name(status_), fa_last_error());      \
            exit(status_ == FA_ERR_NVRTC_MISSING ? 77 : 1);                                        \
        }                                                                                          \
    } while (0)

/* A small layer: M model, R latent, G heads of D, Dr rotary. A row of the cache has R + Dr. */
enum { M = 128, R = 32, G = 4, D = 16, DR = 8, PROMPT = 20, CACHE = 24, ROW = R + DR, LEN = 21 };
#define EPS 1e-6

typedef struct layer {
    float hidden[LEN * M], rope[LEN * DR], w_down[M * R], norm[R], w_up_k[R * G * D],
        w_up_v[R * G * D];
} layer;

static void fill(float *x, int count, int salt, double scale)
{
    for (int i = 0; i < count; i++)
        x[i] = (float)(scale * ((double)((salt * 71L + i) * 7919L % 2001) - 1000) * 1e-3);
}

static void fill_layer(layer *l)
{
    fill(l->hidden, LEN * M, 1, 1);
    fill(l->rope, LEN * DR, 2, 1);
    fill(l->w_down, M * R, 3, 0.1);
    fill(l->norm, R, 4, 1);
    fill(l->w_up_k, R * G * D, 5, 0.2);
    fill(l->w_up_v, R * G * D, 6, 0.2);
}

/* Device copies of the layer, and what the kernels keep. */
typedef struct memory {
    float *hidden, *rope, *w_down, *norm, *w_up_k, *w_up_v, *cache, *k, *v;
    int *positions;
} memory;

static float *upload(const float *x, int count)
{
    float *device = gpu_alloc(sizeof *x * (size_t)count);
    gpu_upload(device, x, sizeof *x * (size_t)count);
    return device;
}

static memory upload_layer(const layer *l)
{
    int positions[LEN];
    memory m = {.hidden = upload(l->hidden, LEN * M),
                .rope = upload(l->rope, LEN * DR),
                .w_down = upload(l->w_down, M * R),
                .norm = upload(l->norm, R),
                .w_up_k = upload(l->w_up_k, R * G * D),
                .w_up_v = upload(l->w_up_v, R * G * D),
                .cache = gpu_alloc(sizeof(float) * CACHE * ROW),
                .k = gpu_alloc(sizeof(float) * LEN * G * (D + DR)),
                .v = gpu_alloc(sizeof(float) * LEN * G * D),
                .positions = gpu_alloc(sizeof positions)};
    for (int i = 0; i < LEN; i++)
        positions[i] = i;
    gpu_upload(m.positions, positions, sizeof positions);
    return m;
}

static fa_kernel *compile(fa_context *ctx, fa_lowrank_kv_spec lowrank)
{
    fa_kernel *kernel = NULL;
    fa_spec spec = FA_SPEC_INIT(FA_OP_LOWRANK_KV);
    spec.lowrank_kv = lowrank;
    CHECK(fa_compile(ctx, &spec, &kernel));
    return kernel;
}

/* Tokens `first` to `first + count - 1` into the cache. One kernel serves prompts and single tokens. */
static void extend_cache(const fa_kernel *down, const memory *m, int first, int count)
{
    fa_args args = FA_ARGS_INIT(FA_OP_LOWRANK_KV);
    args.lowrank_kv = (fa_lowrank_kv_args){.hidden.data = m->hidden + first * M,
                                           .w_down = m->w_down,
                                           .norm_weight = m->norm,
                                           .k_rope.data = m->rope + first * DR,
                                           .latent = {.data = m->cache, .stride_token = ROW},
                                           .rope_out = {.data = m->cache + R, .stride_token = ROW},
                                           .positions = m->positions + first,
                                           .batch = 1,
                                           .seqlen = count,
                                           .cache_len = CACHE};
    CHECK(fa_launch(down, &args, NULL));
}

/* Keys [LEN, G, D + DR] and values [LEN, G, D] of the first `count` entries. The rotary keys were
 * rotated when they came in. */
static void expand_cache(const fa_kernel *up, const memory *m, int count)
{
    fa_args args = FA_ARGS_INIT(FA_OP_LOWRANK_KV);
    args.lowrank_kv = (fa_lowrank_kv_args){.latent = {.data = m->cache, .stride_token = ROW},
                                           .k_rope = {.data = m->cache + R, .stride_token = ROW},
                                           .w_up_k.data = m->w_up_k,
                                           .w_up_v.data = m->w_up_v,
                                           .k_out.data = m->k,
                                           .v_out.data = m->v,
                                           .batch = 1,
                                           .seqlen = count};
    CHECK(fa_launch(up, &args, NULL));
}

/* --- the same on the host --- */

static void make_latent(const layer *l, int n, double latent[R])
{
    double sum = 0;
    for (int r = 0; r < R; r++) {
        latent[r] = 0;
        for (int i = 0; i < M; i++)
            latent[r] += (double)l->hidden[n * M + i] * (double)l->w_down[i * R + r];
        sum += latent[r] * latent[r];
    }
    for (int r = 0; r < R; r++)
        latent[r] *= (double)l->norm[r] / sqrt(sum / R + EPS);
}

/* Element i of token n's rotary key: neighbours are a pair. */
static double rotated(const layer *l, int n, int i)
{
    const double angle = n * pow(10000.0, -2.0 * (i / 2) / DR);
    const double x = (double)l->rope[n * DR + i], y = (double)l->rope[n * DR + (i ^ 1)];
    return x * cos(angle) + (i % 2 ? y : -y) * sin(angle);
}

static bool is_wrong(double want, float have)
{
    return !(fabs(want - (double)have) <= 1e-4 + 1e-4 * fabs(want)); /* or NaN */
}

static int count_wrong(const layer *l, const memory *m)
{
    static float k[LEN * G * (D + DR)], v[LEN * G * D];
    int wrong = 0;
    gpu_download(k, m->k, sizeof k);
    gpu_download(v, m->v, sizeof v);
    for (int n = 0; n < LEN; n++) {
        double latent[R];
        make_latent(l, n, latent);
        for (int c = 0; c < G * D; c++) {
            double want_k = 0, want_v = 0;
            for (int r = 0; r < R; r++) {
                want_k += latent[r] * (double)l->w_up_k[r * G * D + c];
                want_v += latent[r] * (double)l->w_up_v[r * G * D + c];
            }
            wrong += is_wrong(want_k, k[(n * G + c / D) * (D + DR) + c % D]);
            wrong += is_wrong(want_v, v[n * G * D + c]);
        }
        for (int g = 0; g < G; g++)
            for (int i = 0; i < DR; i++)
                wrong += is_wrong(rotated(l, n, i), k[(n * G + g) * (D + DR) + D + i]);
    }
    return wrong;
}

static int run(const fa_kernel *down, const fa_kernel *up)
{
    static layer l;
    fill_layer(&l);
    const memory m = upload_layer(&l);
    extend_cache(down, &m, 0, PROMPT);            /* prefill */
    extend_cache(down, &m, PROMPT, LEN - PROMPT); /* decode */
    expand_cache(up, &m, LEN);
    gpu_synchronize(NULL, NULL);
    const int wrong = count_wrong(&l, &m);
    printf("%d tokens, %d numbers each in the cache instead of %d: %d wrong elements\n", LEN, ROW,
           2 * G * D, wrong);
    return wrong != 0;
}

int main(void)
{
    const char *why = NULL;
    const bool gpu = gpu_open(0, &why);
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    fa_context *ctx = NULL;
    options.offline = !gpu;
    options.arch = gpu ? NULL : "sm_90a";
    CHECK(fa_context_create(&options, &ctx));
    fa_kernel *down = compile(ctx, (fa_lowrank_kv_spec){.form = FA_LOWRANK_DOWN,
                                                        .norm = FA_ROPE_RMS_NORM,
                                                        .norm_eps = EPS,
                                                        .to_cache = true,
                                                        .rotation = FA_KV_ROTATE_INTERLEAVED,
                                                        .model_dim = M,
                                                        .rank = R,
                                                        .rope_dim = DR});
    fa_kernel *up = compile(
        ctx, (fa_lowrank_kv_spec){
                 .form = FA_LOWRANK_UP, .rank = R, .heads = G, .head_dim = D, .rope_dim = DR});
    const int failed = gpu ? run(down, up) : 0;
    if (!gpu)
        printf("not launched: %s\n", why);
    fa_kernel_release(down);
    fa_kernel_release(up);
    fa_context_destroy(ctx);
    return failed;
}
