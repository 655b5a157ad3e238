/* Running an oracle's case on a device and looking at everything it left. */
#ifndef GPU_CASE_H
#define GPU_CASE_H

#include <stdio.h>

#include "gpu_fixture.h"
#include "oracle/oracle.h"

#define CASE_ZONE 256
#define CASE_ZONE_BYTE 0xa5

/* A case on the device: each tensor between red zones, `shift` elements off a multiple of 256. */
typedef struct gpu_case {
    const fa_oracle *oracle;
    oracle_case c;
    unsigned char *memory[16], *back[16]; /* back: what was downloaded last */
    size_t bytes[16];
    int shift[16];
    unsigned char *workspace; /* zero before the first launch, between red zones */
    size_t workspace_bytes;
    char shape[160]; /* of the launch, for messages */
} gpu_case;

static inline void gpu_case_make(gpu_case *g, const fa_spec *spec, const fa_spec *sizes,
                                 const int64_t *extra, uint64_t seed)
{
    char why[256] = "";
    *g = (gpu_case){.oracle = oracle_find(spec->op)};
    cr_assert_not_null(g->oracle);
    cr_assert(g->oracle->make_case(spec, sizes, extra, seed, &g->c, why, sizeof why), "%s", why);
    g->oracle->expect(&g->c);
}

static inline size_t gpu_case_offset(const gpu_case *g, size_t i)
{
    const oracle_tensor *t = &g->c.tensor[i];
    return CASE_ZONE + (t->count ? (size_t)g->shift[i] * (t->bytes / t->count) : 0);
}

static inline void gpu_case_upload(gpu_case *g)
{
    void *data[16] = {0};
    for (size_t i = 0; i < g->c.tensor_count; i++) {
        const oracle_tensor *t = &g->c.tensor[i];
        const size_t offset = gpu_case_offset(g, i);
        if (!g->memory[i]) {
            g->bytes[i] = t->bytes + CASE_ZONE + offset;
            g->memory[i] = gpu_alloc(g->bytes[i]);
        }
        gpu_fill(g->memory[i], CASE_ZONE_BYTE, g->bytes[i]);
        if (t->bytes)
            gpu_upload(g->memory[i] + offset, t->host, t->bytes);
        data[i] = g->memory[i] + offset;
    }
    g->oracle->bind(&g->c, data);
}

static inline void gpu_case_download(gpu_case *g)
{
    for (size_t i = 0; i < g->c.tensor_count; i++) {
        if (!g->back[i])
            g->back[i] = malloc(g->bytes[i]);
        cr_assert_not_null(g->back[i]);
        gpu_download(g->back[i], g->memory[i], g->bytes[i]);
    }
}

static inline size_t gpu_case_index(const gpu_case *g, const char *name)
{
    for (size_t i = 0; i < g->c.tensor_count; i++)
        if (strcmp(g->c.tensor[i].name, name) == 0)
            return i;
    cr_assert_fail("no tensor %s", name);
    return 0;
}

/* A tensor on the host: of float32, and how many elements it has. */
static inline float *floats_of(gpu_case *g, const char *name)
{
    return g->c.tensor[gpu_case_index(g, name)].host;
}

static inline size_t count_of(gpu_case *g, const char *name)
{
    return g->c.tensor[gpu_case_index(g, name)].count;
}

/* A tensor as it came back. */
static inline void *gpu_case_at(const gpu_case *g, size_t i)
{
    return g->back[i] + gpu_case_offset(g, i);
}

static inline void *gpu_case_result(const gpu_case *g, const char *name)
{
    return gpu_case_at(g, gpu_case_index(g, name));
}

/* A copy of that, to be freed. */
static inline void *gpu_case_keep(const gpu_case *g, const char *name)
{
    const size_t i = gpu_case_index(g, name);
    void *copy = malloc(g->c.tensor[i].bytes);
    cr_assert_not_null(copy);
    return memcpy(copy, gpu_case_at(g, i), g->c.tensor[i].bytes);
}

/* What the launch asks for, once for all launches of the case. */
static inline void gpu_case_give_workspace(gpu_case *g, const fa_kernel *kernel)
{
    size_t bytes = 0;
    cr_assert_eq(fa_workspace_size(kernel, &g->c.args, &bytes), FA_OK, "%s", fa_last_error());
    if (!bytes || g->workspace)
        return;
    g->workspace = gpu_alloc(bytes + 2 * CASE_ZONE);
    g->workspace_bytes = bytes;
    gpu_fill(g->workspace, CASE_ZONE_BYTE, bytes + 2 * CASE_ZONE);
    gpu_fill(g->workspace + CASE_ZONE, 0, bytes);
    g->c.args.workspace = g->workspace + CASE_ZONE;
    g->c.args.workspace_bytes = bytes;
}

static inline void gpu_case_launch(gpu_case *g, const fa_kernel *kernel)
{
    const char *why = NULL;
    gpu_case_give_workspace(g, kernel);
    cr_assert_eq(fa_launch(kernel, &g->c.args, NULL), FA_OK, "%s", fa_last_error());
    cr_assert(gpu_synchronize(NULL, &why), "the kernel failed: %s", why);
    gpu_case_download(g);
}

/* Captures so many launches of what was uploaded. */
static inline gpu_graph gpu_case_capture(gpu_case *g, const fa_kernel *kernel, gpu_stream stream,
                                         int launches)
{
    gpu_case_give_workspace(g, kernel);
    gpu_capture_begin(stream);
    for (int i = 0; i < launches; i++)
        OK(fa_launch(kernel, &g->c.args, stream));
    gpu_graph graph = gpu_capture_end(stream);
    cr_assert_not_null(graph);
    return graph;
}

/* Replays the graph one time after another, from outputs that are poisoned again. */
static inline void gpu_case_replay(gpu_case *g, gpu_graph graph, gpu_stream stream, int times)
{
    const char *why = NULL;
    gpu_case_upload(g);
    for (int i = 0; i < times; i++)
        gpu_graph_launch(graph, stream);
    cr_assert(gpu_synchronize(stream, &why), "the kernel failed: %s", why);
    gpu_case_download(g);
}

/* Elements of an output that are wrong, or bytes of an input that changed. */
static inline size_t gpu_case_wrong(const gpu_case *g, size_t i, oracle_verdict *v)
{
    const oracle_tensor *t = &g->c.tensor[i];
    const unsigned char *result = gpu_case_at(g, i);
    *v = (oracle_verdict){0};
    if (t->output)
        *v = oracle_compare(&g->c, t, result);
    else
        for (size_t k = 0; k < t->bytes; k++)
            v->bad += result[k] != ((const unsigned char *)t->host)[k];
    return v->bad;
}

/* Whether a red zone of a tensor was written: `at` is the byte, counted from its beginning. */
static inline bool gpu_case_zone_written(const gpu_case *g, size_t i, ptrdiff_t *at)
{
    const size_t begin = gpu_case_offset(g, i);
    for (size_t k = 0; k < g->bytes[i]; k++) {
        k += k == begin ? g->c.tensor[i].bytes : 0;
        *at = (ptrdiff_t)k - (ptrdiff_t)begin;
        if (k < g->bytes[i] && g->back[i][k] != CASE_ZONE_BYTE)
            return true;
    }
    return false;
}

static inline void gpu_case_check_workspace(const gpu_case *g, const char *kernel)
{
    unsigned char zone[CASE_ZONE];
    for (int end = 0; end < 2 && g->workspace_bytes; end++) {
        gpu_download(zone, g->workspace + (end ? CASE_ZONE + g->workspace_bytes : 0), CASE_ZONE);
        for (size_t k = 0; k < CASE_ZONE; k++)
            cr_assert_eq(zone[k], CASE_ZONE_BYTE,
                         "%s, launched with %s, seed %llu: red zone %s the workspace written",
                         kernel, g->shape, (unsigned long long)g->c.seed,
                         end ? "behind" : "in front of");
    }
}

static inline void gpu_case_check(gpu_case *g, const fa_kernel *kernel)
{
    fa_kernel_info_t info = {.size = sizeof info};
    OK(fa_kernel_info(kernel, &info));
    gpu_case_check_workspace(g, info.name);
    for (size_t i = 0; i < g->c.tensor_count; i++) {
        const oracle_tensor *t = &g->c.tensor[i];
        oracle_verdict v;
        ptrdiff_t at = 0;
        cr_assert_not(gpu_case_zone_written(g, i, &at),
                      "%s, launched with %s, seed %llu: red zone of %s written, byte %td from its "
                      "beginning",
                      info.name, g->shape, (unsigned long long)g->c.seed, t->name, at);
        cr_assert_eq(
            gpu_case_wrong(g, i, &v), 0,
            "%s, launched with %s, seed %llu: %s: %zu of %zu are wrong; the first is %zu: %.9g, "
            "not %.9g (atol %g, rtol %g)",
            info.name, g->shape, (unsigned long long)g->c.seed, t->name, v.bad, t->count,
            v.first_bad, v.actual, v.expected, g->c.atol, g->c.rtol);
    }
}

static inline void gpu_case_run(gpu_case *g, const fa_kernel *kernel)
{
    gpu_case_upload(g);
    gpu_case_launch(g, kernel);
    gpu_case_check(g, kernel);
}

static inline void gpu_case_free(gpu_case *g)
{
    for (size_t i = 0; i < g->c.tensor_count; i++) {
        if (g->memory[i])
            gpu_free(g->memory[i]);
        free(g->back[i]);
    }
    if (g->workspace)
        gpu_free(g->workspace);
    g->oracle->free_case(&g->c);
}

#endif
