/* What the tests on a real device share. Without a device they are skipped, never passed. */
#ifndef GPU_FIXTURE_H
#define GPU_FIXTURE_H

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"
#include "gpu.h"

static inline fa_context *open_device_with(fixture *f, int device, const char *cache)
{
    const char *why = NULL;
    fixture_begin_with(f, "", "");
    if (cache && cache[0])
        setenv("FAJIT_CACHE_DIR", cache, 1);
    if (!gpu_open(device, &why)) {
        fixture_end(f);
        cr_skip_test("no device %d: %s", device, why ? why : "unknown reason");
    }
    return fixture_context();
}

/* Opens a device and a context of the library on it; skips the test without a device. Kernels come
 * from the cache that $FAJIT_TEST_CACHE names, where it does. */
static inline fa_context *open_device(fixture *f, int device)
{
    return open_device_with(f, device, getenv("FAJIT_TEST_CACHE"));
}

/* For tests that count compiles or look into the cache: it is empty. */
static inline fa_context *open_device_afresh(fixture *f, int device)
{
    return open_device_with(f, device, NULL);
}

/* FAJIT_TEST_SANITIZER names the tool of compute-sanitizer that the test runs under.
 *
 * For what a tool that watches the device changes by itself. */
static inline void skip_under_sanitizer(const char *why)
{
    if (getenv("FAJIT_TEST_SANITIZER"))
        cr_skip_test("%s", why);
}

/* For what that tool of compute-sanitizer takes too long to run. */
static inline void skip_under_tool(const char *name, const char *why)
{
    const char *tool = getenv("FAJIT_TEST_SANITIZER");
    if (tool && strcmp(tool, name) == 0)
        cr_skip_test("%s", why);
}

static inline void close_device(fixture *f, fa_context *ctx)
{
    fa_context_destroy(ctx);
    fixture_end(f);
}

static inline fa_kernel *compile(fa_context *ctx, const fa_template_spec *tmpl)
{
    fa_kernel *kernel = NULL;
    fa_spec spec = FA_SPEC_INIT(FA_OP_TEMPLATE);
    spec.tmpl = *tmpl;
    fa_status status = fa_compile(ctx, &spec, &kernel);
    const char *lacking = status ? strstr(fa_last_error(), "emulator does not implement") : NULL;
    if (lacking)
        cr_skip_test("%.*s", (int)strcspn(lacking, "\n"), lacking);
    cr_assert_eq(status, FA_OK, "%s: %s", fa_status_name(status), fa_last_error());
    return kernel;
}

/* --- the driver's own calls, by name --- */

static inline void *current_context(void)
{
    void *context = NULL;
    int (*get)(void **) = NULL;
    *(void **)&get = gpu_symbol("cuCtxGetCurrent");
    cr_assert(get && get(&context) == 0);
    return context;
}

static inline void set_current_context(void *context)
{
    int (*set)(void *) = NULL;
    *(void **)&set = gpu_symbol("cuCtxSetCurrent");
    cr_assert(set && set(context) == 0);
}

static inline size_t free_memory(void)
{
    size_t free_bytes = 0, total = 0;
    int (*info)(size_t *, size_t *) = NULL;
    *(void **)&info = gpu_symbol("cuMemGetInfo_v2");
    cr_assert(info && info(&free_bytes, &total) == 0);
    return free_bytes;
}

/* --- the small kernel of the fixture --- */

typedef struct run {
    float *x;
    scale_args a;
} run;

static inline void run_begin(run *r, uint32_t n)
{
    float *host = calloc(n, sizeof *host);
    cr_assert_not_null(host);
    for (uint32_t i = 0; i < n; i++)
        host[i] = (float)i;
    r->x = gpu_alloc(n * sizeof *host);
    gpu_upload(r->x, host, n * sizeof *host);
    scale_args_init(&r->a, r->x, n);
    free(host);
}

static inline void run_check(const run *r, float by)
{
    uint32_t n = r->a.n, bad = 0;
    float *host = calloc(n, sizeof *host);
    cr_assert_not_null(host);
    gpu_download(host, r->x, n * sizeof *host);
    for (uint32_t i = 0; i < n; i++)
        bad += host[i] != (float)i * by;
    cr_expect_eq(bad, 0u, "%u of %u wrong; x[1] = %g, not %g", bad, n, (double)host[1], (double)by);
    free(host);
}

static inline void run_end(run *r)
{
    gpu_free(r->x);
}

#endif
