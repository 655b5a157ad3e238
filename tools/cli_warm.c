/* fajit warm: fills caches from a manifest. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "cli_output.h"
#include "json.h"

typedef struct job {
    bool terminal; /* stderr is one: a bar instead of lines */
    bool refused;  /* the manifest itself: no other architecture changes that */
    bool reported; /* the architecture under way has its row */
    const char *arch;
    fa_warm_result *results; /* of the manifest under way, by entry */
    size_t total;
    cli_table table; /* a row for each architecture */
    fa__buf json;
} job;

static const char *outcome(const fa_warm_result *r)
{
    return r->status ? fa_status_name(r->status) : cli_origin_name(r->origin);
}

static void draw_bar(const job *j, size_t done, size_t failed)
{
    enum { WIDTH = 40 };
    char bar[WIDTH + 1];
    size_t full = done * WIDTH / j->total;

    memset(bar, '#', full);
    memset(bar + full, '.', WIDTH - full);
    bar[WIDTH] = '\0';
    fprintf(stderr, "\r%s [%s] %zu/%zu", j->arch, bar, done, j->total);
    if (failed)
        fprintf(stderr, ", %zu failed", failed);
    if (done == j->total)
        fputc('\n', stderr);
    fflush(stderr);
}

static bool progress(void *user, size_t done, size_t total, size_t index,
                     const fa_warm_result *result)
{
    job *j = user;
    size_t failed = 0;

    if (!j->results) {
        j->results = cli_alloc(total * sizeof *j->results);
        j->total = total;
    }
    j->results[index] = *result;
    if (j->terminal) {
        for (size_t i = 0; i < total; i++)
            failed += j->results[i].status != FA_OK;
        draw_bar(j, done, failed);
    } else {
        fprintf(stderr, "fajit: %s %zu/%zu: entry %zu %s in %.1f ms\n", j->arch, done, total, index,
                outcome(result), (double)result->ns / 1e6);
    }
    return true;
}

static void report_json(job *j, const fa_warm_report *r)
{
    fa__buf *out = &j->json;

    cli_json_key(out, NULL);
    fa__buf_text(out, "{");
    cli_json_text(out, "arch", j->arch);
    cli_json_int(out, "total", (int64_t)r->total);
    cli_json_int(out, "from_memory", (int64_t)r->from_memory);
    cli_json_int(out, "from_disk", (int64_t)r->from_disk);
    cli_json_int(out, "compiled", (int64_t)r->compiled);
    cli_json_int(out, "failed", (int64_t)r->failed);
    cli_json_real(out, "ms", (double)r->ns / 1e6);
    cli_json_key(out, "entries");
    fa__buf_text(out, "[");
    for (size_t i = 0; i < j->total; i++) {
        const fa_warm_result *e = &j->results[i];
        cli_json_key(out, NULL);
        fa__buf_text(out, "{");
        cli_json_int(out, "entry", (int64_t)i);
        cli_json_text(out, "status", fa_status_name(e->status));
        cli_json_text(out, "origin", e->status ? "" : outcome(e));
        cli_json_real(out, "ms", (double)e->ns / 1e6);
        cli_json_text(out, "error", e->error);
        fa__buf_text(out, "}");
    }
    fa__buf_text(out, "]}");
}

static void report_row(job *j, const fa_warm_report *r)
{
    cli_cell_text(&j->table, j->arch);
    cli_cell_int(&j->table, (int64_t)r->total);
    cli_cell_int(&j->table, (int64_t)r->from_memory);
    cli_cell_int(&j->table, (int64_t)r->from_disk);
    cli_cell_int(&j->table, (int64_t)r->compiled);
    cli_cell_int(&j->table, (int64_t)r->failed);
    cli_cell_real(&j->table, (double)r->ns / 1e6, 1);
}

static int warm_one(const cli *c, fa_context *ctx, void *user)
{
    job *j = user;
    fa_context_info_t info = {.size = sizeof info};
    fa_warm_options options = {
        .size = sizeof options, .jobs = c->jobs, .progress = progress, .progress_user = j};
    fa_warm_report report = {0};
    int code = CLI_OK;

    if (j->refused)
        return CLI_FAILED;
    j->reported = false;
    fa_status status = fa_context_info(ctx, &info);
    if (status)
        return cli_failed(status, NULL);
    j->arch = info.arch;
    status = fa_warm_manifest(ctx, c->operands[0], &options, &report);
    j->refused = report.failed == 0 && (status == FA_ERR_MANIFEST || status == FA_ERR_IO);
    if (status && report.failed == 0)
        code = cli_failed(status, NULL); /* the manifest itself, or the machine */
    else if (status)
        code = CLI_FAILED;
    for (size_t i = 0; i < j->total; i++)
        if (j->results[i].status)
            cli_error("%s: entry %zu: %s: %s", j->arch, i, outcome(&j->results[i]),
                      j->results[i].error);
    if (code == CLI_OK || report.failed) {
        report_row(j, &report);
        report_json(j, &report);
        j->reported = code != CLI_OK;
        cli_failure_forget();
    }
    free(j->results);
    j->results = NULL;
    j->total = 0;
    return code;
}

static void not_warmed(void *user, const char *arch)
{
    job *j = user;

    if (!j->refused && !j->reported)
        cli_json_failure(&j->json, arch);
    j->reported = false;
}

int cli_warm(const cli *c)
{
    static const char *const keys[] = {"arch",     "total",  "from_memory", "from_disk",
                                       "compiled", "failed", "ms",          NULL};
    job j = {.terminal = isatty(STDERR_FILENO) == 1 && !c->verbose};

    if (c->operand_count != 1) {
        cli_error("warm needs one manifest");
        return CLI_USAGE;
    }
    cli_table_begin(&j.table, keys);
    fa__buf_text(&j.json, "[");
    int code = cli_each_arch(c, warm_one, not_warmed, &j);
    bool any = j.json.len > 1;
    fa__buf_text(&j.json, "]");
    if (c->json && any)
        cli_json_print(&j.json);
    else if (j.table.count)
        cli_table_print(&j.table);
    fa__buf_free(&j.json);
    cli_table_free(&j.table);
    return code;
}
