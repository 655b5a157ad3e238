/* FA_OP_ROPE: rotary embedding of q and k. The kernel is kernel_templates/rope.cu. */
#include <inttypes.h>
#include <stdlib.h>

#include "json.h"
#include "ops/params.h"
#include "ops/rope.h"
#include "status.h"

static const char *const positions_names[] = {"range", "vector", "offsets", "cumulative", NULL};
static const char *const layout_names[] = {"bhnd", "bnhd", NULL};
static const char *const sections_names[] = {"none", "split", "interleaved", NULL};

#define DEFAULT_NORM_EPS 1e-6

#define MEMBER(name) offsetof(fa_spec, rope) + offsetof(fa_rope_spec, name)
#define DIMENSION(name, alias, low, high, text) NUMBER(name, alias, true, low, high, text)

#define COUNT(name, text)                                                                          \
    {                                                                                              \
#name, NULL, FA_PARAM_INT, MEMBER(name), false, 1, ROPE_MAX_HEAD_DIM / 2, NULL, text       \
    }

static const fa_param_info parameters[] = {
    CHOICE(dtype, fa__dtype_names, "element type of q, k and the outputs"),
    CHOICE(style, fa__rotary_style_names, "pairs are (j, j + rotary_dim/2) or (2j, 2j + 1)"),
    CHOICE(angles, fa__rotary_angles_names,
           "computed from base, or read: cos and sin tables, or an inv_freq vector"),
    CHOICE(positions, positions_names,
           "position_offset + n; or read for each token, batch or packed sequence"),
    CHOICE(layout, layout_names, "of tensors whose strides are all 0"),
    YES(in_place, "outputs are q and k"),
    DIMENSION(head_dim, "D", 2, ROPE_MAX_HEAD_DIM, "elements of a head"),
    {"rotary_dim", "R", FA_PARAM_INT, MEMBER(rotary_dim), false, 1, ROPE_MAX_HEAD_DIM, NULL,
     "even number of elements rotated, the first of each head; 0: all"},
    DIMENSION(batch, "B", 1, INT32_MAX, "batches"),
    DIMENSION(heads_q, "H", 1, INT32_MAX, "heads of q"),
    DIMENSION(heads_k, "G", 1, INT32_MAX, "heads of k"),
    DIMENSION(seqlen, "N", 1, INT32_MAX, "tokens of a batch"),
    ROTARY_PARAMS(MEMBER),
    CHOICE(position_type, fa__index_names, "of the positions that are read"),
    CHOICE(sections, sections_names, "pairs turned by time, height and width positions"),
    COUNT(section_t, "pairs turned by time"),
    COUNT(section_h, "pairs turned by height"),
    COUNT(section_w, "pairs turned by width"),
    {"inverse", NULL, FA_PARAM_BOOL, MEMBER(inverse), false, 0, 0, NULL, "sines negated"},
    CHOICE(norm, fa__norm_names, "of each head before the rotation, by weight type"),
    {"norm_unit_offset", NULL, FA_PARAM_BOOL, MEMBER(norm_unit_offset), false, 0, 0, NULL,
     "weights are stored less 1"},
    {"norm_eps", NULL, FA_PARAM_REAL, MEMBER(norm_eps), false, DBL_MIN, 1, NULL, "0: 1e-6"},
};

/* --- validate --- */

static fa__rotary rotary_of(fa_rope_spec *s)
{
    return (fa__rotary){"rope", s->angles, &s->base, &s->scaling, s->rotary_dim};
}

static fa_status check_dims(const fa_rope_spec *s)
{
    if (s->rotary_dim % 2)
        return fa__fail(FA_ERR_ROTARY_DIM,
                        "rope: rotary_dim = %d is odd; an even number is needed "
                        "(fa_rope_spec.rotary_dim)",
                        s->rotary_dim);
    if (s->head_dim && s->rotary_dim > s->head_dim)
        return fa__fail(FA_ERR_ROTARY_DIM,
                        "rope: rotary_dim = %d is larger than head_dim = %d "
                        "(fa_rope_spec.rotary_dim)",
                        s->rotary_dim, s->head_dim);
    if (s->head_dim % 2 && !s->rotary_dim)
        return fa__fail(FA_ERR_ROTARY_DIM,
                        "rope: all of head_dim = %d is to be rotated, which is odd; set an even "
                        "fa_rope_spec.rotary_dim",
                        s->head_dim);
    if (s->heads_q && s->heads_k && s->heads_q % s->heads_k)
        return fa__fail(FA_ERR_HEAD_RATIO,
                        "rope: heads_q = %d is not a multiple of heads_k = %d "
                        "(fa_rope_spec.heads_q, heads_k)",
                        s->heads_q, s->heads_k);
    return FA_OK;
}

static fa_status check_section_counts(const fa_rope_spec *s)
{
    const int32_t pairs = s->rotary_dim / 2, sum = s->section_t + s->section_h + s->section_w;
    if (sum != pairs)
        return fa__fail(FA_ERR_SIZE,
                        "rope: sections of %d + %d + %d pairs; rotary_dim / 2 = %d together are "
                        "needed (fa_rope_spec.section_t, section_h, section_w)",
                        s->section_t, s->section_h, s->section_w, pairs);
    /* The last pair of height is 3 section_h - 2, that of width 3 section_w - 1. */
    if (s->sections == FA_ROPE_SECTIONS_INTERLEAVED &&
        (3 * s->section_h - 2 >= pairs || 3 * s->section_w - 1 >= pairs))
        return fa__fail(FA_ERR_SIZE,
                        "rope: section_h = %d and section_w = %d, every third pair each, do not "
                        "fit into rotary_dim / 2 = %d pairs (fa_rope_spec.section_h, section_w)",
                        s->section_h, s->section_w, pairs);
    return FA_OK;
}

static fa_status check_sections(const fa_rope_spec *s)
{
    if (!s->sections && (s->section_t || s->section_h || s->section_w))
        return fa__fail(FA_ERR_VALUE,
                        "rope: section_t, section_h, section_w = %d, %d, %d without sections; set "
                        "fa_rope_spec.sections or leave them at 0",
                        s->section_t, s->section_h, s->section_w);
    if (!s->sections)
        return FA_OK;
    if (s->positions != FA_ROPE_VECTOR)
        return fa__fail(FA_ERR_VALUE,
                        "rope: sections need a position for each axis and token: positions = %s; "
                        "vector is needed (fa_rope_spec.positions)",
                        positions_names[s->positions]);
    if (!s->rotary_dim)
        return fa__fail(FA_ERR_SIZE,
                        "rope: sections need rotary_dim or head_dim to be baked "
                        "(fa_rope_spec.rotary_dim)");
    return check_section_counts(s);
}

static fa_status check_norm(const fa_rope_spec *s)
{
    if (!s->norm && (s->norm_unit_offset || s->norm_eps != 0))
        return fa__fail(FA_ERR_VALUE,
                        "rope: %s is set without a norm; set fa_rope_spec.norm or "
                        "leave it at 0",
                        s->norm_unit_offset ? "norm_unit_offset" : "norm_eps");
    if (s->norm && !s->head_dim)
        return fa__fail(FA_ERR_SIZE,
                        "rope: a norm needs head_dim to be baked "
                        "(fa_rope_spec.head_dim)");
    return FA_OK;
}

static fa_status validate(fa_spec *spec, const fa__target *target)
{
    fa_rope_spec *s = &spec->rope;
    (void)target; /* every architecture that NVRTC knows has what the kernel uses */
    fa_status status = check_dims(s);
    if (status)
        return status;
    /* One form for specs that mean the same, so that they share a kernel. */
    if (!s->rotary_dim)
        s->rotary_dim = s->head_dim;
    if (s->positions == FA_ROPE_RANGE)
        s->position_type = FA_I32;
    if (s->norm && s->norm_eps == 0)
        s->norm_eps = DEFAULT_NORM_EPS;
    if (s->dtype == FA_F32 && s->norm == FA_ROPE_RMS_NORM_F32)
        s->norm = FA_ROPE_RMS_NORM;
    const fa__rotary rotary = rotary_of(s);
    if (!(status = fa__rotary_check(&rotary)) && !(status = check_sections(s)))
        status = check_norm(s);
    return status;
}

/* --- plan --- */

static fa_status plan(const fa_spec *spec, const fa__target *target, fa__plan *p)
{
    const fa_rope_spec *s = &spec->rope;
    const int64_t widest = 16 / (int64_t)fa__dtype_bytes(s->dtype);
    const bool baked = s->head_dim && s->rotary_dim;
    uint64_t must_divide = baked           ? fa__rope_dividends(s, s->head_dim, s->rotary_dim)
                           : s->rotary_dim ? fa__rope_dividends(s, s->rotary_dim, s->rotary_dim)
                                           : 0;
    int64_t width = fa__power_of_two(must_divide, widest);
    p->block_threads = ROPE_BLOCK_THREADS;
    p->value[ROPE_VECTOR_WIDTH] = (int32_t)width;
    p->flags.programmatic = target->cc >= 90; /* rope.cu waits for its predecessor by itself */
    fa__buf text = fa__buf_on(p->text, sizeof p->text);
    fa__buf_format(&text, "blocks of %d threads, accesses of %d bytes, ", ROPE_BLOCK_THREADS,
                   (int)(width * (int64_t)fa__dtype_bytes(s->dtype)));
    if (s->norm)
        fa__buf_format(&text, "a head shared by %d lanes",
                       (int)fa__rope_units(s, s->head_dim, s->rotary_dim, width).rotated);
    else
        fa__buf_format(&text, "%d heads in flight", ROPE_HEADS_IN_FLIGHT);
    if (p->flags.programmatic)
        fa__buf_text(&text, ", programmatic launch");
    return FA_OK; /* the longest text is shorter than the room */
}

/* --- instantiate --- */

static void write_label(fa_rope_spec *s, fa__buf *label)
{
    fa__buf_format(label, "rope %s %s", fa__dtype_name(s->dtype), fa__rotary_style_names[s->style]);
    if (s->angles != FA_ROPE_COMPUTED)
        fa__buf_format(label, " %s", fa__rotary_angles_names[s->angles]);
    if (s->positions != FA_ROPE_RANGE)
        fa__buf_format(label, " %s", positions_names[s->positions]);
    if (s->position_type != FA_I32)
        fa__buf_format(label, " %s", fa__index_names[s->position_type]);
    if (s->sections)
        fa__buf_format(label, " %s=%d,%d,%d", sections_names[s->sections], s->section_t,
                       s->section_h, s->section_w);
    if (s->inverse)
        fa__buf_text(label, " inverse");
    if (s->in_place)
        fa__buf_text(label, " in_place");
    if (s->norm)
        fa__buf_format(label, " %s%s", fa__norm_names[s->norm], s->norm_unit_offset ? "+1" : "");
    const fa__label_number dimensions[] = {
        {"D", s->head_dim}, {"R", s->rotary_dim != s->head_dim ? s->rotary_dim : 0},
        {"B", s->batch},    {"H", s->heads_q},
        {"G", s->heads_k},  {"N", s->seqlen}};
    fa__label_numbers(label, dimensions, sizeof dimensions / sizeof dimensions[0]);
    if (s->norm && s->norm_eps != DEFAULT_NORM_EPS) {
        fa__buf_text(label, " norm_eps=");
        fa__json_real(label, s->norm_eps);
    }
    const fa__rotary rotary = rotary_of(s);
    fa__rotary_label(label, &rotary);
}

static fa_status instantiate(const fa_spec *spec, const fa__plan *p, fa__program *program)
{
    fa_rope_spec own = spec->rope, *s = &own;
    fa__buf *source = &program->source;
    const fa__rotary rotary = rotary_of(s);
    write_label(s, &program->label);
    fa__prologue_begin(source);
    fa__prologue_dtype(source, "Element", s->dtype);
    fa__prologue_dtype(source, "NormWeight", s->norm == FA_ROPE_RMS_NORM ? s->dtype : FA_F32);
    fa__prologue_bool(source, "INTERLEAVED", s->style == FA_ROPE_INTERLEAVED);
    fa__prologue_bool(source, "INVERSE", s->inverse);
    fa__prologue_bool(source, "IN_PLACE", s->in_place);
    fa__prologue_int(source, "HEAD_DIM", s->head_dim);
    fa__prologue_int(source, "ROTARY_DIM", s->rotary_dim);
    fa__prologue_int(source, "BATCH", s->batch);
    fa__prologue_int(source, "HEADS_Q", s->heads_q);
    fa__prologue_int(source, "HEADS_K", s->heads_k);
    fa__prologue_int(source, "SEQLEN", s->seqlen);
    fa__prologue_int(source, "VECTOR_WIDTH", p->value[ROPE_VECTOR_WIDTH]);
    fa__prologue_int(source, "HEADS_IN_FLIGHT", ROPE_HEADS_IN_FLIGHT);
    fa__prologue_int(source, "BLOCK_THREADS", ROPE_BLOCK_THREADS);
    fa__prologue_int(source, "PARAM_BYTES", sizeof(rope_kernel_params));
    fa__rotary_prologue(source, &rotary);
    fa__prologue_int(source, "POSITIONS", (int64_t)s->positions);
    fa__prologue_bool(source, "POSITIONS_WIDE", s->position_type == FA_I64);
    fa__prologue_int(source, "SECTIONS", (int64_t)s->sections);
    fa__prologue_int(source, "SECTION_T", s->section_t);
    fa__prologue_int(source, "SECTION_H", s->section_h);
    fa__prologue_int(source, "SECTION_W", s->section_w);
    fa__prologue_bool(source, "NORM", s->norm != FA_ROPE_NO_NORM);
    fa__prologue_real(source, "NORM_EPS", s->norm_eps);
    fa__prologue_int(source, "NORM_OFFSET", s->norm_unit_offset);
    return fa__program_embedded(program, &fa__template_rope, "fajit_rope");
}

static const size_t param_sizes[] = {sizeof(rope_kernel_params)};
_Static_assert(sizeof(rope_kernel_params) == 312, "rope.cu's default says the same");
_Static_assert(sizeof(rope_kernel_params) <= sizeof(((fa__launch_room *)0)->block),
               "room for a launch");

const fa__op fa__op_rope = {
    .id = FA_OP_ROPE,
    .name = "rope",
    .text = "rotary position embedding of q and k",
    .params = parameters,
    .param_count = sizeof parameters / sizeof parameters[0],
    .validate = validate,
    .plan = plan,
    .instantiate = instantiate,
    .launch = fa__rope_launch,
    .param_sizes = param_sizes,
    .param_size_count = 1,
};
