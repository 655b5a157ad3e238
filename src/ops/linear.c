/* FA_OP_LINEAR: y = x W^T with an epilogue. The kernel is kernel_templates/linear.cu. */
#include "ops/linear.h"

#include "ops/params.h"
#include "status.h"

static const char *const operand_names[] = {"same", "e4m3", NULL};
static const char *const output_names[] = {"same", "f32", "f16", "bf16", NULL};
static const char *const arithmetic_names[] = {"auto",       "fma",       "split_tf32",
                                               "split_bf16", "split_f16", NULL};
static const char *const scale_names[] = {"none", "tensor", "row", NULL};
static const char *const activation_names[] = {"none", "silu", "gelu", "gelu_tanh", NULL};

#define MEMBER(name) offsetof(fa_spec, linear) + offsetof(fa_linear_spec, name)

static const fa_param_info parameters[] = {
    CHOICE(dtype, fa__dtype_names, "element type of x, W and bias"),
    CHOICE(operands, operand_names, "x and W: of dtype, or fp8"),
    CHOICE(output, output_names, "element type of y and residual"),
    CHOICE(arithmetic, arithmetic_names, "how float32 products are formed"),
    CHOICE(scales, scale_names, "of x and W: none, one each, or one for each row of them"),
    CHOICE(activation, activation_names, "of the sums with bias"),
    YES(bias, "a vector [N] is added"),
    YES(residual, "a matrix [M, N] is added last"),
    YES(mapped_rows, "row m of y is rows[m] of the outputs: a cache"),
    CHOICE(row_type, fa__index_names, "of rows"),
    NUMBER(m, "M", true, 1, LINEAR_MAX_SIZE, "rows of x: tokens"),
    NUMBER(n, "N", true, 1, LINEAR_MAX_SIZE, "rows of W: columns of y"),
    NUMBER(k, "K", true, 1, LINEAR_MAX_SIZE, "columns of x and W"),
    NUMBER(split_1, NULL, false, 1, LINEAR_MAX_SIZE, "column where the second output begins"),
    NUMBER(split_2, NULL, false, 1, LINEAR_MAX_SIZE, "column where the third output begins"),
    CHOICE(rotation, fa__rotation_names, "of the columns as heads; pairs as in rope"),
    CHOICE(angles, fa__rotary_angles_names,
           "computed from base, or read: cos and sin tables, or an inv_freq vector"),
    CHOICE(position_type, fa__index_names, "of positions"),
    NUMBER(head_dim, "D", false, 2, LINEAR_MAX_HEAD_DIM, "even number of columns of a head"),
    NUMBER(rotary_dim, "R", false, 2, LINEAR_MAX_HEAD_DIM,
           "even number of them rotated, the first of each head; 0: all"),
    NUMBER(rotated, NULL, false, 2, LINEAR_MAX_SIZE,
           "columns that are heads to rotate, the first ones; 0: all"),
    NUMBER(tile_m, NULL, false, 1, 1024, "rows of a block; 0: by cost"),
    NUMBER(tile_n, NULL, false, 1, 1024, "columns of a block; 0: by cost"),
    NUMBER(stages, NULL, false, 2, LINEAR_MAX_STAGES,
           "tiles of k in shared memory, at most; 0: by cost"),
    NUMBER(splits, NULL, false, 1, LINEAR_MAX_SPLITS,
           "blocks that share the sums of a tile; 0: chosen at launch"),
    ROTARY_PARAMS(MEMBER),
};

/* --- validate --- */

static fa__rotary rotary_of(fa_linear_spec *s)
{
    return (fa__rotary){"linear", s->angles, &s->base, &s->scaling, s->rotary_dim};
}

static fa_status check_arithmetic(const fa_linear_spec *s, const fa__target *target)
{
    const bool f32 = s->dtype == FA_F32 && s->operands == FA_LINEAR_SAME;
    const bool split = s->arithmetic >= FA_LINEAR_SPLIT_TF32;
    if (split && !f32)
        return fa__fail(FA_ERR_VALUE,
                        "linear: arithmetic = %s with %s operands; only float32 is split, use auto "
                        "(fa_linear_spec.arithmetic)",
                        arithmetic_names[s->arithmetic],
                        s->operands ? operand_names[s->operands] : fa__dtype_name(s->dtype));
    if (split && target->cc < 80)
        return fa__fail(FA_ERR_UNSUPPORTED,
                        "linear: arithmetic = %s is not supported on %s; sm_80 or later is needed, "
                        "or use fma (fa_linear_spec.arithmetic)",
                        arithmetic_names[s->arithmetic], target->arch);
    if (s->arithmetic == FA_LINEAR_SPLIT_F16 && s->splits > 1)
        return fa__fail(
            FA_ERR_VALUE,
            "linear: splits = %d with arithmetic = split_f16, whose blocks do not share "
            "sums; use 1 or 0, or split_tf32 (fa_linear_spec.splits, arithmetic)",
            s->splits);
    if (s->operands == FA_LINEAR_E4M3 && target->cc < 89)
        return fa__fail(FA_ERR_DTYPE,
                        "linear: operands = e4m3 is not supported on %s; sm_89 or later is needed "
                        "(fa_linear_spec.operands)",
                        target->arch);
    return FA_OK;
}

static fa_status check_splits(const fa_linear_spec *s)
{
    if (s->split_2 && s->split_2 <= s->split_1)
        return fa__fail(
            FA_ERR_VALUE,
            "linear: split_2 = %d with split_1 = %d; the third output begins behind the "
            "second (fa_linear_spec.split_2)",
            s->split_2, s->split_1);
    if (s->split_2 && !s->split_1)
        return fa__fail(FA_ERR_VALUE,
                        "linear: split_2 = %d without split_1; the second output has no beginning "
                        "(fa_linear_spec.split_1)",
                        s->split_2);
    const int32_t last = s->split_2 ? s->split_2 : s->split_1;
    if (s->n && last >= s->n)
        return fa__fail(FA_ERR_VALUE,
                        "linear: split_%d = %d with n = %d; every output needs a column "
                        "(fa_linear_spec.split_%d)",
                        s->split_2 ? 2 : 1, last, s->n, s->split_2 ? 2 : 1);
    return FA_OK;
}

static fa_status refuse_columns(const char *name, int32_t value, int32_t head_dim)
{
    return fa__fail(FA_ERR_VALUE,
                    "linear: %s = %d is not a multiple of head_dim = %d; columns that are rotated "
                    "are whole heads (fa_linear_spec.%s)",
                    name, value, head_dim, name);
}

static fa_status check_heads(const fa_linear_spec *s)
{
    if (!s->head_dim || s->head_dim % 2)
        return fa__fail(
            FA_ERR_SIZE,
            "linear: head_dim = %d with a rotation; an even number of columns is needed "
            "(fa_linear_spec.head_dim)",
            s->head_dim);
    if (s->rotary_dim % 2 || s->rotary_dim > s->head_dim)
        return fa__fail(FA_ERR_ROTARY_DIM,
                        "linear: rotary_dim = %d with head_dim = %d; an even number up to it is "
                        "needed (fa_linear_spec.rotary_dim)",
                        s->rotary_dim, s->head_dim);
    if (s->rotated % s->head_dim)
        return refuse_columns("rotated", s->rotated, s->head_dim);
    if (!s->rotated && s->n % s->head_dim)
        return refuse_columns("n", s->n, s->head_dim);
    if (s->split_1 % s->head_dim && (!s->rotated || s->split_1 < s->rotated))
        return refuse_columns("split_1", s->split_1, s->head_dim);
    if (s->split_2 % s->head_dim && (!s->rotated || s->split_2 < s->rotated))
        return refuse_columns("split_2", s->split_2, s->head_dim);
    if (s->n && s->rotated > s->n)
        return fa__fail(FA_ERR_VALUE,
                        "linear: rotated = %d with n = %d columns (fa_linear_spec.rotated)",
                        s->rotated, s->n);
    return FA_OK;
}

static fa_status check_rotation(const fa_linear_spec *s)
{
    if (s->rotation)
        return check_heads(s);
    const struct {
        const char *name;
        int32_t value;
    } unused[] = {
        {"head_dim", s->head_dim}, {"rotary_dim", s->rotary_dim}, {"rotated", s->rotated}};
    for (size_t i = 0; i < sizeof unused / sizeof unused[0]; i++)
        if (unused[i].value)
            return fa__fail(FA_ERR_VALUE,
                            "linear: %s = %d without rotation; leave it 0 or choose a rotation "
                            "(fa_linear_spec.%s, rotation)",
                            unused[i].name, unused[i].value, unused[i].name);
    return FA_OK;
}

/* One form for specs that mean the same, so that they share a kernel. */
static void fill_defaults(fa_linear_spec *s)
{
    if (fa__linear_output_dtype(s) == s->dtype)
        s->output = FA_LINEAR_OUT_SAME;
    if (!s->mapped_rows)
        s->row_type = FA_I32;
    if (s->rotation) {
        s->rotary_dim = s->rotary_dim ? s->rotary_dim : s->head_dim;
        return;
    }
    s->angles = FA_ROPE_COMPUTED;
    s->position_type = FA_I32;
    s->base = 0;
    s->scaling = (fa_rope_scaling){0};
}

static fa_status validate(fa_spec *spec, const fa__target *target)
{
    fa_linear_spec *s = &spec->linear;
    fa_status status = check_arithmetic(s, target);
    if (!status)
        status = check_splits(s);
    if (!status)
        status = check_rotation(s);
    if (status)
        return status;
    fill_defaults(s);
    const fa__rotary rotary = rotary_of(s);
    return s->rotation ? fa__rotary_check(&rotary) : FA_OK;
}

/* --- instantiate --- */

static void write_label(fa_linear_spec *s, fa__buf *label)
{
    fa__buf_format(label, "linear %s", fa__dtype_name(s->dtype));
    if (s->operands)
        fa__buf_format(label, " %s", operand_names[s->operands]);
    if (s->output)
        fa__buf_format(label, " to_%s", output_names[s->output]);
    if (s->arithmetic)
        fa__buf_format(label, " %s", arithmetic_names[s->arithmetic]);
    if (s->scales)
        fa__buf_format(label, " scale_%s", scale_names[s->scales]);
    fa__buf_text(label, s->bias ? " bias" : "");
    if (s->activation)
        fa__buf_format(label, " %s", activation_names[s->activation]);
    fa__buf_text(label, s->residual ? " residual" : "");
    fa__buf_text(label, s->mapped_rows ? " mapped_rows" : "");
    fa__buf_text(label, s->row_type ? "_i64" : "");
    if (s->rotation)
        fa__buf_format(label, " %s", fa__rotation_names[s->rotation]);
    if (s->angles)
        fa__buf_format(label, " %s", fa__rotary_angles_names[s->angles]);
    fa__buf_text(label, s->position_type ? " positions_i64" : "");
    const fa__label_number numbers[] = {{"M", s->m},
                                        {"N", s->n},
                                        {"K", s->k},
                                        {"split_1=", s->split_1},
                                        {"split_2=", s->split_2},
                                        {"D", s->head_dim},
                                        {"R", s->rotary_dim != s->head_dim ? s->rotary_dim : 0},
                                        {"rotated=", s->rotated},
                                        {"tile_m=", s->tile_m},
                                        {"tile_n=", s->tile_n},
                                        {"stages=", s->stages},
                                        {"splits=", s->splits}};
    fa__label_numbers(label, numbers, sizeof numbers / sizeof numbers[0]);
    const fa__rotary rotary = rotary_of(s);
    if (s->rotation)
        fa__rotary_label(label, &rotary);
}

static void write_prologue(fa_linear_spec *s, const fa__plan *p, fa__buf *source)
{
    const fa__rotary rotary = rotary_of(s);
    fa__prologue_begin(source);
    if (s->operands == FA_LINEAR_E4M3)
        fa__buf_text(source, "#include \"fajit/dtype.cuh\"\nusing Element = fajit::fp8_e4m3;\n");
    else
        fa__prologue_dtype(source, "Element", s->dtype);
    fa__prologue_dtype(source, "Addend", s->dtype);
    fa__prologue_dtype(source, "Output", fa__linear_output_dtype(s));
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"ARITHMETIC", p->value[LINEAR_ARITHMETIC]},
                   {"PARTS_THREADS", LINEAR_PARTS_THREADS},
                   {"PARTS_ROWS", fa__linear_parts_rows(s)},
                   {"M", s->m},
                   {"N", s->n},
                   {"K", s->k},
                   {"TILE_M", p->value[LINEAR_TILE_M]},
                   {"TILE_N", p->value[LINEAR_TILE_N]},
                   {"STAGES", p->value[LINEAR_STAGES]},
                   {"WARPS_M", p->value[LINEAR_WARPS_M]},
                   {"WARPS_N", p->value[LINEAR_WARPS_N]},
                   {"WARPS_K", p->value[LINEAR_WARPS_K]},
                   {"VECTOR_WIDTH", p->value[LINEAR_VECTOR_WIDTH]},
                   {"SCALES", (int64_t)s->scales},
                   {"ACTIVATION", (int64_t)s->activation},
                   {"SPLIT_1", s->split_1},
                   {"SPLIT_2", s->split_2},
                   {"ROTATION", (int64_t)s->rotation},
                   {"HEAD_DIM", s->head_dim},
                   {"ROTARY_DIM", s->rotary_dim},
                   {"ROTATED", s->rotated},
                   {"SHARED_BYTES", p->smem_dynamic_bytes},
                   {"PARAM_BYTES", sizeof(linear_kernel_params)}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        fa__prologue_int(source, numbers[i].name, numbers[i].value);
    fa__prologue_bool(source, "MAY_SPLIT", p->value[LINEAR_MAY_SPLIT]);
    fa__prologue_bool(source, "BIAS", s->bias);
    fa__prologue_bool(source, "RESIDUAL", s->residual);
    fa__prologue_bool(source, "MAPPED_ROWS", s->mapped_rows);
    fa__prologue_bool(source, "ROWS_WIDE", s->row_type == FA_I64);
    fa__prologue_bool(source, "POSITIONS_WIDE", s->position_type == FA_I64);
    fa__rotary_prologue(source, &rotary);
}

static fa_status instantiate(const fa_spec *spec, const fa__plan *p, fa__program *program)
{
    fa_linear_spec own = spec->linear;
    write_label(&own, &program->label);
    write_prologue(&own, p, &program->source);
    if (p->value[LINEAR_ARITHMETIC] == LINEAR_SPLIT_F16)
        program->further_entries[0] = "fajit_linear_parts<0>";
    return fa__program_embedded(program, &fa__template_linear, "fajit_linear");
}

static const size_t param_sizes[] = {sizeof(linear_kernel_params)};
_Static_assert(sizeof(linear_kernel_params) == 288, "linear.cu's default says the same");
_Static_assert(sizeof(linear_kernel_params) <= sizeof(((fa__launch_room *)0)->block),
               "room for a launch");

const fa__op fa__op_linear = {
    .id = FA_OP_LINEAR,
    .name = "linear",
    .text = "y = x W^T with bias, activation, rotation, residual, into a matrix or a cache",
    .params = parameters,
    .param_count = sizeof parameters / sizeof parameters[0],
    .validate = validate,
    .plan = fa__linear_plan,
    .instantiate = instantiate,
    .launch = fa__linear_launch,
    .workspace = fa__linear_workspace,
    .param_sizes = param_sizes,
    .param_size_count = 1,
};
