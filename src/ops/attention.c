/* FA_OP_ATTENTION: softmax(scale q k^T, masked) v. The kernel is kernel_templates/attention.cu. */
#include "ops/attention.h"

#include <float.h>

#include "ops/params.h"
#include "status.h"

static const char *const tiles_names[] = {"auto", "large", "medium", "small", NULL};

#define MEMBER(name) offsetof(fa_spec, attention) + offsetof(fa_attention_spec, name)
#define DIMENSION(name, alias, most, text) NUMBER(name, alias, true, 1, most, text)

static const fa_param_info parameters[] = {
    CHOICE(dtype, fa__dtype_names, "element type of q, k, v and out"),
    CHOICE(mask, fa__mask_names, "keys that a query sees"),
    CHOICE(tiles, tiles_names, "how the work is cut"),
    YES(heads_first, "tensors whose strides are all 0 are [B, heads, T, D]"),
    YES(lse, "the logarithm of each row's sum of exponentials is written too"),
    {"head_dim", "D", FA_PARAM_INT, MEMBER(head_dim), false, 1, ATTENTION_MAX_HEAD_DIM, NULL,
     "elements of a head of q and k; always baked"},
    {"head_dim_v", "Dv", FA_PARAM_INT, MEMBER(head_dim_v), false, 1, ATTENTION_MAX_HEAD_DIM, NULL,
     "elements of a head of v and out; 0: as q and k"},
    DIMENSION(batch, "B", INT32_MAX, "batches"),
    DIMENSION(heads_q, "H", INT32_MAX, "heads of q and out, a multiple of heads_k"),
    DIMENSION(heads_k, "G", INT32_MAX, "heads of k and v"),
    DIMENSION(seqlen_q, "Tq", ATTENTION_MAX_SEQLEN, "queries of a batch"),
    DIMENSION(seqlen_k, "Tk", ATTENTION_MAX_SEQLEN, "keys of a batch"),
    {"scale", NULL, FA_PARAM_REAL, MEMBER(scale), false, FLT_MIN, FLT_MAX / 2, NULL,
     "of the scores; 0: 1 / sqrt(head_dim)"},
};

/* --- validate --- */

/* Square root by Newton's iteration, which comes down from above: no mathematics library. */
static double root_of(double x)
{
    double root = x, next = (x + 1) / 2;
    while (next < root) {
        root = next;
        next = (root + x / root) / 2;
    }
    return root;
}

double fa__attention_scale(int32_t head_dim)
{
    return 1 / root_of(head_dim);
}

static fa_status validate(fa_spec *spec, const fa__target *target)
{
    fa_attention_spec *s = &spec->attention;
    (void)target;
    if (!s->head_dim)
        return fa__fail(FA_ERR_SIZE,
                        "attention: head_dim = 0; it is always baked, 1 to %d "
                        "(fa_attention_spec.head_dim)",
                        ATTENTION_MAX_HEAD_DIM);
    if (s->heads_q && s->heads_k && s->heads_q % s->heads_k)
        return fa__fail(FA_ERR_HEAD_RATIO,
                        "attention: heads_q = %d is not a multiple of heads_k = %d "
                        "(fa_attention_spec.heads_q, heads_k)",
                        s->heads_q, s->heads_k);
    if (!s->head_dim_v)
        s->head_dim_v = s->head_dim;
    if (s->scale == 0)
        s->scale = fa__attention_scale(s->head_dim);
    return FA_OK;
}

/* --- instantiate --- */

static void write_label(const fa_attention_spec *s, fa__buf *label)
{
    fa__buf_format(label, "attention %s %s", fa__dtype_name(s->dtype), fa__mask_names[s->mask]);
    fa__buf_text(label, s->lse ? " lse" : "");
    if (s->tiles)
        fa__buf_format(label, " %s", tiles_names[s->tiles]);
    const fa__label_number dimensions[] = {
        {"D", s->head_dim}, {"Dv", s->head_dim_v != s->head_dim ? s->head_dim_v : 0},
        {"B", s->batch},    {"H", s->heads_q},
        {"G", s->heads_k},  {"Tq", s->seqlen_q},
        {"Tk", s->seqlen_k}};
    fa__label_numbers(label, dimensions, sizeof dimensions / sizeof dimensions[0]);
}

static void write_prologue(const fa_attention_spec *s, const fa__plan *p, fa__buf *source)
{
    fa__prologue_begin(source);
    fa__prologue_dtype(source, "Element", s->dtype);
    fa__prologue_int(source, "MASK", (int64_t)s->mask);
    fa__prologue_bool(source, "LSE", s->lse);
    fa__prologue_int(source, "HEAD_DIM", s->head_dim);
    fa__prologue_int(source, "HEAD_DIM_V", s->head_dim_v);
    fa__prologue_real(source, "SCALE", s->scale);
    fa__prologue_int(source, "BATCH", s->batch);
    fa__prologue_int(source, "HEADS_Q", s->heads_q);
    fa__prologue_int(source, "HEADS_K", s->heads_k);
    fa__prologue_int(source, "SEQLEN_Q", s->seqlen_q);
    fa__prologue_int(source, "SEQLEN_K", s->seqlen_k);
    fa__prologue_int(source, "ROW_WARPS", p->value[ATTENTION_ROW_WARPS]);
    fa__prologue_int(source, "ROW_TILES", p->value[ATTENTION_ROW_TILES]);
    fa__prologue_int(source, "KEY_WARPS", p->value[ATTENTION_KEY_WARPS]);
    fa__prologue_int(source, "KEY_TILE", p->value[ATTENTION_KEY_TILE]);
    fa__prologue_int(source, "STAGES", p->value[ATTENTION_STAGES]);
    fa__prologue_int(source, "LOAD_BYTES", p->value[ATTENTION_LOAD_BYTES]);
    fa__prologue_int(source, "LOAD_BYTES_V", p->value[ATTENTION_LOAD_BYTES_V]);
    fa__prologue_int(source, "MIN_BLOCKS", p->value[ATTENTION_MIN_BLOCKS]);
    fa__prologue_int(source, "SMEM_BYTES", p->smem_dynamic_bytes);
    fa__prologue_int(source, "PARAM_BYTES", sizeof(attention_kernel_params));
}

static fa_status instantiate(const fa_spec *spec, const fa__plan *p, fa__program *program)
{
    write_label(&spec->attention, &program->label);
    write_prologue(&spec->attention, p, &program->source);
    return fa__program_embedded(program, &fa__template_attention, "fajit_attention");
}

static const size_t param_sizes[] = {sizeof(attention_kernel_params)};
_Static_assert(sizeof(attention_kernel_params) == 200, "attention.cu's default says the same");
_Static_assert(sizeof(attention_kernel_params) <= sizeof(((fa__launch_room *)0)->block),
               "room for a launch");

const fa__op fa__op_attention = {
    .id = FA_OP_ATTENTION,
    .name = "attention",
    .text = "softmax(scale q k^T, masked) v",
    .params = parameters,
    .param_count = sizeof parameters / sizeof parameters[0],
    .validate = validate,
    .plan = fa__attention_plan,
    .instantiate = instantiate,
    .launch = fa__attention_launch,
    .param_sizes = param_sizes,
    .param_size_count = 1,
};
