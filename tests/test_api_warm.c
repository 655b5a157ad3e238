/* Warm-up over specs and manifests. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fixture.h"

/* --- warm-up and manifests --- */

typedef struct progress {
    size_t calls, last_done, stop_at;
    bool in_order;
} progress;

static bool on_progress(void *user, size_t done, size_t total, size_t index,
                        const fa_warm_result *result)
{
    progress *p = user;
    cr_expect_lt(index, total);
    cr_expect_not_null(result);
    p->in_order = (p->calls == 0 || p->in_order) && done == p->last_done + 1;
    p->last_done = done;
    p->calls++;
    return p->stop_at == 0 || p->calls < p->stop_at;
}

#define WARM 6

static void warm_specs(scale_spec *s, fa_spec *specs)
{
    for (int i = 0; i < WARM; i++) {
        scale_spec_init(&s[i], 100 + i);
        specs[i] = s[i].spec;
    }
}

Test(api_warm, warm_reports_every_entry)
{
    fixture f;
    scale_spec s[WARM];
    fa_spec specs[WARM];
    fa_warm_result results[WARM];
    fa_warm_report report;
    progress p = {0};
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    warm_specs(s, specs);
    specs[2].tmpl.source = "#error bad entry\n__global__ void scale() {}\n";
    specs[4].tmpl.entry = NULL;
    fa_warm_options options = {.size = sizeof options,
                               .jobs = 2,
                               .progress = on_progress,
                               .progress_user = &p,
                               .results = results,
                               .results_capacity = WARM};
    REFUSED(fa_warm(ctx, specs, WARM, &options, &report), FA_ERR_COMPILE, "bad entry");
    cr_expect_eq(p.calls, (size_t)WARM);
    cr_expect(p.in_order);
    cr_expect_eq(report.total, (size_t)WARM);
    cr_expect_eq(report.compiled, (size_t)WARM - 2);
    cr_expect_eq(report.failed, 2u);
    cr_expect_eq(results[2].status, FA_ERR_COMPILE);
    cr_expect_gt(strlen(results[2].error), 0u);
    cr_expect_eq(results[4].status, FA_ERR_NULL_POINTER);
    cr_expect_eq(results[0].status, FA_OK);
    cr_expect_eq(results[0].origin, FA_ORIGIN_COMPILED);

    warm_specs(s, specs);
    OK(fa_warm(ctx, specs, 2, NULL, &report));
    cr_expect_eq(report.from_memory, 2u);
    fa_stats stats = {.size = sizeof stats};
    OK(fa_stats_get(ctx, &stats));
    cr_expect_eq(stats.kernels_loaded, (uint64_t)WARM - 2);
    fa_context_destroy(ctx);
    cr_expect_eq(f.cuda->live("module"), 0);
    fixture_end(&f);
}

Test(api_warm, warm_can_be_cancelled)
{
    fixture f;
    scale_spec s[WARM];
    fa_spec specs[WARM];
    fa_warm_result results[WARM];
    fa_warm_report report;
    progress p = {.stop_at = 2};
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    f.nvrtc->set_latency_ms("nvrtcCompileProgram", 30);
    warm_specs(s, specs);
    fa_warm_options options = {.size = sizeof options,
                               .jobs = 1,
                               .progress = on_progress,
                               .progress_user = &p,
                               .results = results,
                               .results_capacity = WARM};
    EXPECT(fa_warm(ctx, specs, WARM, &options, &report), FA_ERR_CANCELLED);
    cr_expect_eq(results[WARM - 1].status, FA_ERR_CANCELLED);
    cr_expect_lt(f.nvrtc->calls("nvrtcCompileProgram"), WARM);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(api_warm, manifest_round_trip)
{
    fixture f;
    scale_spec s[WARM];
    fa_spec specs[WARM];
    fa_warm_report report;
    char path[400];
    fixture_begin(&f);
    snprintf(path, sizeof path, "%s/manifest with space.json", f.dir);
    fa_context *ctx = fixture_context();
    warm_specs(s, specs);
    OK(fa_warm(ctx, specs, WARM, NULL, NULL));
    fa_kernel_release(fixture_compile(ctx, 100)); /* asked for twice: one entry */
    s[0].spec.tmpl.source = "#error no\n__global__ void scale() {}\n";
    fa_kernel *kernel = NULL;
    EXPECT(fa_compile(ctx, &s[0].spec, &kernel), FA_ERR_COMPILE); /* failed: no entry */
    OK(fa_manifest_write(ctx, path));
    fa_context_destroy(ctx);

    ctx = fixture_context();
    OK(fa_warm_manifest(ctx, path, NULL, &report));
    cr_expect_eq(report.total, (size_t)WARM);
    cr_expect_eq(report.from_disk, (size_t)WARM, "another key than before");
    cr_expect_eq(report.compiled, 0u);
    OK(fa_seal(ctx));
    fa_kernel_release(fixture_compile(ctx, 103));
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(api_warm, F24_odd_characters_in_every_path)
{
    fixture f;
    char odd[400], library[800], manifest[800], command[PATH_MAX + 2000], path[PATH_MAX];
    fa_context_info_t info = {.size = sizeof info};
    fixture_begin(&f);
    snprintf(odd, sizeof odd, "%s/a b'c\"$HOME %%s\xc3\xa4\\", f.dir);
    cr_assert_eq(mkdir(odd, 0700), 0);
    fixture_path("libfake_nvrtc.so", path, sizeof path);
    snprintf(library, sizeof library, "%s/libnvrtc.so", odd);
    setenv("ODD", library, 1);
    snprintf(command, sizeof command, "cp '%s' \"$ODD\"", path);
    cr_assert_eq(system(command), 0);
    setenv("FAJIT_NVRTC_LIBRARY", library, 1);
    setenv("FAJIT_CACHE_DIR", odd, 1);
    fa_context *ctx = fixture_context();
    fa_kernel_release(fixture_compile(ctx, 1));
    OK(fa_context_info(ctx, &info));
    cr_expect_str_eq(info.nvrtc_path, library);
    cr_expect_str_eq(info.cache_dir, odd);
    cr_expect_eq(fixture_files(odd, ".fajit"), 1u);
    snprintf(manifest, sizeof manifest, "%s/manifest.json", odd);
    OK(fa_manifest_write(ctx, manifest));
    OK(fa_warm_manifest(ctx, manifest, NULL, NULL));
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(api_warm, manifests_that_cannot_be_read)
{
    fixture f;
    char path[400];
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    REFUSED(fa_warm_manifest(ctx, "/nonexistent/m.json", NULL, NULL), FA_ERR_IO, "/nonexistent");
    REFUSED(fa_manifest_write(ctx, "/nonexistent/m.json"), FA_ERR_IO, "/nonexistent");
    REFUSED(fa_warm_manifest(ctx, f.dir, NULL, NULL), FA_ERR_IO, f.dir);
    snprintf(path, sizeof path, "%s/m.json", f.dir);
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    fputs("{\"fajit_manifest\": 1, \"kernels\": [\n  {\"op\": \"rope\", \"dtipe\": \"f32\"}]}",
          file);
    fclose(file);
    REFUSED(fa_warm_manifest(ctx, path, NULL, NULL), FA_ERR_MANIFEST, "line 2");
    cr_expect(strstr(fa_last_error(), "dtipe"), "%s", fa_last_error());
    cr_expect_eq(f.nvrtc->calls("nvrtcCompileProgram"), 0);
    fa_context_destroy(ctx);
    fixture_end(&f);
}
