/* FA_OP_TEMPLATE: the user's own source. Nothing here trusts a string: what becomes part of the
 * source or an option is checked character by character. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "op.h"
#include "status.h"
#include "template_text.h"

/* Of constants, headers and options: far over any use, far under any overflow. */
#define MAX_COUNT 4096

static const char *or_default(const char *text, const char *fallback)
{
    return text ? text : fallback;
}

static bool packable(const fa_spec *spec)
{
    const fa_template_spec *t = &spec->tmpl;
    return t->source && t->entry && (t->constants || !t->constant_count) &&
           (t->headers || !t->header_count) && (t->options || !t->option_count) &&
           t->constant_count <= MAX_COUNT && t->header_count <= MAX_COUNT &&
           t->option_count <= MAX_COUNT;
}

static fa_status check_pointers(const fa_template_spec *t)
{
    if (!t->source || !t->entry)
        return fa__fail(FA_ERR_NULL_POINTER, "template: fa_template_spec.%s is NULL",
                        t->source ? "entry" : "source");
    const struct {
        const char *name;
        const void *array;
        size_t count;
    } lists[] = {{"constant", t->constants, t->constant_count},
                 {"header", t->headers, t->header_count},
                 {"option", t->options, t->option_count}};
    for (size_t i = 0; i < 3; i++) {
        if (lists[i].count && !lists[i].array)
            return fa__fail(FA_ERR_NULL_POINTER, "template: %s_count = %zu, but %ss is NULL",
                            lists[i].name, lists[i].count, lists[i].name);
        if (lists[i].count > MAX_COUNT)
            return fa__fail(FA_ERR_LIMIT, "template: %s_count = %zu; at most %d", lists[i].name,
                            lists[i].count, MAX_COUNT);
    }
    return FA_OK;
}

/* --- validate --- */

static fa_status check_constant(const fa_template_spec *t, size_t i)
{
    const fa_constant *c = &t->constants[i];
    const char *why = fa__template_bad_name(c->name);
    if (why)
        return fa__fail(FA_ERR_CONSTANT, "template: constants[%zu].name '%.60s' %s", i,
                        or_default(c->name, "NULL"), why);
    for (size_t j = 0; j < i; j++)
        if (strcmp(t->constants[j].name, c->name) == 0)
            return fa__fail(FA_ERR_CONSTANT, "template: constant %s is given twice", c->name);
    switch (c->type) {
    case FA_CONSTANT_INT:
        return FA_OK;
    case FA_CONSTANT_FLOAT:
        if (isfinite(c->float_value))
            return FA_OK;
        return fa__fail(FA_ERR_CONSTANT, "template: constant %s is not finite", c->name);
    case FA_CONSTANT_BOOL:
        if (c->int_value == 0 || c->int_value == 1)
            return FA_OK;
        return fa__fail(FA_ERR_CONSTANT, "template: constant %s = %" PRId64 "; a bool is 0 or 1",
                        c->name, c->int_value);
    case FA_CONSTANT_DTYPE:
        if (c->int_value >= FA_F32 && c->int_value <= FA_BF16)
            return FA_OK;
        return fa__fail(FA_ERR_CONSTANT, "template: constant %s = %" PRId64 " is no fa_dtype",
                        c->name, c->int_value);
    case FA_CONSTANT_IDENTIFIER:
        why = fa__template_bad_identifier(c->identifier);
        if (!why)
            return FA_OK;
        return fa__fail(FA_ERR_CONSTANT, "template: constant %s: identifier '%.60s' %s", c->name,
                        or_default(c->identifier, "NULL"), why);
    }
    return fa__fail(FA_ERR_CONSTANT,
                    "template: constant %s has type %d, which is no fa_constant_type", c->name,
                    (int)c->type);
}

static fa_status refuse_path(const char *name)
{
    return fa__fail(
        FA_ERR_VALUE,
        "template: '%.60s' includes a file by its absolute path or through a macro; pass its "
        "text in fa_template_spec.headers under a name, and include that name: the key "
        "must know it",
        name);
}

static fa_status check_header(const fa_template_spec *t, size_t i)
{
    const fa_header *h = &t->headers[i];
    if (!h->name || !h->text)
        return fa__fail(FA_ERR_NULL_POINTER, "template: headers[%zu].%s is NULL", i,
                        h->name ? "text" : "name");
    if (!h->name[0] || !fa__template_plain_text(h->name) || strpbrk(h->name, "\"<>"))
        return fa__fail(FA_ERR_VALUE, "template: headers[%zu].name '%.60s' cannot be #included", i,
                        h->name);
    if (strncmp(h->name, "fajit/", 6) == 0)
        return fa__fail(FA_ERR_VALUE,
                        "template: headers[%zu].name '%.60s': names in fajit/ are the "
                        "library's own device headers",
                        i, h->name);
    if (!fa__json_is_utf8(h->name) || !fa__json_is_utf8(h->text))
        return fa__fail(FA_ERR_VALUE, "template: header '%.60s' is not UTF-8", h->name);
    if (fa__template_includes_path(h->text))
        return refuse_path(h->name);
    for (size_t j = 0; j < i; j++)
        if (strcmp(t->headers[j].name, h->name) == 0)
            return fa__fail(FA_ERR_VALUE, "template: header '%.60s' is given twice", h->name);
    return FA_OK;
}

static fa_status check_option(const fa_template_spec *t, size_t i)
{
    if (!t->options[i])
        return fa__fail(FA_ERR_NULL_POINTER, "template: options[%zu] is NULL", i);
    const char *why = fa__template_bad_option(t->options[i]);
    if (!why)
        return FA_OK;
    return fa__fail(FA_ERR_OPTION, "template: option '%.80s' is not allowed: %s", t->options[i],
                    why);
}

static fa_status check_lists(const fa_template_spec *t)
{
    fa_status status = FA_OK;
    for (size_t i = 0; i < t->constant_count && status == FA_OK; i++)
        status = check_constant(t, i);
    for (size_t i = 0; i < t->header_count && status == FA_OK; i++)
        status = check_header(t, i);
    for (size_t i = 0; i < t->option_count && status == FA_OK; i++)
        status = check_option(t, i);
    return status;
}

/* A cluster of {2} means 2 x 1 x 1, as with grids and blocks. */
static fa_status check_cluster(fa_template_spec *t, const fa__target *target)
{
    uint32_t *c = t->cluster;
    bool none = !c[0] && !c[1] && !c[2];
    if (none && !t->programmatic_launch)
        return FA_OK;
    if (target->cc < 90)
        return fa__fail(FA_ERR_UNSUPPORTED, "template: %s needs sm_90 or later, not %s",
                        none ? "programmatic_launch" : "cluster", target->arch);
    if (none)
        return FA_OK;
    for (int i = 0; i < 3; i++)
        c[i] = c[i] ? c[i] : 1;
    if (c[0] > 16 || c[1] > 16 || c[2] > 16 || c[0] * c[1] * c[2] > 16)
        return fa__fail(FA_ERR_GEOMETRY,
                        "template: cluster = %u x %u x %u; 16 blocks at most (8 on every device)",
                        c[0], c[1], c[2]);
    return FA_OK;
}

static fa_status validate(fa_spec *spec, const fa__target *target)
{
    fa_template_spec *t = &spec->tmpl;
    fa_status status = check_pointers(t);
    if (status)
        return status;
    t->name = or_default(t->name, "template.cu");
    if (!t->name[0] || !fa__template_plain_text(t->name))
        return fa__fail(FA_ERR_VALUE, "template: name is empty or has control characters");
    if (!t->source[0])
        return fa__fail(FA_ERR_SIZE, "template: source is empty");
    if (!fa__json_is_utf8(t->source))
        return fa__fail(FA_ERR_VALUE, "template: source is not UTF-8 (comments count too)");
    if (fa__template_includes_path(t->source))
        return refuse_path(t->name);
    if (!fa__template_good_entry(t->entry))
        return fa__fail(FA_ERR_VALUE,
                        "template: entry '%.80s' is not the name of a function, such as scale or "
                        "ns::scale<float, 4>",
                        t->entry);
    status = check_lists(t);
    return status ? status : check_cluster(t, target);
}

static fa_status plan(const fa_spec *spec, const fa__target *target, fa__plan *p)
{
    const fa_template_spec *t = &spec->tmpl;
    (void)target;
    p->smem_dynamic_bytes = t->smem_bytes;
    memcpy(p->flags.cluster, t->cluster, sizeof p->flags.cluster);
    p->flags.cooperative = t->cooperative;
    p->flags.programmatic = t->programmatic_launch;
    fa__buf text = fa__buf_on(p->text, sizeof p->text);
    fa__buf_text(&text, "grid and block given at launch");
    if (t->cluster[0])
        fa__buf_format(&text, ", cluster %ux%ux%u", t->cluster[0], t->cluster[1], t->cluster[2]);
    if (t->cooperative)
        fa__buf_text(&text, ", cooperative");
    if (t->programmatic_launch)
        fa__buf_text(&text, ", programmatic launch");
    return FA_OK; /* the longest text is shorter than the room */
}

/* --- instantiate --- */

static void write_constant(fa__buf *source, fa__buf *label, const fa_constant *c)
{
    switch (c->type) {
    case FA_CONSTANT_INT:
        fa__prologue_int(source, c->name, c->int_value);
        fa__buf_format(label, " %s=%" PRId64, c->name, c->int_value);
        break;
    case FA_CONSTANT_FLOAT:
        fa__prologue_real(source, c->name, c->float_value);
        fa__buf_format(label, " %s=", c->name);
        fa__buf_hexfloat(label, c->float_value);
        break;
    case FA_CONSTANT_BOOL:
        fa__prologue_bool(source, c->name, c->int_value != 0);
        fa__buf_format(label, " %s=%s", c->name, c->int_value ? "true" : "false");
        break;
    case FA_CONSTANT_DTYPE:
        fa__prologue_dtype(source, c->name, (fa_dtype)c->int_value);
        fa__buf_format(label, " %s=%s", c->name, fa__dtype_name((fa_dtype)c->int_value));
        break;
    case FA_CONSTANT_IDENTIFIER:
        fa__buf_format(source, "#define %s %s\n", c->name, c->identifier);
        fa__buf_format(label, " %s=%s", c->name, c->identifier);
        break;
    }
}

/* A source that names no device header gets none: then they are not part of its key either. One that
 * names any gets all. */
static bool uses_device_headers(const fa_template_spec *t, const fa__buf *source)
{
    if (!source->data || strstr(source->data, "fajit/"))
        return true;
    for (size_t i = 0; i < t->header_count; i++)
        if (strstr(t->headers[i].text, "fajit/"))
            return true;
    return false;
}

static fa_status list_headers(const fa_template_spec *t, fa__program *program)
{
    size_t own = uses_device_headers(t, &program->source) ? fa__device_header_count : 0;
    program->headers = calloc(own + t->header_count + 1, sizeof *program->headers);
    if (!program->headers)
        return fa__fail_memory((own + t->header_count + 1) * sizeof *program->headers);
    for (size_t i = 0; i < own; i++)
        program->headers[program->header_count++] = fa__device_headers[i];
    for (size_t i = 0; i < t->header_count; i++)
        program->headers[program->header_count++] =
            (fa__header_ref){t->headers[i].name, t->headers[i].text};
    return FA_OK;
}

static fa_status instantiate(const fa_spec *spec, const fa__plan *p, fa__program *program)
{
    const fa_template_spec *t = &spec->tmpl;
    (void)p;
    fa__buf_format(&program->label, "template %s %s", t->name, t->entry);
    fa__prologue_begin(&program->source);
    for (size_t i = 0; i < t->constant_count; i++)
        write_constant(&program->source, &program->label, &t->constants[i]);
    fa__prologue_end(&program->source, t->name);
    fa__buf_text(&program->source, t->source);
    program->file = t->name;
    program->entry = t->entry;
    program->options = calloc(t->option_count + 1, sizeof *program->options);
    if (!program->options)
        return fa__fail_memory((t->option_count + 1) * sizeof *program->options);
    for (size_t i = 0; i < t->option_count; i++)
        program->options[program->option_count++] = t->options[i];
    return list_headers(t, program);
}

/* --- pack and copy --- */

static void pack_text(fa__buf *out, const char *text)
{
    size_t len = text ? strlen(text) : 0;
    fa__buf_bytes(out, &len, sizeof len);
    fa__buf_bytes(out, text ? text : "", len);
}

static void pack(const fa_spec *spec, fa__buf *out)
{
    const fa_template_spec *t = &spec->tmpl;
    pack_text(out, or_default(t->name, "template.cu"));
    pack_text(out, t->source);
    pack_text(out, t->entry);
    fa__buf_bytes(out, &t->constant_count, sizeof t->constant_count);
    for (size_t i = 0; i < t->constant_count; i++) {
        const fa_constant *c = &t->constants[i];
        int32_t type = (int32_t)c->type;
        pack_text(out, c->name);
        fa__buf_bytes(out, &type, sizeof type);
        if (c->type == FA_CONSTANT_FLOAT)
            fa__buf_bytes(out, &c->float_value, sizeof c->float_value);
        else if (c->type == FA_CONSTANT_IDENTIFIER)
            pack_text(out, c->identifier);
        else
            fa__buf_bytes(out, &c->int_value, sizeof c->int_value);
    }
    fa__buf_bytes(out, &t->header_count, sizeof t->header_count);
    for (size_t i = 0; i < t->header_count; i++) {
        pack_text(out, t->headers[i].name);
        pack_text(out, t->headers[i].text);
    }
    fa__buf_bytes(out, &t->option_count, sizeof t->option_count);
    for (size_t i = 0; i < t->option_count; i++)
        pack_text(out, t->options[i]);
    const uint32_t rest[] = {t->smem_bytes, t->cluster[0],  t->cluster[1],
                             t->cluster[2], t->cooperative, t->programmatic_launch};
    fa__buf_bytes(out, rest, sizeof rest);
}

/* Takes pieces off one allocation; with `base` NULL it only counts. */
typedef struct arena {
    char *base;
    size_t used;
} arena;

static void *take(arena *a, const void *from, size_t bytes)
{
    char *at = a->base ? a->base + a->used : NULL;
    if (at && bytes)
        memcpy(at, from, bytes);
    a->used += (bytes + 15) & ~(size_t)15;
    return at;
}

static const char *take_text(arena *a, const char *text)
{
    return text ? take(a, text, strlen(text) + 1) : NULL;
}

static fa_template_spec copy_into(arena *a, const fa_template_spec *t)
{
    fa_template_spec c = *t;
    c.name = take_text(a, t->name);
    c.source = take_text(a, t->source);
    c.entry = take_text(a, t->entry);
    fa_constant *constants = take(a, t->constants, t->constant_count * sizeof *constants);
    fa_header *headers = take(a, t->headers, t->header_count * sizeof *headers);
    const char **options = take(a, t->options, t->option_count * sizeof *options);
    for (size_t i = 0; i < t->constant_count; i++) {
        const char *name = take_text(a, t->constants[i].name);
        const char *identifier = t->constants[i].type == FA_CONSTANT_IDENTIFIER
                                     ? take_text(a, t->constants[i].identifier)
                                     : NULL;
        if (a->base) {
            constants[i].name = name;
            constants[i].identifier = identifier;
        }
    }
    for (size_t i = 0; i < t->header_count; i++) {
        fa_header header = {take_text(a, t->headers[i].name), take_text(a, t->headers[i].text)};
        if (a->base)
            headers[i] = header;
    }
    for (size_t i = 0; i < t->option_count; i++) {
        const char *option = take_text(a, t->options[i]);
        if (a->base)
            options[i] = option;
    }
    c.constants = constants;
    c.headers = headers;
    c.options = options;
    return c;
}

static fa_status copy(fa_spec *spec, void **memory)
{
    arena a = {0};
    copy_into(&a, &spec->tmpl);
    a.base = malloc(a.used ? a.used : 1);
    if (!a.base)
        return fa__fail_memory(a.used);
    a.used = 0;
    spec->tmpl = copy_into(&a, &spec->tmpl);
    *memory = a.base;
    return FA_OK;
}

/* --- launch --- */

static fa_status launch(const fa_spec *spec, const fa__plan *p, int32_t multiprocessors,
                        const fa_args *args, fa__launch *l, fa__launch_room *room)
{
    const fa_template_args *a = &args->tmpl;
    (void)spec;
    (void)multiprocessors;
    if (a->param_count > FA_MAX_PARAMS)
        return fa__fail(FA_ERR_PARAM_COUNT, "template: param_count = %zu; at most %d",
                        a->param_count, FA_MAX_PARAMS);
    if (a->param_count && !a->params)
        return fa__fail(FA_ERR_NULL_POINTER, "template: param_count = %zu, but params is NULL",
                        a->param_count);
    for (size_t i = 0; i < a->param_count; i++) {
        if (!a->params[i].data)
            return fa__fail(FA_ERR_NULL_POINTER, "template: params[%zu].data is NULL", i);
        room->params[i] = (void *)(uintptr_t)a->params[i].data;
    }
    if (a->smem_bytes > p->smem_dynamic_bytes)
        return fa__fail(FA_ERR_SHARED_MEMORY,
                        "template: smem_bytes = %u at launch; the spec allows %u "
                        "(fa_template_spec.smem_bytes)",
                        a->smem_bytes, p->smem_dynamic_bytes);
    for (int i = 0; i < 3; i++) {
        l->grid[i] = i && !a->grid[i] ? 1 : a->grid[i];
        l->block[i] = i && !a->block[i] ? 1 : a->block[i];
    }
    static const fa_param none;
    l->empty = a->grid[0] == 0;
    l->smem_bytes = a->smem_bytes;
    l->params = room->params;
    l->typed_params = a->params ? a->params : &none;
    l->typed_param_count = a->param_count;
    return FA_OK;
}

const fa__op fa__op_template = {
    .id = FA_OP_TEMPLATE,
    .name = "template",
    .text = "the user's own CUDA source with typed constants",
    .packable = packable,
    .validate = validate,
    .plan = plan,
    .instantiate = instantiate,
    .pack = pack,
    .copy = copy,
    .launch = launch,
};
