/* FA_OP_ROPE: rotary embedding of q and k. The kernel is kernel_templates/rope.cu. */
#include <float.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "ops/rope.h"
#include "status.h"

#define DEFAULT_BASE 10000.0
static const char *const style_names[] = {"half", "interleaved", NULL};
static const char *const angles_names[] = {"computed", "tables", NULL};
static const char *const positions_names[] = {"range", "vector", NULL};
static const char *const layout_names[] = {"bhnd", "bnhd", NULL};

#define MEMBER(name) offsetof(fa_spec, rope) + offsetof(fa_rope_spec, name)
#define CHOICE(name, alias, values, text)                                                          \
    {                                                                                              \
#name, alias, FA_PARAM_ENUM, MEMBER(name), false, 0, 0, values, text                       \
    }
#define DIMENSION(name, alias, low, high, text)                                                    \
    {                                                                                              \
#name, alias, FA_PARAM_INT, MEMBER(name), true, low, high, NULL, text                      \
    }

static const fa_param_info parameters[] = {
    CHOICE(dtype, NULL, fa__dtype_names, "element type of q, k and the outputs"),
    CHOICE(style, NULL, style_names, "pairs are (j, j + rotary_dim/2) or (2j, 2j + 1)"),
    CHOICE(angles, NULL, angles_names, "computed from base, or read from cos and sin tables"),
    CHOICE(positions, NULL, positions_names, "position_offset + n, or an int32 vector"),
    CHOICE(layout, NULL, layout_names, "of tensors whose strides are all 0"),
    {"in_place", NULL, FA_PARAM_BOOL, MEMBER(in_place), false, 0, 0, NULL, "outputs are q and k"},
    DIMENSION(head_dim, "D", 2, ROPE_MAX_HEAD_DIM, "elements of a head"),
    {"rotary_dim", "R", FA_PARAM_INT, MEMBER(rotary_dim), false, 1, ROPE_MAX_HEAD_DIM, NULL,
     "even number of elements rotated, the first of each head; 0: all"},
    DIMENSION(batch, "B", 1, INT32_MAX, "batches"),
    DIMENSION(heads_q, "H", 1, INT32_MAX, "heads of q"),
    DIMENSION(heads_k, "G", 1, INT32_MAX, "heads of k"),
    DIMENSION(seqlen, "N", 1, INT32_MAX, "tokens of a batch"),
    {"base", NULL, FA_PARAM_REAL, MEMBER(base), false, 1, DBL_MAX, NULL,
     "of the frequencies base^(-2j/rotary_dim), over 1; 0: 10000"},
};

/* --- validate --- */

static fa_status validate(fa_spec *spec, const fa__target *target)
{
    fa_rope_spec *s = &spec->rope;
    (void)target; /* every architecture that NVRTC knows has what the kernel uses */
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
    if (s->base == 1)
        return fa__fail(FA_ERR_VALUE,
                        "rope: base = 1; over 1 is needed, or 0 for %d "
                        "(fa_rope_spec.base)",
                        (int)DEFAULT_BASE);
    /* One form for specs that mean the same, so that they share a kernel. */
    if (!s->rotary_dim)
        s->rotary_dim = s->head_dim;
    if (s->angles == FA_ROPE_TABLES)
        s->base = 0;
    else if (s->base == 0)
        s->base = DEFAULT_BASE;
    return FA_OK;
}

/* --- plan --- */

/* log2(base) * 2^54, for 1 < base. By the series of the inverse hyperbolic tangent, because a
 * library function may differ in the last bits from machine to machine, and keys with it. */
uint64_t fa__rotary_log2_q54(double base);
uint64_t fa__rotary_log2_q54(double base)
{
    const long double ln2 = 0.693147180559945309417232121458176568L;
    uint64_t bits = 0;
    memcpy(&bits, &base, sizeof bits);
    int64_t exponent = (int64_t)(bits >> 52) - 1023;
    bits = (bits & 0xfffffffffffffu) | UINT64_C(1023) << 52;
    memcpy(&base, &bits, sizeof bits); /* now in [1, 2) */
    if (base > 1.4142135623730951) {
        base /= 2;
        exponent++;
    }
    long double ratio = ((long double)base - 1) / ((long double)base + 1);
    long double power = ratio, sum = 0;
    for (int k = 1; k < 48; k += 2) { /* ratio^2 < 0.03: the last term is below 2^-120 */
        sum += power / k;
        power *= ratio * ratio;
    }
    long double fraction = 2 * sum / ln2 * 0x1p54L;
    return ((uint64_t)exponent << 54) +
           (uint64_t)(int64_t)(fraction + (fraction < 0 ? -0.5L : 0.5L));
}

static fa_status plan(const fa_spec *spec, const fa__target *target, fa__plan *p)
{
    const fa_rope_spec *s = &spec->rope;
    const int64_t widest = 16 / (int64_t)fa__dtype_bytes(s->dtype);
    const bool baked = s->head_dim && s->rotary_dim;
    uint64_t must_divide = baked           ? fa__rope_dividends(s, s->head_dim, s->rotary_dim)
                           : s->rotary_dim ? fa__rope_dividends(s, s->rotary_dim, s->rotary_dim)
                                           : 0;
    int64_t width = fa__rope_power_of_two(must_divide, widest);
    uint64_t log2_base = s->angles == FA_ROPE_COMPUTED ? fa__rotary_log2_q54(s->base) : 0;
    p->block_threads = ROPE_BLOCK_THREADS;
    p->value[ROPE_VECTOR_WIDTH] = (int32_t)width;
    p->flags.programmatic = target->cc >= 90; /* rope.cu waits for its predecessor by itself */
    p->value[ROPE_LOG2_BASE_LOW] = (int32_t)(uint32_t)log2_base;
    p->value[ROPE_LOG2_BASE_HIGH] = (int32_t)(uint32_t)(log2_base >> 32);
    fa__buf text = fa__buf_on(p->text, sizeof p->text);
    fa__buf_format(&text, "blocks of %d threads, accesses of %d bytes, %d heads in flight%s",
                   ROPE_BLOCK_THREADS, (int)(width * (int64_t)fa__dtype_bytes(s->dtype)),
                   ROPE_HEADS_IN_FLIGHT, p->flags.programmatic ? ", programmatic launch" : "");
    return FA_OK; /* the longest text is shorter than the room */
}

/* --- instantiate --- */

static void write_label(const fa_rope_spec *s, fa__buf *label)
{
    fa__buf_format(label, "rope %s %s", fa__dtype_name(s->dtype), style_names[s->style]);
    if (s->angles != FA_ROPE_COMPUTED)
        fa__buf_format(label, " %s", angles_names[s->angles]);
    if (s->positions != FA_ROPE_RANGE)
        fa__buf_format(label, " %s", positions_names[s->positions]);
    if (s->in_place)
        fa__buf_text(label, " in_place");
    const struct {
        char letter;
        int32_t value;
    } dimensions[] = {{'D', s->head_dim}, {'R', s->rotary_dim}, {'B', s->batch},
                      {'H', s->heads_q},  {'G', s->heads_k},    {'N', s->seqlen}};
    for (size_t i = 0; i < sizeof dimensions / sizeof dimensions[0]; i++)
        if (dimensions[i].value && !(i == 1 && s->rotary_dim == s->head_dim))
            fa__buf_format(label, " %c%d", dimensions[i].letter, dimensions[i].value);
    if (s->angles == FA_ROPE_COMPUTED && s->base != DEFAULT_BASE) {
        fa__buf_text(label, " base=");
        fa__json_real(label, s->base);
    }
}

static fa_status instantiate(const fa_spec *spec, const fa__plan *p, fa__program *program)
{
    const fa_rope_spec *s = &spec->rope;
    fa__buf *source = &program->source;
    write_label(s, &program->label);
    fa__prologue_begin(source);
    fa__prologue_dtype(source, "Element", s->dtype);
    fa__prologue_bool(source, "INTERLEAVED", s->style == FA_ROPE_INTERLEAVED);
    fa__prologue_bool(source, "TABLES", s->angles == FA_ROPE_TABLES);
    fa__prologue_bool(source, "POSITION_VECTOR", s->positions == FA_ROPE_VECTOR);
    fa__prologue_bool(source, "IN_PLACE", s->in_place);
    fa__prologue_int(source, "HEAD_DIM", s->head_dim);
    fa__prologue_int(source, "ROTARY_DIM", s->rotary_dim);
    fa__prologue_int(source, "BATCH", s->batch);
    fa__prologue_int(source, "HEADS_Q", s->heads_q);
    fa__prologue_int(source, "HEADS_K", s->heads_k);
    fa__prologue_int(source, "SEQLEN", s->seqlen);
    fa__prologue_int(source, "LOG2_BASE_Q54", (int64_t)fa__rope_log2_base(p));
    fa__prologue_int(source, "VECTOR_WIDTH", p->value[ROPE_VECTOR_WIDTH]);
    fa__prologue_int(source, "HEADS_IN_FLIGHT", ROPE_HEADS_IN_FLIGHT);
    fa__prologue_int(source, "BLOCK_THREADS", ROPE_BLOCK_THREADS);
    fa__prologue_int(source, "PARAM_BYTES", sizeof(rope_kernel_params));
    fa__prologue_end(source, "rope.cu");
    fa__buf_text(source, fa__template_rope);
    program->file = "rope.cu";
    program->entry = "fajit_rope";
    program->headers = calloc(fa__device_header_count + 1, sizeof *program->headers);
    if (!program->headers)
        return fa__fail_memory((fa__device_header_count + 1) * sizeof *program->headers);
    for (size_t i = 0; i < fa__device_header_count; i++)
        program->headers[program->header_count++] = fa__device_headers[i];
    return FA_OK;
}

static void pack(const fa_spec *spec, fa__buf *out)
{
    fa__spec_pack_table(&fa__op_rope, spec, out);
}

static const size_t param_sizes[] = {sizeof(rope_kernel_params)};
_Static_assert(sizeof(rope_kernel_params) == 224, "rope.cu's default says the same");
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
    .packable = fa__spec_always_packable,
    .pack = pack,
    .launch = fa__rope_launch,
    .param_sizes = param_sizes,
    .param_size_count = 1,
};
