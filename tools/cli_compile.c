/* fajit compile */
#include "cli_output.h"
#include "cli_request.h"

typedef struct job {
    const cli_request *request;
    cli_table table;
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
    fa_kernel_release(kernel);
    return CLI_OK;
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
    code = code ? code : cli_each_arch(c, compile_one, &j);
    if (j.table.count > 0 || (c->json && code != CLI_USAGE))
        cli_table_show(&j.table, c->json);
    cli_table_free(&j.table);
    cli_request_free(&request);
    return code;
}
