/* Runs every case (or those named) on device 0 and writes what came of it:
 *
 *     conformance_record ROOT FOLDER [CASE]...
 *
 * ROOT is the checkout. FOLDER gets CASE.bin, for ROOT/tests/conformance/recorded, and for a closer
 * look CASE.in and CASE.raw, every word of the inputs and of the outputs. scripts/record-conformance says where to run it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"
#include "gpu.h"

static bool write_raw(const char *path, const uint32_t *words, size_t count)
{
    FILE *file = fopen(path, "wb");
    if (!file)
        return false;
    const bool ok = fwrite(words, sizeof *words, count, file) == count;
    return fclose(file) == 0 && ok;
}

static bool write_all(const char *folder, const conform_case *c, const uint32_t *in,
                      const uint32_t *out, conform_record *r)
{
    char path[4096];
    r->data = calloc(r->words, sizeof *r->data);
    if (!r->data)
        return false;
    conform_record_data(c, out, r->data);
    snprintf(path, sizeof path, "%s/%s.bin", folder, c->name);
    bool ok = conform_record_write(path, c, r);
    snprintf(path, sizeof path, "%s/%s.in", folder, c->name);
    ok = write_raw(path, in, (size_t)conform_rows(c) * conform_words_in(c)) && ok;
    snprintf(path, sizeof path, "%s/%s.raw", folder, c->name);
    ok = write_raw(path, out, (size_t)conform_rows(c) * conform_words_out(c)) && ok;
    if (!ok)
        fprintf(stderr, "%s: cannot write %s\n", c->name, path);
    conform_record_free(r);
    return ok;
}

static bool record(fa_context *ctx, const char *root, const char *folder, const conform_case *c,
                   const conform_record *device)
{
    const char *why = "";
    conform_record r = *device;
    const size_t rows = conform_rows(c);
    char *source = conform_source(root, c);
    uint32_t *in = calloc(rows * conform_words_in(c), sizeof *in),
             *out = calloc(rows * conform_words_out(c), sizeof *out);
    bool ok = source && in && out && c->least_sm <= r.sm;
    if (!ok) {
        fprintf(stderr, "%s: no source below %s, no memory, or the device is below sm_%d\n",
                c->name, root, (int)c->least_sm);
    } else {
        conform_inputs(c, in);
        ok = conform_execute(ctx, c, source, in, out, &why) == FA_OK;
        if (!ok)
            fprintf(stderr, "%s: %s\n", c->name, why);
    }
    if (ok) {
        conform_record_identify(c, source, in, &r);
        ok = write_all(folder, c, in, out, &r);
    }
    printf("%s: %s\n", c->name, ok ? "recorded" : "FAILED");
    free(source);
    free(in);
    free(out);
    return ok;
}

static bool describe(fa_context *ctx, conform_record *r)
{
    fa_context_info_t info = {.size = sizeof info};
    fa_device_info_t device = {.size = sizeof device};
    if (fa_context_info(ctx, &info) != FA_OK || fa_device_info(0, &device) != FA_OK)
        return false;
    *r = (conform_record){.sm = device.compute_major * 10 + device.compute_minor,
                          .nvrtc_version = info.nvrtc_version};
    snprintf(r->device, sizeof r->device, "sm_%d %.100s", (int)r->sm, device.name);
    return true;
}

int main(int argc, char **argv)
{
    const char *why = "";
    int failed = 0;
    fa_context *ctx = NULL;
    conform_record device;
    if (argc < 3) {
        fprintf(stderr, "usage: %s ROOT FOLDER [CASE]...\n", argv[0]);
        return 2;
    }
    if (!gpu_open(0, &why)) {
        fprintf(stderr, "no device: %s\n", why);
        return 77;
    }
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    if (fa_context_create(&options, &ctx) != FA_OK || !describe(ctx, &device)) {
        fprintf(stderr, "%s\n", fa_last_error());
        return 1;
    }
    for (size_t i = 0; i < conform_case_count; i++) {
        bool asked = argc == 3;
        for (int a = 3; a < argc; a++)
            asked = asked || strcmp(argv[a], conform_cases[i].name) == 0;
        if (asked)
            failed += !record(ctx, argv[1], argv[2], &conform_cases[i], &device);
    }
    for (int a = 3; a < argc; a++)
        if (!conform_find(argv[a])) {
            fprintf(stderr, "there is no case %s\n", argv[a]);
            failed++;
        }
    fa_context_destroy(ctx);
    return failed != 0;
}
