#include "manifest.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "manifest_template.h"
#include "op.h"
#include "status.h"

#define MAX_KERNELS 100000u
#define MAX_PARAMETERS 64u /* of one operation; a bit each */

typedef struct block {
    struct block *next;
    max_align_t data[];
} block;

struct fa__manifest_pool {
    fa__json *document; /* holds every text */
    block *blocks;      /* arrays of constants, headers and options */
};

void *fa__manifest_take(fa__manifest_pool *pool, size_t bytes)
{
    block *b = calloc(1, sizeof *b + bytes);

    if (!b) {
        fa__fail_memory(bytes);
        return NULL;
    }
    b->next = pool->blocks;
    pool->blocks = b;
    return b->data;
}

static fa_status refuse_at(uint32_t line, uint32_t column, const char *format, va_list args)
{
    char text[1024];

    vsnprintf(text, sizeof text, format, args);
    return fa__fail(FA_ERR_MANIFEST, "line %u column %u: %s", line, column, text);
}

fa_status fa__manifest_refuse(const fa__json *at, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fa_status status = refuse_at(at->line, at->column, format, args);
    va_end(args);
    return status;
}

fa_status fa__manifest_refuse_key(const fa__json *member, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fa_status status = refuse_at(member->key_line, member->key_column, format, args);
    va_end(args);
    return status;
}

/* --- reading --- */

/* The text that fa_spec_set reads; NULL when the JSON value is of another type than the member. */
static const char *member_text(const fa__json *m, fa_param_kind kind)
{
    switch (kind) {
    case FA_PARAM_INT:
    case FA_PARAM_REAL:
        return m->type == FA__JSON_NUMBER ? m->text : NULL;
    case FA_PARAM_ENUM:
        return m->type == FA__JSON_STRING ? m->text : NULL;
    case FA_PARAM_BOOL:
        return m->type == FA__JSON_BOOL ? (m->boolean ? "true" : "false") : NULL;
    }
    return NULL;
}

static const char *kind_text(fa_param_kind kind)
{
    switch (kind) {
    case FA_PARAM_INT:
        return "an integer";
    case FA_PARAM_REAL:
        return "a number";
    case FA_PARAM_ENUM:
        return "a string";
    case FA_PARAM_BOOL:
        return "true or false";
    }
    return "?";
}

static fa_status read_member(const fa__op *op, const fa__json *m, fa_spec *spec, uint64_t *seen)
{
    const fa_param_info *p = fa__op_param(op, m->key);

    if (!p) {
        fa_spec_set(spec, m->key, ""); /* for its list of the legal keys */
        return fa__manifest_refuse_key(m, "%s", fa_last_error());
    }
    const size_t index = (size_t)(p - op->params);
    if (*seen >> index & 1)
        return fa__manifest_refuse_key(m, "%s and %s are the same parameter: give it once", p->name,
                                       p->alias);
    *seen |= (uint64_t)1 << index;
    const char *text = member_text(m, p->kind);
    if (!text)
        return fa__manifest_refuse(m, "%s.%s must be %s", op->name, p->name, kind_text(p->kind));
    if (fa_spec_set(spec, p->name, text))
        return fa__manifest_refuse(m, "%s", fa_last_error());
    return FA_OK;
}

static fa_status refuse_op(const fa__json *op)
{
    fa__buf names = {0};
    const fa__op *known = NULL;

    for (int i = 1; (known = fa__op_find((fa_op)i)); i++)
        fa__buf_format(&names, "%s%s", i > 1 ? ", " : "", known->name);
    fa_status status = fa__manifest_refuse(op, "\"%.80s\" is no operation; the operations are %s",
                                           op->text, names.data ? names.data : "?");
    fa__buf_free(&names);
    return status;
}

static fa_status read_kernel(const fa__json *kernel, fa_spec *spec, fa__manifest_pool *pool)
{
    uint64_t seen = 0;

    if (kernel->type != FA__JSON_OBJECT)
        return fa__manifest_refuse(kernel, "every element of \"kernels\" must be an object");
    const fa__json *name = fa__json_get(kernel, "op");
    if (!name)
        return fa__manifest_refuse(kernel, "the kernel has no \"op\"");
    if (name->type != FA__JSON_STRING)
        return fa__manifest_refuse(name, "\"op\" must be a string: the name of an operation");
    const fa__op *op = fa__op_by_name(name->text);
    if (!op)
        return refuse_op(name);
    *spec = (fa_spec)FA_SPEC_INIT(op->id);
    if (op->id == FA_OP_TEMPLATE)
        return fa__manifest_read_template(kernel, &spec->tmpl, pool);
    if (op->param_count > MAX_PARAMETERS)
        return fa__fail(FA_ERR_UNSUPPORTED, "%s has %zu parameters; a manifest takes at most %u",
                        op->name, op->param_count, MAX_PARAMETERS);
    for (const fa__json *m = kernel->child; m; m = m->next) {
        fa_status status = m == name ? FA_OK : read_member(op, m, spec, &seen);
        if (status)
            return status;
    }
    return FA_OK;
}

/* Checks everything around the kernels. The version comes first: a later one may differ in all the
 * rest. */
static fa_status read_frame(const fa__json *document, const fa__json **kernels)
{
    int64_t version = 0;

    if (document->type != FA__JSON_OBJECT)
        return fa__manifest_refuse(document,
                                   "a manifest is an object {\"fajit_manifest\": 1, "
                                   "\"kernels\": [...]}");
    const fa__json *v = fa__json_get(document, "fajit_manifest");
    if (!v)
        return fa__manifest_refuse(document, "this is no manifest: it has no \"fajit_manifest\"");
    if (v->type != FA__JSON_NUMBER || !fa__json_to_int(v->text, &version) || version != 1)
        return fa__manifest_refuse(v,
                                   "\"fajit_manifest\" must be 1, the version this library "
                                   "reads");
    for (const fa__json *m = document->child; m; m = m->next)
        if (m != v && strcmp(m->key, "kernels") != 0)
            return fa__manifest_refuse_key(m,
                                           "unknown key \"%.80s\"; a manifest has fajit_manifest "
                                           "and kernels",
                                           m->key);
    *kernels = fa__json_get(document, "kernels");
    if (!*kernels)
        return fa__manifest_refuse(document, "the manifest has no \"kernels\"");
    if ((*kernels)->type != FA__JSON_ARRAY)
        return fa__manifest_refuse(*kernels, "\"kernels\" must be an array");
    if ((*kernels)->count > MAX_KERNELS)
        return fa__manifest_refuse(*kernels, "\"kernels\" has %zu elements; the limit is %u",
                                   (*kernels)->count, MAX_KERNELS);
    return FA_OK;
}

fa_status fa__manifest_parse(const char *text, size_t len, fa__manifest *out)
{
    fa__manifest made = {0};
    const fa__json *kernels = NULL;
    fa_status status = FA_ERR_OUT_OF_MEMORY;

    *out = (fa__manifest){0};
    fa__manifest_pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return fa__fail_memory(sizeof *pool);
    made.memory = pool;
    status = fa__json_parse(text, len, &pool->document);
    if (status || (status = read_frame(pool->document, &kernels)))
        goto fail;
    if (kernels->count > 0) {
        status = FA_ERR_OUT_OF_MEMORY;
        made.specs = fa__manifest_take(pool, kernels->count * sizeof *made.specs);
        if (!made.specs)
            goto fail;
    }
    for (const fa__json *k = kernels->child; k; k = k->next)
        if ((status = read_kernel(k, &made.specs[made.count++], pool)))
            goto fail;
    *out = made;
    return FA_OK;
fail:
    fa__manifest_free(&made);
    return status;
}

void fa__manifest_free(fa__manifest *manifest)
{
    fa__manifest_pool *pool = manifest->memory;

    if (pool) {
        for (block *b = pool->blocks, *next = NULL; b; b = next) {
            next = b->next;
            free(b);
        }
        fa__json_free(pool->document);
        free(pool);
    }
    *manifest = (fa__manifest){0};
}

/* --- writing --- */

void fa__manifest_begin(fa__buf *out)
{
    fa__buf_text(out, "{\n  \"fajit_manifest\": 1,\n  \"kernels\": [");
}

void fa__manifest_end(fa__buf *out)
{
    fa__buf_text(out, "\n  ]\n}\n");
}

static fa_status write_enum(fa__buf *out, const fa_param_info *p, int32_t value)
{
    int32_t i = 0;

    while (i < value && p->names[i])
        i++;
    if (value < 0 || !p->names[i])
        return fa__fail(FA_ERR_VALUE, "cannot write the manifest: %s is %d, which has no name",
                        p->name, value);
    fa__buf_format(out, ", \"%s\": ", p->name);
    fa__json_string(out, p->names[i]);
    return FA_OK;
}

static fa_status write_param(fa__buf *out, const fa_spec *spec, const fa_param_info *p)
{
    const char *at = (const char *)spec + p->offset;
    int32_t integer = 0;
    double real = 0;

    switch (p->kind) {
    case FA_PARAM_INT:
        memcpy(&integer, at, sizeof integer);
        if (integer != 0)
            fa__buf_format(out, ", \"%s\": %d", p->name, integer);
        return FA_OK;
    case FA_PARAM_ENUM:
        memcpy(&integer, at, sizeof integer);
        return integer == 0 ? FA_OK : write_enum(out, p, integer);
    case FA_PARAM_BOOL:
        if (*(const bool *)(const void *)at)
            fa__buf_format(out, ", \"%s\": true", p->name);
        return FA_OK;
    case FA_PARAM_REAL:
        memcpy(&real, at, sizeof real);
        if (!isfinite(real))
            return fa__fail(FA_ERR_VALUE, "cannot write the manifest: %s is not finite", p->name);
        if (real != 0.0) {
            fa__buf_format(out, ", \"%s\": ", p->name);
            fa__json_real(out, real);
        }
        return FA_OK;
    }
    return FA_OK;
}

fa_status fa__manifest_add(fa__buf *out, const fa_spec *spec, bool first)
{
    const fa__op *op = fa__op_find(spec->op);
    const size_t before = out->len;
    fa_status status = FA_OK;

    if (!op)
        return fa__fail(FA_ERR_UNKNOWN_NAME, "cannot write the manifest: there is no operation %d",
                        (int)spec->op);
    fa__buf_text(out, first ? "\n    {\"op\": " : ",\n    {\"op\": ");
    fa__json_string(out, op->name);
    if (op->id == FA_OP_TEMPLATE)
        status = fa__manifest_write_template(out, &spec->tmpl);
    else
        for (size_t i = 0; i < op->param_count && status == FA_OK; i++)
            status = write_param(out, spec, &op->params[i]);
    fa__buf_text(out, "}");
    if (status && out->data) {
        out->len = before;
        out->data[before] = '\0';
    }
    return status;
}
