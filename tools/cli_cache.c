/* fajit cache */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "cli_output.h"

typedef struct walk {
    cli_table table;
    bool remove;
    size_t damaged_left; /* and not removed */
} walk;

static void add_entry(cli_table *t, const fa_cache_entry *e)
{
    char when[64] = "?";
    time_t used = (time_t)e->used_unix_s;
    struct tm parts;

    if (gmtime_r(&used, &parts))
        strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &parts);
    cli_cell_text(t, e->key);
    cli_cell_text(t, e->name);
    cli_cell_text(t, e->arch);
    cli_cell_int(t, (int64_t)e->bytes);
    cli_cell_text(t, when);
    cli_cell_bool(t, e->writable_layer, "yes", "no");
}

static bool list_entry(void *user, const fa_cache_entry *e)
{
    walk *w = user;

    add_entry(&w->table, e);
    return true;
}

static bool verify_entry(void *user, const fa_cache_entry *e)
{
    walk *w = user;
    bool removed = e->damaged && w->remove && e->writable_layer;

    add_entry(&w->table, e);
    cli_cell_text(&w->table, !e->damaged ? "good" : removed ? "removed" : "damaged");
    cli_cell_text(&w->table, e->problem ? e->problem : "");
    cli_cell_text(&w->table, e->path);
    w->damaged_left += e->damaged && !removed;
    return true;
}

static int list(const cli *c, fa_context *ctx)
{
    static const char *const keys[] = {"key", "name", "arch", "bytes", "used", "writable", NULL};
    walk w = {0};

    cli_table_begin(&w.table, keys);
    fa_status status = fa_cache_list(ctx, list_entry, &w);
    if (status == FA_OK || !c->json)
        cli_table_show(&w.table, c->json);
    cli_table_free(&w.table);
    return status ? cli_failed(status, NULL) : CLI_OK;
}

static int verify(const cli *c, fa_context *ctx)
{
    static const char *const keys[] = {"key",      "name",  "arch",    "bytes", "used",
                                       "writable", "state", "problem", "path",  NULL};
    walk w = {.remove = c->remove};

    cli_table_begin(&w.table, keys);
    fa_status status = fa_cache_verify(ctx, c->remove, verify_entry, &w);
    if (status == FA_OK || !c->json)
        cli_table_show(&w.table, c->json);
    cli_table_free(&w.table);
    if (status)
        return cli_failed(status, NULL);
    if (w.damaged_left)
        cli_error("%zu damaged entries%s", w.damaged_left,
                  c->remove ? " in read-only directories stay" : "; --remove deletes them");
    return w.damaged_left ? CLI_FAILED : CLI_OK;
}

static int size(const cli *c, fa_context *ctx)
{
    uint64_t entries = 0, bytes = 0;
    char text[32];
    fa__buf out = {0};

    fa_status status = fa_cache_size(ctx, &entries, &bytes);
    if (status)
        return cli_failed(status, NULL);
    if (!c->json) {
        printf("%llu entries, %s\n", (unsigned long long)entries, cli_bytes(bytes, text));
        return CLI_OK;
    }
    fa__buf_text(&out, "{");
    cli_json_int(&out, "entries", (int64_t)entries);
    cli_json_int(&out, "bytes", (int64_t)bytes);
    fa__buf_text(&out, "}");
    cli_json_print(&out);
    return CLI_OK;
}

static int clear(const cli *c, fa_context *ctx)
{
    uint64_t entries = 0, bytes = 0;
    char answer[16] = "";
    fa__buf out = {0};
    fa_context_info_t info = {.size = sizeof info};

    fa_status status = fa_cache_size(ctx, &entries, &bytes);
    if (status == FA_OK)
        status = fa_context_info(ctx, &info);
    if (status)
        return cli_failed(status, NULL);
    if (!c->yes) {
        if (!isatty(STDIN_FILENO)) {
            cli_error("cache clear: nobody to ask, the input is no terminal; give --yes");
            return CLI_USAGE;
        }
        fprintf(stderr, "Remove %llu entries from %s? [y/N] ", (unsigned long long)entries,
                info.cache_dir);
        if (!fgets(answer, sizeof answer, stdin) || (answer[0] != 'y' && answer[0] != 'Y')) {
            cli_error_as(FA_ERR_CANCELLED, "nothing removed");
            return CLI_FAILED;
        }
    }
    status = fa_cache_clear(ctx);
    if (status)
        return cli_failed(status, NULL);
    if (c->json) {
        fa__buf_text(&out, "{");
        cli_json_int(&out, "removed", (int64_t)entries);
        fa__buf_text(&out, "}");
        cli_json_print(&out);
    } else {
        printf("removed %llu entries\n", (unsigned long long)entries);
    }
    return CLI_OK;
}

/* The read-only directories first: they are looked in first. */
static int show_paths(const cli *c, fa_context *ctx, const char *why)
{
    fa_context_info_t info = {.size = sizeof info};
    fa__buf out = {0};

    fa_status status = fa_context_info(ctx, &info);
    if (status)
        return cli_failed(status, NULL);
    if (c->json) {
        fa__buf_text(&out, "{");
        cli_json_text(&out, "path", info.cache_path);
        cli_json_text(&out, "dir", info.cache_dir);
        cli_json_text(&out, "error", why);
        fa__buf_text(&out, "}");
        cli_json_print(&out);
        return CLI_OK;
    }
    for (const char *at = info.cache_path; *at;) {
        size_t len = strcspn(at, ":");
        printf("%.*s\n", (int)len, at);
        at += len + (at[len] == ':');
    }
    if (info.cache_dir[0])
        puts(info.cache_dir);
    else
        cli_error("no writable cache directory: %s", why);
    return CLI_OK;
}

static int path(const cli *c)
{
    fa_context *ctx = NULL;
    char *why = NULL;
    int code = cli_context_open_caches(c, &ctx, &why);

    code = code ? code : show_paths(c, ctx, why);
    fa_context_destroy(ctx);
    free(why);
    return code;
}

int cli_cache(const cli *c)
{
    static const struct {
        const char *name;
        int (*run)(const cli *c, fa_context *ctx);
    } actions[] = {{"list", list}, {"verify", verify}, {"size", size}, {"clear", clear}};
    fa_context *ctx = NULL;
    cli_nearest nearest = {.word = c->operand_count ? c->operands[0] : ""};
    char hint[64];

    if (c->operand_count == 1 && strcmp(c->operands[0], "path") == 0)
        return path(c);
    cli_nearest_try(&nearest, "path");
    for (size_t i = 0; c->operand_count == 1 && i < sizeof actions / sizeof actions[0]; i++) {
        cli_nearest_try(&nearest, actions[i].name);
        if (strcmp(actions[i].name, c->operands[0]) != 0)
            continue;
        int code = cli_context_open_any(c, &ctx);
        code = code ? code : actions[i].run(c, ctx);
        fa_context_destroy(ctx);
        return code;
    }
    cli_error("cache takes one of list, verify, size, clear, path%s",
              cli_nearest_hint(&nearest, hint));
    return CLI_USAGE;
}
