/* fajit source, ptx and sass: a kernel as text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_disasm.h"
#include "cli_output.h"
#include "cli_request.h"

typedef struct job {
    const cli_request *request;
    const char *key; /* of the JSON member: "source", "ptx", "sass" */
    fa__buf out;
} job;

static void show(const cli *c, fa_context *ctx, job *j, const char *text)
{
    fa_context_info_t info = {.size = sizeof info};
    bool known = c->arch_count || strcmp(j->key, "source") != 0; /* else it does not matter */
    const char *arch = known && fa_context_info(ctx, &info) == FA_OK ? info.arch : "";

    if (c->json) {
        cli_json_key(&j->out, NULL);
        fa__buf_text(&j->out, "{");
        cli_json_text(&j->out, "arch", arch);
        cli_json_text(&j->out, j->key, text);
        fa__buf_text(&j->out, "}");
        return;
    }
    if (c->arch_count > 1)
        printf("// ---- %s ----\n", arch);
    fputs(text, stdout);
    if (text[0] && text[strlen(text) - 1] != '\n')
        putchar('\n');
}

static int render_one(const cli *c, fa_context *ctx, fa_text what, job *j)
{
    char *text = NULL;
    fa_status status = fa_render(ctx, &j->request->spec, what, &text);

    if (status)
        return cli_failed(status, NULL);
    show(c, ctx, j, text);
    free(text);
    return CLI_OK;
}

static int source_one(const cli *c, fa_context *ctx, void *user)
{
    return render_one(c, ctx, FA_TEXT_SOURCE, user);
}

static int ptx_one(const cli *c, fa_context *ctx, void *user)
{
    return render_one(c, ctx, FA_TEXT_PTX, user);
}

static int sass_one(const cli *c, fa_context *ctx, void *user)
{
    job *j = user;
    fa_kernel *kernel = NULL;
    fa_kernel_info_t info = {.size = sizeof info};
    char *text = NULL;

    fa_status status = fa_compile(ctx, &j->request->spec, &kernel);
    if (status == FA_OK)
        status = fa_kernel_info(kernel, &info);
    int code = status ? cli_failed(status, NULL) : CLI_OK;
    if (code == CLI_OK) {
        text = cli_disassemble(info.cubin, info.cubin_bytes);
        code = text ? CLI_OK : CLI_FAILED;
    }
    if (code == CLI_OK)
        show(c, ctx, j, text);
    free(text);
    fa_kernel_release(kernel);
    return code;
}

static void not_shown(void *user, const char *arch)
{
    job *j = user;

    cli_json_failure(&j->out, arch);
}

/* The source is the same for every architecture: it needs neither --arch nor a device. */
static int source_of_any(const cli *c, job *j)
{
    fa_context *ctx = NULL;
    int code = cli_context_open_any(c, &ctx);

    code = code ? code : source_one(c, ctx, j);
    fa_context_destroy(ctx);
    return code;
}

static int run(const cli *c, const char *key, int (*visit)(const cli *, fa_context *, void *))
{
    cli_request request;
    job j = {.request = &request, .key = key};
    int code = cli_request_read(c, &request);

    fa__buf_text(&j.out, "[");
    if (code == CLI_OK && visit == source_one && !c->arch_count)
        code = source_of_any(c, &j);
    else if (code == CLI_OK)
        code = cli_each_arch(c, visit, not_shown, &j);
    bool any = j.out.len > 1;
    fa__buf_text(&j.out, "]");
    if (c->json && any)
        cli_json_print(&j.out);
    fa__buf_free(&j.out);
    cli_request_free(&request);
    return code;
}

int cli_source(const cli *c)
{
    return run(c, "source", source_one);
}

int cli_ptx(const cli *c)
{
    return run(c, "ptx", ptx_one);
}

int cli_sass(const cli *c)
{
    return run(c, "sass", sass_one);
}
