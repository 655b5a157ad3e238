/* fajit compile */
#include <stdio.h>

#include "cli_output.h"
#include "cli_request.h"

typedef struct job {
    const cli_request *request;
    cli_table table;
    fa__buf json;  /* the same with the failures between */
    fa__buf plans; /* for people: lines under the table, in which they would take too much room */
} job;

static int compile_one(const cli *c, fa_context *ctx, void *user)
{
    job *j = user;
    fa_kernel *kernel = NULL;
    fa_kernel_info_t info = {.size = sizeof info};

    (void)c;
    fa_status status = fa_compile(ctx, &j->request->spec, &kernel);
    if (status == FA_OK)
        status = fa_kernel_info(kernel, &info);
    if (status) {
        fa_kernel_release(kernel);
        return cli_failed(status, NULL);
    }
    cli_cell_text(&j->table, info.name);
    cli_cell_text(&j->table, cli_origin_name(info.origin));
    cli_cell_real(&j->table, (double)info.compile_ns / 1e6, 3);
    cli_cell_int(&j->table, info.registers);
    cli_cell_int(&j->table, info.spill_bytes);
    cli_cell_int(&j->table, info.smem_bytes);
    cli_cell_int(&j->table, (int64_t)info.cubin_bytes);
    cli_cell_text(&j->table, info.arch);
    cli_json_key(&j->json, NULL);
    fa__buf_text(&j->json, "{");
    cli_table_json_members(&j->table, j->table.count / j->table.columns - 1, &j->json);
    cli_json_text(&j->json, "plan", info.plan);
    fa__buf_text(&j->json, "}");
    fa__buf_format(&j->plans, "\nplan on %s: %s", info.arch, info.plan);
    fa_kernel_release(kernel);
    return CLI_OK;
}

static void not_compiled(void *user, const char *arch)
{
    job *j = user;

    cli_json_failure(&j->json, arch);
}

int cli_compile(const cli *c)
{
    static const char *const keys[] = {"name",        "origin",      "compile_ms",
                                       "registers",   "spill_bytes", "smem_bytes",
                                       "cubin_bytes", "arch",        NULL};
    cli_request request;
    job j = {.request = &request};
    int code = cli_request_read(c, &request);

    cli_table_begin(&j.table, keys);
    fa__buf_text(&j.json, "[");
    code = code ? code : cli_each_arch(c, compile_one, not_compiled, &j);
    bool any = j.json.len > 1;
    fa__buf_text(&j.json, "]");
    if (c->json && any)
        cli_json_print(&j.json);
    else if (j.table.count > 0)
        cli_table_print(&j.table);
    if (!c->json && j.plans.data)
        puts(j.plans.data);
    fa__buf_free(&j.json);
    fa__buf_free(&j.plans);
    cli_table_free(&j.table);
    cli_request_free(&request);
    return code;
}
