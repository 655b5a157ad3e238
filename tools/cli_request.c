#include "cli_request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

bool cli_find_op(const char *name, fa_op *op, fa_op_info_t *info)
{
    char names[256] = "", hint[64];
    cli_nearest nearest = {.word = name};

    for (int i = 1; fa_op_info((fa_op)i, info) == FA_OK; i++) {
        if (strcmp(info->name, name) == 0) {
            *op = (fa_op)i;
            return true;
        }
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", info->name);
        cli_nearest_try(&nearest, info->name);
    }
    cli_error("there is no operation '%s'; there are: %s%s", name, names,
              cli_nearest_hint(&nearest, hint));
    return false;
}

const char *cli_split(const char *operand, char *key, size_t size)
{
    const char *equals = strchr(operand, '=');

    if (!equals || equals == operand || (size_t)(equals - operand) >= size) {
        cli_error("'%s' is not key=value", operand);
        return NULL;
    }
    memcpy(key, operand, (size_t)(equals - operand));
    key[equals - operand] = '\0';
    return equals + 1;
}

/* SIZE_MAX: no such parameter. */
static size_t find_param(const fa_op_info_t *info, const char *key)
{
    for (size_t i = 0; i < info->param_count; i++) {
        const fa_param_info *p = &info->params[i];
        if (strcmp(p->name, key) == 0 || (p->alias && strcmp(p->alias, key) == 0))
            return i;
    }
    return SIZE_MAX;
}

static int set_param(cli_request *r, size_t index, const char *key, const char *value)
{
    if (index < CLI_MAX_PARAMS && r->given[index]) {
        cli_error("%s is given twice", r->info.params[index].name);
        return CLI_USAGE;
    }
    if (fa_spec_set(&r->spec, key, value)) {
        cli_nearest nearest = {.word = key};
        char hint[64];
        for (size_t i = 0; index == SIZE_MAX && i < r->info.param_count; i++)
            cli_nearest_try(&nearest, r->info.params[i].name);
        cli_error("%s%s", fa_last_error(), cli_nearest_hint(&nearest, hint));
        return CLI_USAGE;
    }
    r->given[index] = true;
    return CLI_OK;
}

/* 1: it was an extra size; 0: it is none; -1: refused, after printing. */
static int set_extra(cli_request *r, const char *const *names, const char *key, const char *value)
{
    for (size_t i = 0; names && names[i]; i++) {
        if (strcmp(names[i], key) != 0)
            continue;
        if (!fa__json_to_int(value, &r->extra[i])) {
            cli_error("%s must be an integer, not '%s'", key, value);
            return -1;
        }
        return 1;
    }
    return 0;
}

static int read_operands(const cli *c, const char *const *names, cli_request *r)
{
    for (size_t i = 1; i < c->operand_count; i++) {
        char key[128];
        const char *value = cli_split(c->operands[i], key, sizeof key);
        if (!value)
            return CLI_USAGE;
        size_t index = find_param(&r->info, key);
        int extra = index == SIZE_MAX ? set_extra(r, names, key, value) : 0;
        if (extra < 0)
            return CLI_USAGE;
        int code = extra ? CLI_OK : set_param(r, index, key, value);
        if (code)
            return code;
    }
    return CLI_OK;
}

static int begin(const cli *c, cli_request *r)
{
    *r = (cli_request){0};
    if (c->operand_count == 0) {
        cli_error("%s needs an operation; see `fajit ops`", c->command->name);
        return CLI_USAGE;
    }
    if (!cli_find_op(c->operands[0], &r->op, &r->info))
        return CLI_USAGE;
    if (r->info.param_count > CLI_MAX_PARAMS) {
        cli_error("%s has more parameters than this tool takes", r->info.name);
        return CLI_FAILED;
    }
    r->spec = (fa_spec)FA_SPEC_INIT(r->op);
    return CLI_OK;
}

int cli_request_read(const cli *c, cli_request *r)
{
    int code = begin(c, r);

    if (code)
        return code;
    return r->op == FA_OP_TEMPLATE ? cli_template_read(c, r) : read_operands(c, NULL, r);
}

/* --- sizes of a run --- */

bool cli_is_dimension(const fa_param_info *p)
{
    return p->kind == FA_PARAM_INT && p->dynamic;
}

static int32_t *dimension(fa_spec *spec, const fa_param_info *p)
{
    return (int32_t *)(void *)((char *)spec + p->offset);
}

/* A shape that shows something: the canonical one. heads_k follows heads_q. */
static int32_t default_size(cli_request *r, const char *name)
{
    static const struct {
        const char *name;
        int32_t value;
    } defaults[] = {{"batch", 4},       {"heads_q", 8},   {"seqlen", 256},    {"head_dim", 64},
                    {"tokens", 16},     {"heads", 4},     {"cache_len", 128}, {"page_size", 16},
                    {"model_dim", 256}, {"m", 128},       {"n", 256},         {"k", 256},
                    {"seqlen_q", 64},   {"seqlen_k", 128}};

    if (strcmp(name, "heads_k") == 0) {
        size_t q = find_param(&r->info, "heads_q");
        if (q != SIZE_MAX)
            return *dimension(&r->sizes, &r->info.params[q]);
    }
    for (size_t i = 0; i < sizeof defaults / sizeof defaults[0]; i++)
        if (strcmp(defaults[i].name, name) == 0)
            return defaults[i].value;
    return 1;
}

static void fill_sizes(cli_request *r, bool (*uses)(const fa_spec *spec, const char *name))
{
    r->sizes = r->spec;
    for (size_t i = 0; i < r->info.param_count; i++) {
        const fa_param_info *p = &r->info.params[i];
        /* A 0 that was given stays: G=0 is q alone. */
        if (!cli_is_dimension(p) || r->given[i] || *dimension(&r->sizes, p) != 0)
            continue;
        int32_t value = default_size(r, p->name);
        *dimension(&r->sizes, p) = value;
        if (uses && !uses(&r->spec, p->name))
            continue;
        size_t used = strlen(r->note);
        snprintf(r->note + used, sizeof r->note - used, "%s%s=%d", used ? " " : "", p->name, value);
    }
}

/* What shares the size that a launch gives for a dimension, as head_dim_v does with head_dim; or
 * NULL. */
static int32_t *tied_to(cli_request *r, const fa_param_info *p)
{
    size_t v = strcmp(p->name, "head_dim") == 0 ? find_param(&r->info, "head_dim_v") : SIZE_MAX;
    return v == SIZE_MAX ? NULL : dimension(&r->spec, &r->info.params[v]);
}

/* Whether a launch can give the dimension: it cannot while V has heads of a size of their own. */
static bool can_be_dynamic(cli_request *r, const fa_param_info *p)
{
    const int32_t *tied = tied_to(r, p);
    return !tied || !*tied || *tied == *dimension(&r->sizes, p);
}

static void make_dynamic(cli_request *r, const fa_param_info *p)
{
    int32_t *tied = tied_to(r, p);
    *dimension(&r->spec, p) = FA_DYNAMIC;
    if (tied)
        *tied = FA_DYNAMIC;
}

static int make_named_dynamic(const char *list, const char *name, cli_request *r)
{
    size_t index = find_param(&r->info, name);
    if (index == SIZE_MAX || !cli_is_dimension(&r->info.params[index])) {
        cli_error("--dynamic=%s: '%s' is no dimension of %s; see `fajit ops %s`", list, name,
                  r->info.name, r->info.name);
        return CLI_USAGE;
    }
    if (!can_be_dynamic(r, &r->info.params[index])) {
        cli_error(
            "--dynamic=%s: '%s' stays baked while head_dim_v differs, as a launch gives one "
            "size for both; take it from the list, or leave out head_dim_v",
            list, name);
        return CLI_USAGE;
    }
    make_dynamic(r, &r->info.params[index]);
    return CLI_OK;
}

/* Takes dimensions out of the kernel again; their values stay the sizes of the run. */
static int apply_dynamic(const char *list, cli_request *r)
{
    for (size_t i = 0; !list && i < r->info.param_count; i++) {
        const fa_param_info *p = &r->info.params[i];
        if (cli_is_dimension(p) && can_be_dynamic(r, p))
            make_dynamic(r, p);
    }
    char *names = cli_copy(list ? list : ""), *save = NULL;
    int code = CLI_OK;
    for (char *name = strtok_r(names, ",", &save); name && !code; name = strtok_r(NULL, ",", &save))
        code = make_named_dynamic(list, name, r);
    free(names);
    return code;
}

int cli_request_run(const cli *c, const char *const *names, const int64_t *defaults,
                    bool (*uses)(const fa_spec *spec, const char *name), cli_request *r)
{
    int code = begin(c, r);

    for (size_t i = 0; names && names[i]; i++) {
        if (i == sizeof r->extra / sizeof r->extra[0]) {
            cli_error("%s has more sizes than this tool takes", r->info.name);
            return CLI_FAILED;
        }
        r->extra[i] = defaults[i];
    }
    code = code ? code : read_operands(c, names, r);
    if (code)
        return code;
    fill_sizes(r, uses);
    return c->dynamic ? apply_dynamic(c->dynamic_list, r) : CLI_OK;
}

void cli_request_free(cli_request *r)
{
    cli_template_free(r->owned);
    *r = (cli_request){0};
}
