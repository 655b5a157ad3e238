/* fajit info: what is installed here and where the caches are. */
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"
#include "cli_output.h"

/* What each part says of itself. */
typedef struct facts {
    fa_context *device_ctx, *offline_ctx;
    fa_context_info_t device, offline;
    char *no_device; /* why there is no device; NULL when there is one */
    char *no_cache;  /* why there is no writable cache directory; "" */
} facts;

static int gather(const cli *c, facts *f)
{
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;

    /* Not by cli_context_open: that there is no device is an answer here, not an error. */
    options.device = c->device >= 0 ? c->device : FA_DEVICE_CURRENT;
    options.no_disk_cache = true;
    f->device = (fa_context_info_t){.size = sizeof f->device};
    f->offline = (fa_context_info_t){.size = sizeof f->offline};
    fa_status status = fa_context_create(&options, &f->device_ctx);
    if (status == FA_OK)
        status = fa_context_info(f->device_ctx, &f->device);
    if (status)
        f->no_device = cli_copy(fa_last_error());
    int code = cli_context_open_caches(c, &f->offline_ctx, &f->no_cache);
    if (code)
        return code;
    status = fa_context_info(f->offline_ctx, &f->offline);
    return status ? cli_failed(status, "info") : CLI_OK;
}

static const char *version_text(int32_t version, char out[32])
{
    snprintf(out, 32, "%d.%d", version / 1000, version % 1000 / 10);
    return out;
}

static void add_device(cli_table *t, int32_t ordinal, const fa_device_info_t *d)
{
    cli_cell_int(t, ordinal);
    cli_cell_text(t, d->name);
    cli_cell_text(t, d->arch);
    cli_cell_int(t, d->multiprocessors);
    cli_cell_int(t, (int64_t)d->memory_bytes);
    cli_cell_int(t, d->smem_per_block_bytes);
}

static void list_devices(cli_table *t)
{
    static const char *const keys[] = {
        "device", "name", "arch", "multiprocessors", "memory_bytes", "smem_per_block_bytes", NULL};

    cli_table_begin(t, keys);
    for (int32_t i = 0;; i++) {
        fa_device_info_t d = {.size = sizeof d};
        if (fa_device_info(i, &d))
            return; /* past the last one; `driver` says so when there is no driver */
        add_device(t, i, &d);
    }
}

static void print_json(const facts *f, const cli_table *devices)
{
    char text[32];
    fa__buf out = {0};
    const fa_context_info_t *n = &f->offline, *d = &f->device;

    fa__buf_text(&out, "{");
    cli_json_text(&out, "version", fa_version());
    cli_json_key(&out, "nvrtc");
    fa__buf_text(&out, "{");
    cli_json_bool(&out, "found", n->nvrtc_version != 0);
    cli_json_text(&out, "version", n->nvrtc_version ? version_text(n->nvrtc_version, text) : "");
    cli_json_text(&out, "path", n->nvrtc_path);
    cli_json_text(&out, "id", n->nvrtc_id);
    cli_json_text(&out, "error", n->nvrtc_error);
    fa__buf_text(&out, "}");
    cli_json_key(&out, "driver");
    fa__buf_text(&out, "{");
    cli_json_bool(&out, "found", !f->no_device);
    cli_json_text(&out, "version", f->no_device ? "" : version_text(d->driver_version, text));
    cli_json_text(&out, "path", f->no_device ? "" : d->driver_path);
    cli_json_text(&out, "error", f->no_device ? f->no_device : "");
    fa__buf_text(&out, "}");
    cli_json_key(&out, "devices");
    cli_table_json(devices, &out);
    cli_json_key(&out, "cache");
    fa__buf_text(&out, "{");
    cli_json_text(&out, "dir", n->cache_dir);
    cli_json_text(&out, "error", f->no_cache);
    cli_json_text(&out, "path", n->cache_path);
    cli_json_int(&out, "max_bytes", (int64_t)n->cache_max_bytes);
    fa__buf_text(&out, "}");
    cli_json_int(&out, "compile_jobs", n->compile_jobs);
    fa__buf_text(&out, "}");
    cli_json_print(&out);
}

static void print_text(const facts *f, const cli_table *devices)
{
    char text[32];
    const fa_context_info_t *n = &f->offline, *d = &f->device;

    printf("fajit    %s\n", fa_version());
    if (n->nvrtc_version)
        printf("NVRTC    %s  %s  (%s)\n", version_text(n->nvrtc_version, text), n->nvrtc_path,
               n->nvrtc_id);
    else
        printf("NVRTC    not usable: %s\n", n->nvrtc_error);
    if (f->no_device)
        printf("driver   not usable: %s\n", f->no_device);
    else
        printf("driver   %s  %s\n", version_text(d->driver_version, text), d->driver_path);
    if (n->cache_path[0])
        printf("cache    %s  (read only)\n", n->cache_path);
    if (n->cache_dir[0])
        printf("cache    %s  (at most %s)\n", n->cache_dir, cli_bytes(n->cache_max_bytes, text));
    else
        printf("cache    no writable directory: %s\n", f->no_cache);
    printf("compiles %u at once\n", n->compile_jobs);
    if (devices->count) {
        putchar('\n');
        cli_table_print(devices);
    }
}

int cli_info(const cli *c)
{
    facts f = {0};
    cli_table devices = {0};

    if (c->operand_count) {
        cli_error("info takes no operands");
        return CLI_USAGE;
    }
    int code = gather(c, &f);
    if (code == CLI_OK) {
        list_devices(&devices);
        (c->json ? print_json : print_text)(&f, &devices);
        cli_table_free(&devices);
    }
    fa_context_destroy(f.device_ctx);
    fa_context_destroy(f.offline_ctx);
    free(f.no_device);
    free(f.no_cache);
    return code;
}
