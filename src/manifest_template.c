#include "manifest_template.h"

#include <math.h>
#include <string.h>

#include "op.h"
#include "status.h"

/* --- reading --- */

static fa_status need(const fa__json *value, fa__json_type type, const char *what)
{
    if (value->type == type)
        return FA_OK;
    return fa__manifest_refuse(value, "\"%.80s\" must be %s", value->key ? value->key : "", what);
}

static fa_status read_text(const fa__json *value, const char **to)
{
    fa_status status = need(value, FA__JSON_STRING, "a string");

    if (status == FA_OK)
        *to = value->text;
    return status;
}

static fa_status read_bool(const fa__json *value, bool *to)
{
    fa_status status = need(value, FA__JSON_BOOL, "true or false");

    if (status == FA_OK)
        *to = value->boolean;
    return status;
}

static fa_status read_u32(const fa__json *value, const char *what, uint32_t *to)
{
    int64_t number = 0;

    if (value->type != FA__JSON_NUMBER || !fa__json_to_int(value->text, &number) || number < 0 ||
        number > UINT32_MAX)
        return fa__manifest_refuse(value, "\"%s\" must be an integer from 0 to 4294967295", what);
    *to = (uint32_t)number;
    return FA_OK;
}

static fa_status read_dtype(const fa__json *value, int64_t *to)
{
    for (int i = 0; value->type == FA__JSON_STRING && fa__dtype_names[i]; i++) {
        if (strcmp(value->text, fa__dtype_names[i]) == 0) {
            *to = i;
            return FA_OK;
        }
    }
    return fa__manifest_refuse(value, "a \"dtype\" constant must be one of f32, f16, bf16");
}

/* "NAME": {"int": 4} */
static fa_status read_constant(const fa__json *value, fa_constant *to)
{
    const fa__json *held = value->child;
    fa_status status = FA_OK;
    bool boolean = false;

    to->name = value->key;
    if (value->type != FA__JSON_OBJECT || value->count != 1)
        return fa__manifest_refuse(value,
                                   "constant \"%.80s\" must be an object of one member, its type "
                                   "and value: {\"int\": 4}, {\"float\": 0.5}, {\"bool\": true}, "
                                   "{\"identifier\": \"name\"} or {\"dtype\": \"bf16\"}",
                                   value->key);
    if (strcmp(held->key, "int") == 0) {
        to->type = FA_CONSTANT_INT;
        if (held->type != FA__JSON_NUMBER || !fa__json_to_int(held->text, &to->int_value))
            return fa__manifest_refuse(held, "an \"int\" constant must be a 64-bit integer");
    } else if (strcmp(held->key, "float") == 0) {
        to->type = FA_CONSTANT_FLOAT;
        if (held->type != FA__JSON_NUMBER || !fa__json_to_real(held->text, &to->float_value))
            return fa__manifest_refuse(held,
                                       "a \"float\" constant must be a number that a double holds");
    } else if (strcmp(held->key, "bool") == 0) {
        to->type = FA_CONSTANT_BOOL;
        status = read_bool(held, &boolean);
        to->int_value = boolean;
    } else if (strcmp(held->key, "identifier") == 0) {
        to->type = FA_CONSTANT_IDENTIFIER;
        status = read_text(held, &to->identifier);
    } else if (strcmp(held->key, "dtype") == 0) {
        to->type = FA_CONSTANT_DTYPE;
        status = read_dtype(held, &to->int_value);
    } else {
        return fa__manifest_refuse_key(held,
                                       "\"%.80s\" is no type of constant; the types are int, "
                                       "float, bool, identifier, dtype",
                                       held->key);
    }
    return status;
}

static fa_status read_constants(const fa__json *value, fa_template_spec *spec,
                                fa__manifest_pool *pool)
{
    fa_status status = need(value, FA__JSON_OBJECT, "an object of constants by name");
    size_t n = 0;

    if (status || value->count == 0)
        return status;
    fa_constant *constants = fa__manifest_take(pool, value->count * sizeof *constants);
    if (!constants)
        return FA_ERR_OUT_OF_MEMORY;
    for (const fa__json *m = value->child; m && status == FA_OK; m = m->next)
        status = read_constant(m, &constants[n++]);
    spec->constants = constants;
    spec->constant_count = n;
    return status;
}

static fa_status read_headers(const fa__json *value, fa_template_spec *spec,
                              fa__manifest_pool *pool)
{
    fa_status status = need(value, FA__JSON_OBJECT, "an object of header texts by name");
    size_t n = 0;

    if (status || value->count == 0)
        return status;
    fa_header *headers = fa__manifest_take(pool, value->count * sizeof *headers);
    if (!headers)
        return FA_ERR_OUT_OF_MEMORY;
    for (const fa__json *m = value->child; m && status == FA_OK; m = m->next) {
        headers[n].name = m->key;
        status = read_text(m, &headers[n++].text);
    }
    spec->headers = headers;
    spec->header_count = n;
    return status;
}

static fa_status read_options(const fa__json *value, fa_template_spec *spec,
                              fa__manifest_pool *pool)
{
    fa_status status = need(value, FA__JSON_ARRAY, "an array of strings");
    size_t n = 0;

    if (status || value->count == 0)
        return status;
    const char **options = fa__manifest_take(pool, value->count * sizeof *options);
    if (!options)
        return FA_ERR_OUT_OF_MEMORY;
    for (const fa__json *m = value->child; m; m = m->next) {
        if (m->type != FA__JSON_STRING)
            return fa__manifest_refuse(m, "every element of \"options\" must be a string");
        options[n++] = m->text;
    }
    spec->options = options;
    spec->option_count = n;
    return FA_OK;
}

static fa_status read_cluster(const fa__json *value, fa_template_spec *spec)
{
    fa_status status = need(value, FA__JSON_ARRAY, "an array of three integers [x, y, z]");
    size_t n = 0;

    if (status == FA_OK && value->count != 3)
        return fa__manifest_refuse(value, "\"cluster\" must have three elements [x, y, z], not %zu",
                                   value->count);
    for (const fa__json *m = value->child; m && status == FA_OK; m = m->next)
        status = read_u32(m, "cluster", &spec->cluster[n++]);
    return status;
}

static fa_status read_member(const fa__json *m, fa_template_spec *spec, fa__manifest_pool *pool)
{
    if (strcmp(m->key, "name") == 0)
        return read_text(m, &spec->name);
    if (strcmp(m->key, "source") == 0)
        return read_text(m, &spec->source);
    if (strcmp(m->key, "entry") == 0)
        return read_text(m, &spec->entry);
    if (strcmp(m->key, "constants") == 0)
        return read_constants(m, spec, pool);
    if (strcmp(m->key, "headers") == 0)
        return read_headers(m, spec, pool);
    if (strcmp(m->key, "options") == 0)
        return read_options(m, spec, pool);
    if (strcmp(m->key, "smem_bytes") == 0)
        return read_u32(m, m->key, &spec->smem_bytes);
    if (strcmp(m->key, "cluster") == 0)
        return read_cluster(m, spec);
    if (strcmp(m->key, "cooperative") == 0)
        return read_bool(m, &spec->cooperative);
    if (strcmp(m->key, "programmatic_launch") == 0)
        return read_bool(m, &spec->programmatic_launch);
    return fa__manifest_refuse_key(m,
                                   "template has no parameter '%.80s'; it has: op, name, source, "
                                   "entry, constants, headers, options, smem_bytes, cluster, "
                                   "cooperative, programmatic_launch",
                                   m->key);
}

fa_status fa__manifest_read_template(const fa__json *kernel, fa_template_spec *spec,
                                     fa__manifest_pool *pool)
{
    for (const fa__json *m = kernel->child; m; m = m->next) {
        fa_status status = strcmp(m->key, "op") == 0 ? FA_OK : read_member(m, spec, pool);
        if (status)
            return status;
    }
    if (!spec->source || !spec->entry)
        return fa__manifest_refuse(kernel, "the template has no \"%s\"",
                                   spec->source ? "entry" : "source");
    return FA_OK;
}

/* --- writing --- */

static fa_status write_text(fa__buf *out, const char *text, const char *what)
{
    if (!text)
        return fa__fail(FA_ERR_NULL_POINTER, "cannot write the manifest: a template's %s is NULL",
                        what);
    if (!fa__json_is_utf8(text))
        return fa__fail(FA_ERR_VALUE, "cannot write the manifest: a template's %s is not UTF-8",
                        what);
    fa__json_string(out, text);
    return FA_OK;
}

static fa_status write_named_text(fa__buf *out, const char *key, const char *text)
{
    if (!text)
        return FA_OK;
    fa__buf_format(out, ", \"%s\": ", key);
    return write_text(out, text, key);
}

static fa_status write_constant(fa__buf *out, const fa_constant *c)
{
    switch (c->type) {
    case FA_CONSTANT_INT:
        fa__buf_format(out, "{\"int\": %lld}", (long long)c->int_value);
        return FA_OK;
    case FA_CONSTANT_FLOAT:
        if (!isfinite(c->float_value))
            break;
        fa__buf_text(out, "{\"float\": ");
        fa__json_real(out, c->float_value);
        fa__buf_text(out, "}");
        return FA_OK;
    case FA_CONSTANT_BOOL:
        fa__buf_format(out, "{\"bool\": %s}", c->int_value ? "true" : "false");
        return FA_OK;
    case FA_CONSTANT_IDENTIFIER: {
        fa__buf_text(out, "{\"identifier\": ");
        fa_status status = write_text(out, c->identifier, "constant");
        fa__buf_text(out, "}");
        return status;
    }
    case FA_CONSTANT_DTYPE:
        if (c->int_value < 0 || c->int_value > FA_BF16)
            break;
        fa__buf_format(out, "{\"dtype\": \"%s\"}", fa__dtype_name((fa_dtype)c->int_value));
        return FA_OK;
    }
    return fa__fail(FA_ERR_VALUE,
                    "cannot write the manifest: the value of constant %s is not one of its type",
                    c->name);
}

static fa_status write_lists(fa__buf *out, const fa_template_spec *spec)
{
    fa_status status = FA_OK;

    if (spec->constant_count > 0)
        fa__buf_text(out, ", \"constants\": {");
    for (size_t i = 0; i < spec->constant_count; i++) {
        fa__buf_text(out, i ? ", " : "");
        if ((status = write_text(out, spec->constants[i].name, "constant")))
            return status;
        fa__buf_text(out, ": ");
        if ((status = write_constant(out, &spec->constants[i])))
            return status;
    }
    fa__buf_text(out, spec->constant_count > 0 ? "}" : "");
    if (spec->header_count > 0)
        fa__buf_text(out, ", \"headers\": {");
    for (size_t i = 0; i < spec->header_count; i++) {
        fa__buf_text(out, i ? ", " : "");
        if ((status = write_text(out, spec->headers[i].name, "header")))
            return status;
        fa__buf_text(out, ": ");
        if ((status = write_text(out, spec->headers[i].text, "header")))
            return status;
    }
    fa__buf_text(out, spec->header_count > 0 ? "}" : "");
    if (spec->option_count > 0)
        fa__buf_text(out, ", \"options\": [");
    for (size_t i = 0; i < spec->option_count; i++) {
        fa__buf_text(out, i ? ", " : "");
        if ((status = write_text(out, spec->options[i], "option")))
            return status;
    }
    fa__buf_text(out, spec->option_count > 0 ? "]" : "");
    return FA_OK;
}

fa_status fa__manifest_write_template(fa__buf *out, const fa_template_spec *spec)
{
    const uint32_t *cluster = spec->cluster;
    fa_status status = FA_OK;

    if ((status = write_named_text(out, "name", spec->name)) ||
        (status = write_named_text(out, "entry", spec->entry)) ||
        (status = write_named_text(out, "source", spec->source)) ||
        (status = write_lists(out, spec)))
        return status;
    if (spec->smem_bytes)
        fa__buf_format(out, ", \"smem_bytes\": %u", spec->smem_bytes);
    if (cluster[0] || cluster[1] || cluster[2])
        fa__buf_format(out, ", \"cluster\": [%u, %u, %u]", cluster[0], cluster[1], cluster[2]);
    if (spec->cooperative)
        fa__buf_text(out, ", \"cooperative\": true");
    if (spec->programmatic_launch)
        fa__buf_text(out, ", \"programmatic_launch\": true");
    return FA_OK;
}
