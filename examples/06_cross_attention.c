/* The cross-attention of a decoder to its encoder: keys and values of the source are computed once,
 * then each step of the decoder brings one token a sequence and uses them. The weights come from a
 * .safetensors file, as those of a published model would; this one is written here first. Every
 * step is checked against a computation on the host in double precision, and the last one against
 * the kernel that computes all of it at once. Without a GPU nothing is launched.
 * SPDX-License-Identifier: MIT */
#include <fajit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu.h"
#include "safetensors.h"

#define CHECK(call)                                                                                \
    do {                                                                                           \
        fa_status status_ = (call);                                                                \
        if (status_ != FA_OK) {                                                                    \
            fprintf(stderr, "%s: %s: %s\n", #call, fa_status_name(status_), fa_last_error());      \
            exit(status_ == FA_ERR_NVRTC_MISSING ? 77 : 1);                                        \
        }                                                                                          \
    } while (0)

/* A small layer: B sequences, H heads of D, which make up the C of the model. */
enum { B = 2, SOURCE = 20, STEPS = 6, H = 4, D = 16, C = H * D };

/* Matrices are [out, in], as layers store them. */
enum { W_Q, W_K, W_V, W_OUT, B_Q, B_K, B_V, B_OUT, WEIGHTS };
static const char *const names[WEIGHTS] = {
    "encoder_attn.q_proj.weight",   "encoder_attn.k_proj.weight", "encoder_attn.v_proj.weight",
    "encoder_attn.out_proj.weight", "encoder_attn.q_proj.bias",   "encoder_attn.k_proj.bias",
    "encoder_attn.v_proj.bias",     "encoder_attn.out_proj.bias"};

/* On the host, and as device memory, which nothing here reads. */
typedef struct memory {
    float weights[WEIGHTS][C * C]; /* of a bias the first C */
    float source[B * SOURCE * C], token[B * C];
    float k[B * SOURCE * C], v[B * SOURCE * C], out[B * C];
} memory;

static void fill(float *x, int count, int salt, double scale)
{
    for (int i = 0; i < count; i++)
        x[i] = (float)(scale * ((double)((salt * 71L + i) * 7919L % 2001) - 1000) * 1e-3);
}

/* --- the weights in their file --- */

static void write_weights(const char *path)
{
    static float data[WEIGHTS][C * C];
    safetensor tensors[WEIGHTS];
    for (int i = 0; i < WEIGHTS; i++) {
        fill(data[i], C * C, i, 0.3);
        tensors[i] = (safetensor){.name = names[i],
                                  .dtype = "F32",
                                  .shape = {C, C},
                                  .rank = i < B_Q ? 2 : 1,
                                  .data = data[i]};
    }
    if (!safetensors_write(path, tensors, WEIGHTS)) {
        perror(path);
        exit(1);
    }
}

static void read_weights(const char *path, memory *host)
{
    safetensors file;
    if (!safetensors_read(&file, path)) {
        fprintf(stderr, "%s: %s\n", path, file.problem);
        exit(1);
    }
    for (int i = 0; i < WEIGHTS; i++) {
        const safetensor *t = safetensors_find(&file, names[i]);
        if (!t || strcmp(t->dtype, "F32") != 0 || t->rank != (i < B_Q ? 2 : 1) ||
            t->shape[0] != C || (i < B_Q && t->shape[1] != C)) {
            fprintf(stderr, "%s: %s is absent, or not as this layer has it\n", path, names[i]);
            exit(1);
        }
        memcpy(host->weights[i], t->data, t->bytes);
    }
    safetensors_close(&file);
}

/* --- the kernels --- */

enum { KEYS, QUERIES, WHOLE, KERNELS };

static void compile_all(fa_context *ctx, fa_kernel *kernel[KERNELS])
{
    static const fa_cross_form forms[KERNELS] = {FA_CROSS_KEYS, FA_CROSS_QUERIES, FA_CROSS_WHOLE};
    for (int i = 0; i < KERNELS; i++) {
        fa_spec spec = FA_SPEC_INIT(FA_OP_CROSS_ATTENTION);
        spec.cross_attention = (fa_cross_attention_spec){.form = forms[i],
                                                         .bias = true,
                                                         .bias_out = true,
                                                         .rotation = FA_KV_ROTATE_INTERLEAVED,
                                                         .model_dim = C,
                                                         .heads_q = H,
                                                         .heads_k = H,
                                                         .head_dim = D,
                                                         .seqlen_q = 1}; /* a token each step */
        CHECK(fa_compile(ctx, &spec, &kernel[i]));
    }
}

/* Of any of the kernels: none looks at what it does not need. `m` is device memory. */
static fa_args make_args(const fa_kernel *kernel, memory *m)
{
    fa_args args = FA_ARGS_INIT(FA_OP_CROSS_ATTENTION);
    args.cross_attention = (fa_cross_attention_args){.x_query.data = m->token,
                                                     .x_kv.data = m->source,
                                                     .out.data = m->out,
                                                     .k.data = m->k,
                                                     .v.data = m->v,
                                                     .w_q.data = m->weights[W_Q],
                                                     .w_k.data = m->weights[W_K],
                                                     .w_v.data = m->weights[W_V],
                                                     .w_out.data = m->weights[W_OUT],
                                                     .b_q = m->weights[B_Q],
                                                     .b_k = m->weights[B_K],
                                                     .b_v = m->weights[B_V],
                                                     .b_out = m->weights[B_OUT],
                                                     .batch = B,
                                                     .seqlen_k = SOURCE};
    CHECK(fa_workspace_size(kernel, &args, &args.workspace_bytes));
    if (args.workspace_bytes > 0) {
        args.workspace = gpu_alloc(args.workspace_bytes);
        gpu_fill(args.workspace, 0, args.workspace_bytes); /* before its first use */
    }
    return args;
}

/* --- the same on the host --- */

/* y = W x + b */
static void project(const float *w, const float *b, const float *x, double y[C])
{
    for (int r = 0; r < C; r++) {
        y[r] = (double)b[r];
        for (int c = 0; c < C; c++)
            y[r] += (double)w[r * C + c] * (double)x[c];
    }
}

/* Neighbours are a pair. */
static void rotate(double x[C], int position)
{
    for (int i = 0; i < C; i += 2) {
        const double angle = position * pow(10000.0, -(double)(i % D) / D), a = x[i], b = x[i + 1];
        x[i] = a * cos(angle) - b * sin(angle);
        x[i + 1] = b * cos(angle) + a * sin(angle);
    }
}

/* The heads' outputs for one query, rounded to float32 as `project` takes them. */
static void attend(const double q[C], const double k[SOURCE][C], const double v[SOURCE][C],
                   float out[C])
{
    for (int h = 0; h < C; h += D) {
        double weight[SOURCE], sum = 0;
        for (int j = 0; j < SOURCE; j++) {
            double dot = 0;
            for (int d = h; d < h + D; d++)
                dot += q[d] * k[j][d];
            sum += weight[j] = exp(dot / sqrt(D));
        }
        for (int d = h; d < h + D; d++) {
            double mean = 0;
            for (int j = 0; j < SOURCE; j++)
                mean += weight[j] / sum * v[j][d];
            out[d] = (float)mean;
        }
    }
}

/* Of the outputs of a step. */
static int count_wrong(const memory *m, int step)
{
    int wrong = 0;
    for (int b = 0; b < B; b++) {
        double q[C], k[SOURCE][C], v[SOURCE][C], out[C];
        float heads[C];
        for (int j = 0; j < SOURCE; j++) {
            const float *x = &m->source[(b * SOURCE + j) * C];
            project(m->weights[W_K], m->weights[B_K], x, k[j]);
            project(m->weights[W_V], m->weights[B_V], x, v[j]);
            rotate(k[j], j);
        }
        project(m->weights[W_Q], m->weights[B_Q], &m->token[b * C], q);
        rotate(q, step);
        attend(q, k, v, heads);
        project(m->weights[W_OUT], m->weights[B_OUT], heads, out);
        for (int c = 0; c < C; c++)
            wrong += !(fabs(out[c] - (double)m->out[b * C + c]) <= 1e-5 * (1 + fabs(out[c])));
    }
    return wrong;
}

/* --- decoding --- */

static int decode(fa_kernel *const kernel[KERNELS], memory *host)
{
    memory *const m = gpu_alloc(sizeof *m);
    fa_args args[KERNELS];
    int wrong = 0, wrong_whole = 0;
    for (int i = 0; i < KERNELS; i++)
        args[i] = make_args(kernel[i], m);
    gpu_upload(m, host, offsetof(memory, token));
    CHECK(fa_launch(kernel[KEYS], &args[KEYS], NULL)); /* once for all steps */
    for (int step = 0; step < STEPS; step++) {
        fill(host->token, B * C, WEIGHTS + 1 + step, 1);
        gpu_upload(m->token, host->token, sizeof host->token);
        args[QUERIES].cross_attention.position_offset_q = step;
        CHECK(fa_launch(kernel[QUERIES], &args[QUERIES], NULL));
        gpu_synchronize(NULL, NULL);
        gpu_download(host->out, m->out, sizeof host->out);
        wrong += count_wrong(host, step);
    }
    args[WHOLE].cross_attention.position_offset_q = STEPS - 1; /* the last step again */
    CHECK(fa_launch(kernel[WHOLE], &args[WHOLE], NULL));
    gpu_synchronize(NULL, NULL);
    gpu_download(host->out, m->out, sizeof host->out);
    wrong_whole = count_wrong(host, STEPS - 1);
    printf(
        "%d steps of %d sequences on keys of %d tokens: %d wrong elements; computed as a whole: "
        "%d\n",
        STEPS, B, SOURCE, wrong, wrong_whole);
    for (int i = 0; i < KERNELS; i++)
        gpu_free(args[i].workspace);
    gpu_free(m);
    return wrong || wrong_whole;
}

int main(void)
{
    static memory host;
    char path[] = "/tmp/fajit-weights-XXXXXX";
    const char *why = NULL;
    const bool gpu = gpu_open(0, &why);
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    fa_context *ctx = NULL;
    fa_kernel *kernel[KERNELS];
    close(mkstemp(path));
    write_weights(path);
    read_weights(path, &host);
    unlink(path);
    fill(host.source, B * SOURCE * C, WEIGHTS, 1);
    options.offline = !gpu;
    options.arch = gpu ? NULL : "sm_90a";
    CHECK(fa_context_create(&options, &ctx));
    compile_all(ctx, kernel);
    const int failed = gpu ? decode(kernel, &host) : 0;
    if (!gpu)
        printf("not launched: %s\n", why);
    for (int i = 0; i < KERNELS; i++)
        fa_kernel_release(kernel[i]);
    fa_context_destroy(ctx);
    return failed;
}
