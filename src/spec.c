/* The registry of operations and everything that walks their parameter tables: range checks,
 * packing, and setting a member from text. Pure. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "op.h"
#include "status.h"

static const fa__op *const registry[] = {NULL,
                                         &fa__op_template,
                                         &fa__op_rope,
                                         &fa__op_kv_update,
                                         &fa__op_lowrank_kv,
                                         &fa__op_attention,
                                         &fa__op_linear,
                                         &fa__op_cross_attention};
#define OP_COUNT (sizeof registry / sizeof registry[0])

const fa__op *fa__op_find(fa_op id)
{
    return (unsigned)id < OP_COUNT ? registry[id] : NULL;
}

const fa__op *fa__op_by_name(const char *name)
{
    for (size_t i = 1; i < OP_COUNT; i++)
        if (strcmp(registry[i]->name, name) == 0)
            return registry[i];
    return NULL;
}

const fa_param_info *fa__op_param(const fa__op *op, const char *key)
{
    for (size_t i = 0; i < op->param_count; i++) {
        const fa_param_info *p = &op->params[i];
        if (strcmp(p->name, key) == 0 || (p->alias && strcmp(p->alias, key) == 0))
            return p;
    }
    return NULL;
}

fa_status fa__program_make(const fa__op *op, const fa_spec *spec, const fa__plan *plan,
                           fa__program *program)
{
    fa_status status = op->instantiate(spec, plan, program);
    if (status == FA_OK && (program->source.failed || program->label.failed))
        status = fa__fail_memory(program->source.capacity);
    return status;
}

fa_status fa__program_embedded(fa__program *program, const fa__embedded *template,
                               const char *entry)
{
    const size_t bytes = (template->header_count + 1) * sizeof *program->headers;
    fa__prologue_end(&program->source, template->file);
    fa__buf_text(&program->source, template->text);
    program->file = template->file;
    program->entry = entry;
    program->headers = malloc(bytes);
    if (!program->headers)
        return fa__fail_memory(bytes);
    memcpy(program->headers, template->headers, bytes); /* with the empty one at the end */
    program->header_count = template->header_count;
    return FA_OK;
}

void fa__program_free(fa__program *program)
{
    fa__buf_free(&program->source);
    fa__buf_free(&program->label);
    free(program->headers);
    free(program->options);
    *program = (fa__program){0};
}

fa_status fa_op_info(fa_op op, fa_op_info_t *info)
{
    if (!info)
        return fa__fail(FA_ERR_NULL_POINTER, "fa_op_info: info is NULL");
    const fa__op *found = fa__op_find(op);
    if (!found)
        return fa__fail(FA_ERR_UNKNOWN_NAME,
                        "fa_op_info: there is no operation %d; 1 to %d are known", (int)op,
                        (int)OP_COUNT - 1);
    *info = (fa_op_info_t){found->name, found->text, found->params, found->param_count};
    return FA_OK;
}

const char *const fa__dtype_names[] = {"f32", "f16", "bf16", NULL};
#define DTYPE_COUNT (sizeof fa__dtype_names / sizeof fa__dtype_names[0] - 1)

const char *fa__dtype_name(fa_dtype dtype)
{
    return (unsigned)dtype < DTYPE_COUNT ? fa__dtype_names[dtype] : "?";
}

size_t fa__dtype_bytes(fa_dtype dtype)
{
    return dtype == FA_F32 ? 4 : 2;
}

/* --- members --- */

static const void *member(const fa_spec *spec, const fa_param_info *p)
{
    return (const char *)spec + p->offset;
}

static int32_t member_int(const fa_spec *spec, const fa_param_info *p)
{
    int32_t value = 0;
    memcpy(&value, member(spec, p), sizeof value); /* enums of this header are int-sized */
    return value;
}

static double member_real(const fa_spec *spec, const fa_param_info *p)
{
    double value = 0;
    memcpy(&value, member(spec, p), sizeof value);
    return value;
}

static int enum_count(const fa_param_info *p)
{
    int n = 0;
    while (p->names[n])
        n++;
    return n;
}

static void list_names(const fa_param_info *p, fa__buf *out)
{
    for (int i = 0; p->names[i]; i++)
        fa__buf_format(out, "%s%s", i ? ", " : "", p->names[i]);
}

/* "head_dim = 7 is not allowed: 2 to 1024, or 0" in fa_last_error. */
static fa_status refuse(const fa__op *op, const fa_param_info *p, fa_status status,
                        const char *value)
{
    fa__buf allowed = {0};
    switch (p->kind) {
    case FA_PARAM_ENUM:
        list_names(p, &allowed);
        break;
    case FA_PARAM_BOOL:
        fa__buf_text(&allowed, "true, false");
        break;
    case FA_PARAM_INT:
        fa__buf_format(&allowed, "%lld to %lld%s", (long long)p->min, (long long)p->max,
                       p->dynamic ? ", or 0 (FA_DYNAMIC) to give it at launch"
                                  : ", or 0 for none given");
        break;
    case FA_PARAM_REAL:
        fa__json_real(&allowed, p->min);
        fa__buf_text(&allowed, " to ");
        fa__json_real(&allowed, p->max);
        fa__buf_text(&allowed, ", or 0 for none given");
        break;
    }
    fa__fail(status, "%s: %s = %s is not allowed (fa_%s_spec.%s); allowed: %s", op->name, p->name,
             value, op->name, p->name, allowed.data ? allowed.data : "?");
    fa__buf_free(&allowed);
    return status;
}

static fa_status refuse_int(const fa__op *op, const fa_param_info *p, fa_status status,
                            int64_t value)
{
    fa__buf text = {0};
    fa__buf_format(&text, "%lld", (long long)value);
    refuse(op, p, status, text.data ? text.data : "?");
    fa__buf_free(&text);
    return status;
}

static fa_status check_int(const fa__op *op, const fa_param_info *p, int64_t value)
{
    if (value == 0)
        return FA_OK; /* dynamic, or the default: the operation decides */
    if (value < 0 || (double)value < p->min)
        return refuse_int(op, p, FA_ERR_SIZE, value);
    if ((double)value > p->max)
        return refuse_int(op, p, FA_ERR_LIMIT, value);
    return FA_OK;
}

static fa_status check_real(const fa__op *op, const fa_param_info *p, double value)
{
    if (value == 0 || (isfinite(value) && value >= p->min && value <= p->max))
        return FA_OK;
    fa__buf text = {0};
    if (isfinite(value))
        fa__json_real(&text, value);
    else
        fa__buf_text(&text, isnan(value) ? "nan" : "infinity");
    refuse(op, p, FA_ERR_VALUE, text.data ? text.data : "?");
    fa__buf_free(&text);
    return FA_ERR_VALUE;
}

fa_status fa__spec_check_table(const fa__op *op, const fa_spec *spec)
{
    for (size_t i = 0; i < op->param_count; i++) {
        const fa_param_info *p = &op->params[i];
        fa_status status = FA_OK;
        switch (p->kind) {
        case FA_PARAM_INT:
            status = check_int(op, p, member_int(spec, p));
            break;
        case FA_PARAM_ENUM: {
            int32_t value = member_int(spec, p);
            if (value < 0 || value >= enum_count(p))
                status = refuse_int(op, p, FA_ERR_VALUE, value);
            break;
        }
        case FA_PARAM_REAL:
            status = check_real(op, p, member_real(spec, p));
            break;
        case FA_PARAM_BOOL:
            break;
        }
        if (status)
            return status;
    }
    return FA_OK;
}

void fa__spec_pack_table(const fa__op *op, const fa_spec *spec, fa__buf *out)
{
    unsigned char bytes[512];
    size_t len = 0;
    for (size_t i = 0; i < op->param_count; i++) {
        const fa_param_info *p = &op->params[i];
        size_t size = p->kind == FA_PARAM_REAL ? 8 : p->kind == FA_PARAM_BOOL ? 1 : 4;
        if (len + size > sizeof bytes) {
            fa__buf_bytes(out, bytes, len);
            len = 0;
        }
        if (size == 4) /* copies of known sizes are single instructions */
            memcpy(bytes + len, member(spec, p), 4);
        else if (size == 8)
            memcpy(bytes + len, member(spec, p), 8);
        else
            memcpy(bytes + len, member(spec, p), 1);
        len += size;
    }
    fa__buf_bytes(out, bytes, len);
}

/* --- setting a member from text --- */

static fa_status unknown_key(const fa__op *op, const char *key)
{
    fa__buf known = {0};
    for (size_t i = 0; i < op->param_count; i++) {
        const fa_param_info *p = &op->params[i];
        fa__buf_format(&known, "%s%s", i ? ", " : "", p->name);
        if (p->alias)
            fa__buf_format(&known, " (%s)", p->alias);
    }
    fa__fail(FA_ERR_UNKNOWN_NAME, "%s has no parameter '%s'; it has: %s", op->name, key,
             known.data ? known.data : "?");
    fa__buf_free(&known);
    return FA_ERR_UNKNOWN_NAME;
}

static fa_status set_enum(const fa__op *op, const fa_param_info *p, void *at, const char *value)
{
    for (int32_t i = 0; p->names[i]; i++)
        if (strcmp(p->names[i], value) == 0) {
            memcpy(at, &i, sizeof i);
            return FA_OK;
        }
    return refuse(op, p, FA_ERR_VALUE, value);
}

static fa_status set_bool(const fa__op *op, const fa_param_info *p, void *at, const char *value)
{
    bool yes = strcmp(value, "true") == 0 || strcmp(value, "1") == 0;
    if (!yes && strcmp(value, "false") != 0 && strcmp(value, "0") != 0)
        return refuse(op, p, FA_ERR_VALUE, value);
    memcpy(at, &yes, sizeof yes);
    return FA_OK;
}

static fa_status set_int(const fa__op *op, const fa_param_info *p, void *at, const char *value)
{
    int64_t number = 0;
    if (!fa__json_to_int(value, &number))
        return refuse(op, p, FA_ERR_VALUE, value);
    fa_status status = check_int(op, p, number);
    if (status)
        return status;
    int32_t narrow = (int32_t)number;
    memcpy(at, &narrow, sizeof narrow);
    return FA_OK;
}

static fa_status set_real(const fa__op *op, const fa_param_info *p, void *at, const char *value)
{
    double number = 0;
    if (!fa__json_to_real(value, &number))
        return refuse(op, p, FA_ERR_VALUE, value);
    fa_status status = check_real(op, p, number);
    if (status)
        return status;
    memcpy(at, &number, sizeof number);
    return FA_OK;
}

fa_status fa_spec_set(fa_spec *spec, const char *key, const char *value)
{
    if (!spec || !key || !value)
        return fa__fail(FA_ERR_NULL_POINTER, "fa_spec_set: %s is NULL",
                        !spec  ? "spec"
                        : !key ? "key"
                               : "value");
    fa_status status = fa__check_struct("fa_spec", spec, spec->size, sizeof *spec);
    if (status)
        return status;
    const fa__op *op = fa__op_find(spec->op);
    if (!op)
        return fa__fail(FA_ERR_UNKNOWN_NAME, "fa_spec_set: spec.op is %d, which is no operation",
                        (int)spec->op);
    if (op->param_count == 0)
        return fa__fail(FA_ERR_UNSUPPORTED,
                        "fa_spec_set: %s holds pointers; fill fa_%s_spec in the program", op->name,
                        op->name);
    const fa_param_info *p = fa__op_param(op, key);
    if (!p)
        return unknown_key(op, key);
    void *at = (char *)spec + p->offset;
    switch (p->kind) {
    case FA_PARAM_INT:
        return set_int(op, p, at, value);
    case FA_PARAM_ENUM:
        return set_enum(op, p, at, value);
    case FA_PARAM_BOOL:
        return set_bool(op, p, at, value);
    case FA_PARAM_REAL:
        return set_real(op, p, at, value);
    }
    return unknown_key(op, key);
}
