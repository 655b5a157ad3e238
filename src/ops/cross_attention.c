/* FA_OP_CROSS_ATTENTION: an attention block with its projections. The kernels are
 * kernel_templates/cross_attention.cu. */
#include "ops/cross_attention.h"

#include <float.h>

#include "json.h"
#include "ops/params.h"
#include "status.h"

static const char *const form_names[] = {"whole", "queries", "keys", NULL};
static const char *const plan_names[] = {"auto", "one_launch", "few_launches", NULL};

#define MEMBER(name) offsetof(fa_spec, cross_attention) + offsetof(fa_cross_attention_spec, name)

static const fa_param_info parameters[] = {
    CHOICE(dtype, fa__dtype_names, "element type of inputs, weights and outputs"),
    CHOICE(form, form_names, "all of it, from keys and values that are kept, or these alone"),
    CHOICE(plan, plan_names, "of the whole: blocks that wait for each other, or three launches"),
    CHOICE(mask, fa__mask_names, "keys that a query sees"),
    YES(bias, "vectors are added to q, k and v"),
    YES(bias_out, "a vector is added to the output"),
    CHOICE(rotation, fa__rotation_names, "of q and k; pairs as in rope"),
    CHOICE(angles, fa__rotary_angles_names,
           "computed from base, or read: cos and sin tables, or an inv_freq vector"),
    NUMBER(model_dim, "C", true, 1, LINEAR_MAX_SIZE, "elements of a token"),
    NUMBER(heads_q, "H", false, 1, INT32_MAX, "heads of q, a multiple of heads_k; always baked"),
    NUMBER(heads_k, "G", false, 1, INT32_MAX, "heads of k and v; always baked"),
    NUMBER(head_dim, "D", false, 1, ATTENTION_MAX_HEAD_DIM, "elements of a head; always baked"),
    NUMBER(rotary_dim, "R", false, 2, ATTENTION_MAX_HEAD_DIM,
           "even number of them rotated, the first of each head; 0: all"),
    NUMBER(batch, "B", true, 1, INT32_MAX, "batches"),
    NUMBER(seqlen_q, "Tq", true, 1, ATTENTION_MAX_SEQLEN, "queries of a batch"),
    NUMBER(seqlen_k, "Tk", true, 1, ATTENTION_MAX_SEQLEN, "keys of a batch"),
    {"scale", NULL, FA_PARAM_REAL, MEMBER(scale), false, FLT_MIN, FLT_MAX / 2, NULL,
     "of the scores; 0: 1 / sqrt(head_dim)"},
    {"dropout", NULL, FA_PARAM_REAL, MEMBER(dropout), false, 0, 1, NULL,
     "probability; only 0 is supported"},
    ROTARY_PARAMS(MEMBER),
};

/* --- validate --- */

static fa__rotary rotary_of(fa_cross_attention_spec *s)
{
    return (fa__rotary){"cross_attention", s->angles, &s->base, &s->scaling, s->rotary_dim};
}

static fa_status need_baked(const char *name, int32_t value)
{
    return value ? FA_OK
                 : fa__fail(FA_ERR_SIZE,
                            "cross_attention: %s = 0; it is always baked "
                            "(fa_cross_attention_spec.%s)",
                            name, name);
}

static fa_status check_columns(const char *name, int32_t heads, int32_t head_dim)
{
    const int64_t columns = (int64_t)heads * head_dim;
    return columns <= LINEAR_MAX_SIZE
               ? FA_OK
               : fa__fail(FA_ERR_LIMIT,
                          "cross_attention: %s * head_dim = %lld; at most %d "
                          "(fa_cross_attention_spec.%s, head_dim)",
                          name, (long long)columns, LINEAR_MAX_SIZE, name);
}

static fa_status check_heads(const fa_cross_attention_spec *s)
{
    fa_status status = need_baked("head_dim", s->head_dim);
    if (!status)
        status = need_baked("heads_k", s->heads_k);
    if (!status && fa__cross_has_queries(s))
        status = need_baked("heads_q", s->heads_q);
    if (!status && fa__cross_has_queries(s))
        status = check_columns("heads_q", s->heads_q, s->head_dim);
    if (!status)
        status = check_columns("heads_k", s->heads_k, s->head_dim);
    if (!status && fa__cross_has_queries(s) && s->heads_q % s->heads_k)
        status = fa__fail(FA_ERR_HEAD_RATIO,
                          "cross_attention: heads_q = %d is not a multiple of heads_k = %d "
                          "(fa_cross_attention_spec.heads_q, heads_k)",
                          s->heads_q, s->heads_k);
    return status;
}

static fa_status check_rotary_dim(const fa_cross_attention_spec *s)
{
    const int32_t dim = s->rotary_dim ? s->rotary_dim : s->head_dim;
    if (!s->rotation && s->rotary_dim)
        return fa__fail(FA_ERR_ROTARY_DIM,
                        "cross_attention: rotary_dim = %d without rotation; leave it 0 or choose a "
                        "rotation (fa_cross_attention_spec.rotary_dim, rotation)",
                        s->rotary_dim);
    if (s->rotation && (dim % 2 || s->head_dim % 2 || dim > s->head_dim))
        return fa__fail(FA_ERR_ROTARY_DIM,
                        "cross_attention: rotary_dim = %d with head_dim = %d; with a rotation both "
                        "have to be even, and no more than head_dim is rotated "
                        "(fa_cross_attention_spec.rotary_dim, head_dim)",
                        dim, s->head_dim);
    return FA_OK;
}

static fa_status check_choices(const fa_cross_attention_spec *s)
{
    if (s->plan && s->form != FA_CROSS_WHOLE)
        return fa__fail(FA_ERR_VALUE,
                        "cross_attention: plan = %s with form = %s, which has one plan; leave it "
                        "auto (fa_cross_attention_spec.plan)",
                        plan_names[s->plan], form_names[s->form]);
    if (s->dropout != 0)
        return fa__fail(FA_ERR_UNSUPPORTED,
                        "cross_attention: dropout = %g; only 0, which is none, is supported "
                        "(fa_cross_attention_spec.dropout)",
                        s->dropout);
    return FA_OK;
}

/* One form for specs that mean the same, so that they share a kernel. */
static void fill_defaults(fa_cross_attention_spec *s)
{
    if (s->form == FA_CROSS_KEYS) {
        s->heads_q = s->seqlen_q = 0;
        s->mask = FA_ATTENTION_FULL;
        s->bias_out = false;
        s->scale = 0;
    } else if (s->scale == 0) {
        s->scale = fa__attention_scale(s->head_dim);
    }
    if (s->rotation) {
        s->rotary_dim = s->rotary_dim ? s->rotary_dim : s->head_dim;
        return;
    }
    s->angles = FA_ROPE_COMPUTED;
    s->base = 0;
    s->scaling = (fa_rope_scaling){0};
}

static fa_status validate(fa_spec *spec, const fa__target *target)
{
    fa_cross_attention_spec *s = &spec->cross_attention;
    (void)target;
    fa_status status = check_heads(s);
    if (!status)
        status = check_rotary_dim(s);
    if (!status)
        status = check_choices(s);
    if (status)
        return status;
    fill_defaults(s);
    const fa__rotary rotary = rotary_of(s);
    return s->rotation ? fa__rotary_check(&rotary) : FA_OK;
}

/* --- instantiate --- */

static void write_label(fa_cross_attention_spec *s, fa__buf *label)
{
    fa__buf_format(label, "cross_attention %s", fa__dtype_name(s->dtype));
    if (s->form)
        fa__buf_format(label, " %s", form_names[s->form]);
    if (s->plan)
        fa__buf_format(label, " %s", plan_names[s->plan]);
    if (s->mask)
        fa__buf_format(label, " %s", fa__mask_names[s->mask]);
    fa__buf_text(label, s->bias ? " bias" : "");
    fa__buf_text(label, s->bias_out ? " bias_out" : "");
    if (s->rotation)
        fa__buf_format(label, " %s", fa__rotation_names[s->rotation]);
    if (s->angles)
        fa__buf_format(label, " %s", fa__rotary_angles_names[s->angles]);
    const fa__label_number dimensions[] = {
        {"C", s->model_dim}, {"H", s->heads_q},
        {"G", s->heads_k},   {"D", s->head_dim},
        {"B", s->batch},     {"R", s->rotary_dim != s->head_dim ? s->rotary_dim : 0},
        {"Tq", s->seqlen_q}, {"Tk", s->seqlen_k}};
    fa__label_numbers(label, dimensions, sizeof dimensions / sizeof dimensions[0]);
    if (s->scale != 0 && s->scale != fa__attention_scale(s->head_dim)) {
        fa__buf_text(label, " scale=");
        fa__json_real(label, s->scale);
    }
    const fa__rotary rotary = rotary_of(s);
    if (s->rotation)
        fa__rotary_label(label, &rotary);
}

static void write_step(fa__buf *source, const char *type, const char *name, const void *step,
                       size_t bytes)
{
    fa__buf_format(source, "inline constexpr %s %s = ", type, name);
    fa__prologue_fields(source, step, bytes);
    fa__buf_text(source, ";\n");
}

static void write_prologue(fa_cross_attention_spec *s, const cross_plan *p, fa__buf *source)
{
    const fa__rotary rotary = rotary_of(s);
    fa__prologue_begin(source);
    fa__buf_text(source, "#include \"fajit/steps.cuh\"\n");
    fa__prologue_dtype(source, "Element", s->dtype);
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"FORM", (int64_t)s->form},
                   {"MASK", (int64_t)s->mask},
                   {"MODEL_DIM", s->model_dim},
                   {"HEADS_Q", s->heads_q},
                   {"HEADS_K", s->heads_k},
                   {"HEAD_DIM", s->head_dim},
                   {"BATCH", s->batch},
                   {"SEQLEN_Q", s->seqlen_q},
                   {"SEQLEN_K", s->seqlen_k},
                   {"ROTATION", (int64_t)s->rotation},
                   {"ROTARY_DIM", s->rotation ? s->rotary_dim : 0},
                   {"MIN_BLOCKS", p->one_launch ? p->blocks : 0},
                   {"PARAM_BYTES", sizeof(cross_kernel_params)}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        fa__prologue_int(source, numbers[i].name, numbers[i].value);
    fa__prologue_bool(source, "BIAS", s->bias);
    fa__prologue_bool(source, "BIAS_OUT", s->bias_out);
    fa__prologue_bool(source, "ONE_LAUNCH", p->one_launch);
    fa__prologue_real(source, "SCALE", s->scale);
    write_step(source, "linear_step", "PROJECT", &p->project, sizeof p->project);
    write_step(source, "attention_step", "ATTEND", &p->attend, sizeof p->attend);
    write_step(source, "linear_step", "OUTPUT", &p->output, sizeof p->output);
    fa__rotary_prologue(source, &rotary);
}

static fa_status instantiate(const fa_spec *spec, const fa__plan *plan, fa__program *program)
{
    fa_cross_attention_spec own = spec->cross_attention;
    cross_plan p;
    fa__cross_plan_get(plan, &p);
    write_label(&own, &program->label);
    write_prologue(&own, &p, &program->source);
    if (!p.one_launch && fa__cross_has_queries(&own)) {
        program->further_entries[0] = "fajit_cross_attention<1>";
        program->further_entries[1] = "fajit_cross_attention<2>";
    }
    return fa__program_embedded(program, &fa__template_cross_attention, "fajit_cross_attention<0>");
}

static const size_t param_sizes[] = {sizeof(cross_kernel_params)};
_Static_assert(sizeof(cross_kernel_params) <= sizeof(((fa__launch_room *)0)->block),
               "room for a launch");

const fa__op fa__op_cross_attention = {
    .id = FA_OP_CROSS_ATTENTION,
    .name = "cross_attention",
    .text = "projections of q, k and v, their rotation, attention, output projection",
    .params = parameters,
    .param_count = sizeof parameters / sizeof parameters[0],
    .validate = validate,
    .plan = fa__cross_plan_make,
    .instantiate = instantiate,
    .launch = fa__cross_launch,
    .workspace = fa__cross_workspace,
    .param_sizes = param_sizes,
    .param_size_count = 1,
};
