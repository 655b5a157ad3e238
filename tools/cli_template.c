/* The operation `template` from the command line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_request.h"
#include "json.h"
#include "op.h"

const cli_template_key cli_template_keys[] = {
    {"file", "PATH", "the CUDA C++ source; needed"},
    {"entry", "NAME", "the __global__ function, or an instance of it: 'scale<float, 4>'; needed"},
    {"name", "TEXT", "name for messages; default: the file's, without directories"},
    {"const.NAME", "VALUE",
     "a constant: 4, 0.5, true, dtype:bf16, id:foo; int:, float:, bool: say the type"},
    {"header", "PATH", "a header to include, under its name without directories; repeatable"},
    {"header.NAME", "PATH", "the same under the name NAME; repeatable"},
    {"option", "OPT", "an option for the compiler; repeatable"},
    {"smem_bytes", "N", "the largest dynamic shared memory of a launch"},
    {"cluster", "X,Y,Z", "blocks in a cluster"},
    {"cooperative", "true|false", "grid-wide synchronization"},
    {"programmatic_launch", "true|false", "may start before its predecessor has ended"},
    {0},
};

/* What the spec points to. Each list has room for every operand. */
typedef struct cli_template {
    fa_constant *constants;
    fa_header *headers;
    const char **options;
    char **texts; /* everything to free */
    size_t text_count;
} cli_template;

static char *keep(cli_template *t, char *text)
{
    if (text)
        t->texts[t->text_count++] = text;
    return text;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool after(const char *text, const char *prefix, const char **rest)
{
    size_t len = strlen(prefix);

    if (strncmp(text, prefix, len) != 0)
        return false;
    *rest = text + len;
    return true;
}

static bool read_dtype(const char *text, int64_t *out)
{
    for (int i = 0; fa__dtype_names[i]; i++) {
        if (strcmp(fa__dtype_names[i], text) == 0) {
            *out = i;
            return true;
        }
    }
    cli_error("'%s' is no data type; there are f32, f16, bf16", text);
    return false;
}

/* A value with its type in front, or recognised by its form. */
static int read_constant(const char *name, const char *value, fa_constant *out)
{
    const char *rest = value;
    bool is_true = strcmp(value, "true") == 0 || strcmp(value, "bool:true") == 0;

    *out = (fa_constant){.name = name};
    if (after(value, "dtype:", &rest)) {
        out->type = FA_CONSTANT_DTYPE;
        return read_dtype(rest, &out->int_value) ? CLI_OK : CLI_USAGE;
    }
    if (after(value, "id:", &rest)) {
        out->type = FA_CONSTANT_IDENTIFIER;
        out->identifier = rest;
        return CLI_OK;
    }
    if (is_true || strcmp(value, "false") == 0 || strcmp(value, "bool:false") == 0) {
        out->type = FA_CONSTANT_BOOL;
        out->int_value = is_true;
        return CLI_OK;
    }
    bool only_int = after(value, "int:", &rest), only_float = after(value, "float:", &rest);
    if (!only_float && fa__json_to_int(rest, &out->int_value))
        return CLI_OK;
    if (!only_int && fa__json_to_real(rest, &out->float_value)) {
        /* An integer that 64 bits cannot hold must not become a rounded float unasked. */
        if (only_float || strpbrk(rest, ".eE")) {
            out->type = FA_CONSTANT_FLOAT;
            return CLI_OK;
        }
    }
    cli_error(
        "const.%s: '%s' is no value; give an integer of 64 bits, a number such as 0.5 or "
        "1e-3, true, false, dtype:f16 or id:NAME",
        name, value);
    return CLI_USAGE;
}

static int read_flag(const char *key, const char *value, bool *out)
{
    *out = strcmp(value, "true") == 0;
    if (*out || strcmp(value, "false") == 0)
        return CLI_OK;
    cli_error("%s must be true or false, not '%s'", key, value);
    return CLI_USAGE;
}

static int read_u32(const char *key, const char *value, uint32_t *out)
{
    int64_t number = 0;

    if (!fa__json_to_int(value, &number) || number < 0 || number > UINT32_MAX) {
        cli_error("%s must be an integer from 0 to 4294967295, not '%s'", key, value);
        return CLI_USAGE;
    }
    *out = (uint32_t)number;
    return CLI_OK;
}

static int read_cluster(cli_template *t, const char *value, uint32_t out[3])
{
    char *copy = keep(t, cli_copy(value));

    for (int i = 0; i < 3; i++) {
        char *comma = strchr(copy, ',');
        if ((comma != NULL) != (i < 2)) {
            cli_error("cluster must be X,Y,Z, not '%s'", value);
            return CLI_USAGE;
        }
        if (comma)
            *comma = '\0';
        int code = read_u32("cluster", copy, &out[i]);
        if (code)
            return code;
        copy = comma ? comma + 1 : copy;
    }
    return CLI_OK;
}

static int once(const char *key, const void *have)
{
    if (!have)
        return CLI_OK;
    cli_error("%s is given twice", key);
    return CLI_USAGE;
}

static int read_operand(cli_template *t, const char *key, const char *value, fa_template_spec *s)
{
    const char *name = NULL;

    if (strcmp(key, "file") == 0) {
        if (once(key, s->source))
            return CLI_USAGE;
        s->source = keep(t, cli_read_file(value));
        s->name = s->name ? s->name : base_name(value);
        return s->source ? CLI_OK : CLI_FAILED;
    }
    if (strcmp(key, "entry") == 0) {
        int code = once(key, s->entry);
        s->entry = value;
        return code;
    }
    if (strcmp(key, "name") == 0) {
        s->name = value;
        return CLI_OK;
    }
    if (after(key, "const.", &name))
        return read_constant(keep(t, cli_copy(name)), value, &t->constants[s->constant_count++]);
    if (strcmp(key, "header") == 0 || after(key, "header.", &name)) {
        fa_header *h = &t->headers[s->header_count++];
        h->name = name ? keep(t, cli_copy(name)) : base_name(value);
        h->text = keep(t, cli_read_file(value));
        return h->text ? CLI_OK : CLI_FAILED;
    }
    if (strcmp(key, "option") == 0) {
        t->options[s->option_count++] = value;
        return CLI_OK;
    }
    if (strcmp(key, "smem_bytes") == 0)
        return read_u32(key, value, &s->smem_bytes);
    if (strcmp(key, "cluster") == 0)
        return read_cluster(t, value, s->cluster);
    if (strcmp(key, "cooperative") == 0)
        return read_flag(key, value, &s->cooperative);
    if (strcmp(key, "programmatic_launch") == 0)
        return read_flag(key, value, &s->programmatic_launch);
    cli_nearest nearest = {.word = key};
    char hint[64];
    for (const cli_template_key *k = cli_template_keys; k->key; k++)
        cli_nearest_try(&nearest, k->key);
    cli_error("template has no key '%s'; see `fajit ops template`%s", key,
              cli_nearest_hint(&nearest, hint));
    return CLI_USAGE;
}

int cli_template_read(const cli *c, cli_request *r)
{
    cli_template *t = r->owned = cli_alloc(sizeof *t);
    fa_template_spec *s = &r->spec.tmpl;

    t->constants = cli_alloc(c->operand_count * sizeof *t->constants);
    t->headers = cli_alloc(c->operand_count * sizeof *t->headers);
    t->options = cli_alloc(c->operand_count * sizeof *t->options);
    t->texts = cli_alloc(3 * c->operand_count * sizeof *t->texts);
    for (size_t i = 1; i < c->operand_count; i++) {
        char key[512];
        const char *value = cli_split(c->operands[i], key, sizeof key);
        int code = value ? read_operand(t, key, value, s) : CLI_USAGE;
        if (code)
            return code;
    }
    if (!s->source || !s->entry) {
        cli_error("template needs %s", s->source ? "entry=NAME" : "file=PATH");
        return CLI_USAGE;
    }
    s->constants = t->constants;
    s->headers = t->headers;
    s->options = t->options;
    return CLI_OK;
}

void cli_template_free(cli_template *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->text_count; i++)
        free(t->texts[i]);
    free(t->texts);
    free(t->options);
    free(t->headers);
    free(t->constants);
    free(t);
}
