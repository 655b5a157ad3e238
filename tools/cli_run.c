#include "cli_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ZONE_BYTE 0xa7

static void tell(const char *message)
{
    cli_error_as(FA_ERR_CUDA, "%s", message);
}

int cli_session_open(const cli *c, cli_session *s)
{
    const char *why = NULL;
    fa_op op = FA_OP_NONE;
    fa_op_info_t found;

    *s = (cli_session){0};
    if (c->operand_count == 0) {
        cli_error("%s needs an operation; see `fajit ops`", c->command->name);
        return CLI_USAGE;
    }
    if (!cli_find_op(c->operands[0], &op, &found))
        return CLI_USAGE;
    s->oracle = oracle_find(op);
    if (!s->oracle) {
        cli_error("%s has no reference to compare with: %s cannot run it", found.name,
                  c->command->name);
        return CLI_USAGE;
    }
    int code = cli_request_run(c, s->oracle->extra_names, s->oracle->extra_defaults,
                               s->oracle->uses_size, &s->request);
    if (code)
        return code;
    gpu_tell_failures(tell);
    if (!gpu_open(c->device >= 0 ? c->device : 0, &why)) {
        cli_error_as(FA_ERR_NO_DEVICE, "%s needs a CUDA device: %s", c->command->name, why);
        return CLI_NO_DEVICE;
    }
    code = cli_context_open(c, NULL, &s->ctx);
    if (code)
        return code;
    fa_status status = fa_compile(s->ctx, &s->request.spec, &s->kernel);
    s->info.size = sizeof s->info;
    if (status == FA_OK)
        status = fa_kernel_info(s->kernel, &s->info);
    if (status)
        return cli_failed(status, NULL);
    s->stream = gpu_stream_create();
    return CLI_OK;
}

void cli_session_close(cli_session *s)
{
    if (s->stream)
        gpu_stream_destroy(s->stream);
    fa_kernel_release(s->kernel);
    fa_context_destroy(s->ctx);
    cli_request_free(&s->request);
    *s = (cli_session){0};
}

int cli_case_make(cli_session *s, uint64_t seed, oracle_case *out)
{
    char why[512] = "?";

    *out = (oracle_case){0};
    if (s->oracle->make_case(&s->request.spec, &s->request.sizes, s->request.extra, seed, out, why,
                             sizeof why))
        return CLI_OK;
    cli_error("%s", why);
    return CLI_USAGE;
}

int cli_set_make(cli_session *s, oracle_case *of, cli_set *set)
{
    size_t workspace = 0;

    *set = (cli_set){.of = of};
    for (size_t i = 0; i < of->tensor_count; i++) {
        const oracle_tensor *t = &of->tensor[i];
        set->memory[i] = gpu_alloc(t->bytes + 2 * CLI_RED_ZONE);
        set->data[i] = set->memory[i] + CLI_RED_ZONE;
        gpu_fill(set->memory[i], ZONE_BYTE, t->bytes + 2 * CLI_RED_ZONE);
        if (t->bytes)
            gpu_upload(set->data[i], t->host, t->bytes);
    }
    s->oracle->bind(of, set->data);
    set->args = of->args;
    fa_status status = fa_workspace_size(s->kernel, &set->args, &workspace);
    if (status)
        return cli_failed(status, NULL);
    if (workspace) {
        set->workspace = gpu_alloc(workspace);
        gpu_fill(set->workspace, 0, workspace);
        set->args.workspace = set->workspace;
        set->args.workspace_bytes = workspace;
    }
    return CLI_OK;
}

void cli_set_free(cli_set *set)
{
    for (size_t i = 0; set->of && i < set->of->tensor_count; i++)
        if (set->memory[i])
            gpu_free(set->memory[i]);
    if (set->workspace)
        gpu_free(set->workspace);
    *set = (cli_set){0};
}

/* --- looking at what a launch left --- */

const char *const cli_check_keys[] = {"seed",      "tensor", "elements",    "max_abs_error",
                                      "atol",      "rtol",   "worst_ratio", "bad",
                                      "red_zones", "result", NULL};

static bool zone_intact(const unsigned char *zone)
{
    for (size_t i = 0; i < CLI_RED_ZONE; i++)
        if (zone[i] != ZONE_BYTE)
            return false;
    return true;
}

/* Elements of an input that a launch changed. */
static size_t changed(const oracle_tensor *t, const unsigned char *actual)
{
    const size_t size = t->count ? t->bytes / t->count : 0;
    size_t n = 0;

    for (size_t i = 0; size && i < t->count; i++)
        n += memcmp(actual + i * size, (const char *)t->host + i * size, size) != 0;
    return n;
}

static bool check_tensor(const oracle_case *c, const oracle_tensor *t, const unsigned char *memory,
                         cli_table *table)
{
    const unsigned char *actual = memory + CLI_RED_ZONE;
    bool intact = zone_intact(memory) && zone_intact(actual + t->bytes);
    oracle_verdict v = {0};

    if (t->output)
        v = oracle_compare(c, t, actual);
    else
        v.bad = changed(t, actual);
    bool passed = v.bad == 0 && intact;
    cli_cell_int(table, (int64_t)c->seed);
    cli_cell_text(table, t->name);
    cli_cell_int(table, (int64_t)t->count);
    cli_cell_small(table, v.max_abs_error);
    cli_cell_small(table, t->output ? c->atol : 0);
    cli_cell_small(table, t->output ? c->rtol : 0);
    cli_cell_small(table, v.worst_ratio);
    cli_cell_int(table, (int64_t)v.bad);
    cli_cell_bool(table, intact, "intact", "OVERWRITTEN");
    cli_cell_bool(table, passed, "PASS", "FAIL");
    if (v.bad && t->output)
        cli_error(
            "seed %llu, %s: %zu of %zu elements are wrong; the first is element %zu: %.9g "
            "instead of %.9g",
            (unsigned long long)c->seed, t->name, v.bad, t->count, v.first_bad, v.actual,
            v.expected);
    else if (v.bad)
        cli_error("seed %llu: %zu elements of the input %s were changed",
                  (unsigned long long)c->seed, v.bad, t->name);
    return passed;
}

bool cli_set_check(const cli_set *set, cli_table *t)
{
    bool passed = true;

    for (size_t i = 0; i < set->of->tensor_count; i++) {
        const oracle_tensor *tensor = &set->of->tensor[i];
        size_t bytes = tensor->bytes + 2 * CLI_RED_ZONE;
        unsigned char *back = cli_alloc(bytes);
        gpu_download(back, set->memory[i], bytes);
        passed = check_tensor(set->of, tensor, back, t) && passed;
        free(back);
    }
    return passed;
}

/* --- the shape, for the reader --- */

static int32_t value_of(const fa_spec *spec, const fa_param_info *p)
{
    int32_t value = 0;

    memcpy(&value, (const char *)spec + p->offset, sizeof value);
    return value;
}

static bool is_used(const cli_session *s, const char *name)
{
    return !s->oracle->uses_size || s->oracle->uses_size(&s->request.spec, name);
}

static bool is_used_dimension(const cli_session *s, const fa_param_info *p)
{
    return cli_is_dimension(p) && is_used(s, p->name);
}

static bool is_used_extra(const cli_session *s, size_t i)
{
    return is_used(s, s->oracle->extra_names[i]);
}

void cli_run_json_sizes(fa__buf *out, const cli_session *s)
{
    cli_json_key(out, "sizes");
    fa__buf_text(out, "{");
    for (size_t i = 0; i < s->request.info.param_count; i++) {
        const fa_param_info *p = &s->request.info.params[i];
        if (is_used_dimension(s, p))
            cli_json_int(out, p->name, value_of(&s->request.sizes, p));
    }
    for (size_t i = 0; s->oracle->extra_names && s->oracle->extra_names[i]; i++)
        if (is_used_extra(s, i))
            cli_json_int(out, s->oracle->extra_names[i], s->request.extra[i]);
    fa__buf_text(out, "}");
    cli_json_text(out, "default_sizes", s->request.note);
}

void cli_run_print_sizes(const cli_session *s)
{
    printf("kernel  %s  (%s)\nplan    %s\nsizes  ", s->info.name, s->info.arch, s->info.plan);
    for (size_t i = 0; i < s->request.info.param_count; i++) {
        const fa_param_info *p = &s->request.info.params[i];
        if (is_used_dimension(s, p))
            printf(" %s=%d%s", p->name, value_of(&s->request.sizes, p),
                   value_of(&s->request.spec, p) ? "" : " (dynamic)");
    }
    for (size_t i = 0; s->oracle->extra_names && s->oracle->extra_names[i]; i++)
        if (s->request.extra[i] && is_used_extra(s, i))
            printf(" %s=%lld", s->oracle->extra_names[i], (long long)s->request.extra[i]);
    if (s->request.note[0])
        printf("\nnot given, so by default: %s", s->request.note);
    printf("\n\n");
}
