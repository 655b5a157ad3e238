/* FA_OP_LOWRANK_KV: keys and values from compressed activations. The kernels are
 * kernel_templates/lowrank_kv.cu. */
#include "ops/lowrank_kv.h"

#include <float.h>

#include "json.h"
#include "ops/params.h"
#include "status.h"

static const char *const form_names[] = {"whole", "down", "up", NULL};
static const char *const plan_names[] = {"auto", "one_launch", "two_launches", NULL};
static const char *const sums_names[] = {"default", "chunked", "split_tf32", "tf32",
                                         "double",  "tensor",  "tree",       NULL};

#define MEMBER(name) offsetof(fa_spec, lowrank_kv) + offsetof(fa_lowrank_kv_spec, name)
#define DIMENSION(name, alias, dynamic, high, text) NUMBER(name, alias, dynamic, 1, high, text)

static const fa_param_info parameters[] = {
    CHOICE(dtype, fa__dtype_names, "element type of activations, weights and outputs"),
    CHOICE(form, form_names, "hidden to K and V, hidden to the latent, or the latent to K and V"),
    CHOICE(plan, plan_names, "of the whole: with the latent in shared memory, or in the workspace"),
    CHOICE(sums, sums_names, "how products are summed; by default float32-accurate"),
    CHOICE(norm, fa__norm_names, "of the latent, with weights of the dtype or float32"),
    YES(to_cache, "outputs are caches, and positions or slots say where a token goes"),
    CHOICE(cache, fa__cache_names,
           "entry = position, a slot in a pool of pages, or by a block table"),
    CHOICE(cache_layout, fa__kv_layout_names, "of caches of K and V whose strides are all 0"),
    YES(unique, "promised: no two tokens of a batch go to one entry"),
    CHOICE(rotation, fa__rotation_names, "of the rotary part; pairs as in rope"),
    YES(rope_once, "the rotary part is written once a token, not behind K in each head"),
    CHOICE(angles, fa__rotary_angles_names,
           "computed from base, or read: cos and sin tables, or an inv_freq vector"),
    CHOICE(position_type, fa__index_names, "of positions"),
    CHOICE(slot_type, fa__index_names, "of slots"),
    DIMENSION(model_dim, "M", true, LINEAR_MAX_SIZE, "elements of a token's activations"),
    DIMENSION(rank, "R", false, LOWRANK_MAX_RANK, "elements of a token's latent"),
    DIMENSION(heads, "G", true, INT32_MAX, "heads of K and V"),
    DIMENSION(head_dim, "D", true, INT32_MAX, "elements of a head of K, without the rotary part"),
    DIMENSION(head_dim_v, "Dv", false, INT32_MAX, "elements of a head of V; 0: as K"),
    DIMENSION(rope_dim, "Dr", false, LOWRANK_MAX_ROPE_DIM,
              "elements of the rotary part that heads share; 0: there is none"),
    NUMBER(tile_tokens, NULL, false, 16, 32,
           "tokens of a block of one launch, 16 or 32; 0: by cost"),
    NUMBER(shares, NULL, false, 1, 64,
           "blocks of one launch that share the columns of their tokens; 0: by cost"),
    DIMENSION(batch, "B", true, INT32_MAX, "batches"),
    DIMENSION(seqlen, "S", true, INT32_MAX, "tokens of a batch"),
    {"norm_eps", NULL, FA_PARAM_REAL, MEMBER(norm_eps), false, DBL_MIN, 1, NULL, "0: 1e-6"},
    ROTARY_PARAMS(MEMBER),
};

/* --- validate --- */

static fa__rotary rotary_of(fa_lowrank_kv_spec *s)
{
    return (fa__rotary){"lowrank_kv", s->angles, &s->base, &s->scaling, s->rope_dim};
}

static fa_status check_form(const fa_lowrank_kv_spec *s)
{
    if (s->tile_tokens && s->tile_tokens != 16 && s->tile_tokens != 32)
        return fa__fail(FA_ERR_VALUE,
                        "lowrank_kv: tile_tokens = %d; 16 or 32, or 0 for what costs least "
                        "(fa_lowrank_kv_spec.tile_tokens)",
                        s->tile_tokens);
    if (!s->rank)
        return fa__fail(FA_ERR_SIZE,
                        "lowrank_kv: rank = 0; it is always baked, 1 to %d "
                        "(fa_lowrank_kv_spec.rank)",
                        LOWRANK_MAX_RANK);
    if (s->plan && s->form != FA_LOWRANK_WHOLE)
        return fa__fail(FA_ERR_VALUE,
                        "lowrank_kv: plan = %s with form = %s, which is one launch; leave it auto "
                        "(fa_lowrank_kv_spec.plan)",
                        plan_names[s->plan], form_names[s->form]);
    if (s->norm && s->form == FA_LOWRANK_UP)
        return fa__fail(FA_ERR_VALUE,
                        "lowrank_kv: norm = %s with form = up, whose latent has had it; leave it "
                        "none (fa_lowrank_kv_spec.norm)",
                        fa__norm_names[s->norm]);
    if (s->norm_eps != 0 && !s->norm)
        return fa__fail(FA_ERR_VALUE,
                        "lowrank_kv: norm_eps is set without norm (fa_lowrank_kv_spec.norm_eps)");
    if (s->head_dim_v && !s->head_dim)
        return fa__fail(FA_ERR_SIZE,
                        "lowrank_kv: head_dim_v = %d is baked, but head_dim is not; bake both "
                        "(fa_lowrank_kv_spec.head_dim)",
                        s->head_dim_v);
    if (!s->to_cache && (s->cache || s->cache_layout || s->unique))
        return fa__fail(FA_ERR_VALUE,
                        "lowrank_kv: %s is set without to_cache (fa_lowrank_kv_spec.to_cache)",
                        s->cache          ? "cache"
                        : s->cache_layout ? "cache_layout"
                                          : "unique");
    return FA_OK;
}

static fa_status check_sums(const fa_lowrank_kv_spec *s, const fa__target *target)
{
    const bool halves = s->dtype != FA_F32;
    const bool only_f32 = s->sums == FA_LOWRANK_SUMS_SPLIT_TF32 || s->sums == FA_LOWRANK_SUMS_TF32;
    if ((halves && only_f32) || (!halves && s->sums == FA_LOWRANK_SUMS_TENSOR))
        return fa__fail(
            FA_ERR_VALUE,
            "lowrank_kv: sums = %s with dtype = %s; %s takes default, chunked, tree, double, "
            "%s (fa_lowrank_kv_spec.sums)",
            sums_names[s->sums], fa__dtype_name(s->dtype), fa__dtype_name(s->dtype),
            halves ? "tensor" : "split_tf32, tf32");
    if (target->cc < 80 && (only_f32 || s->sums == FA_LOWRANK_SUMS_TENSOR))
        return fa__fail(FA_ERR_UNSUPPORTED,
                        "lowrank_kv: sums = %s on %s; sm_80 or later is needed, or chunked, "
                        "tree or double (fa_lowrank_kv_spec.sums)",
                        sums_names[s->sums], target->arch);
    return FA_OK;
}

static fa_status check_rope(const fa_lowrank_kv_spec *s)
{
    if (s->rotation && !s->rope_dim)
        return fa__fail(FA_ERR_ROTARY_DIM,
                        "lowrank_kv: rotation = %s without a rotary part; set rope_dim, or leave "
                        "it none (fa_lowrank_kv_spec.rotation)",
                        fa__rotation_names[s->rotation]);
    if (s->rotation && s->rope_dim % 2)
        return fa__fail(FA_ERR_ROTARY_DIM,
                        "lowrank_kv: rope_dim = %d is odd; an even number is rotated "
                        "(fa_lowrank_kv_spec.rope_dim)",
                        s->rope_dim);
    if (s->rope_once && !s->rope_dim)
        return fa__fail(FA_ERR_VALUE,
                        "lowrank_kv: rope_once without a rotary part; set rope_dim "
                        "(fa_lowrank_kv_spec.rope_once)");
    return FA_OK;
}

fa_status fa__lowrank_check_columns(const char *where, int64_t heads, int64_t head_dim,
                                    int64_t head_dim_v)
{
    const bool of_v = heads * head_dim <= LINEAR_MAX_SIZE;
    const int64_t columns = heads * (of_v ? head_dim_v : head_dim);
    return columns <= LINEAR_MAX_SIZE
               ? FA_OK
               : fa__fail(FA_ERR_LIMIT, "lowrank_kv: heads * %s = %lld; at most %d (%s.heads, %s)",
                          of_v ? "head_dim_v" : "head_dim", (long long)columns, LINEAR_MAX_SIZE,
                          where, of_v ? "head_dim_v" : "head_dim");
}

/* What a form does not use is one value: specs that mean the same share a kernel. */
static void drop_unused(fa_lowrank_kv_spec *s)
{
    if (s->form == FA_LOWRANK_UP)
        s->model_dim = 0;
    if (s->form == FA_LOWRANK_DOWN) {
        s->heads = s->head_dim = s->head_dim_v = 0;
        s->cache_layout = FA_KV_TOKENS_FIRST;
        s->rope_once = s->rope_dim > 0;
    }
    if (!s->to_cache || s->cache != FA_KV_SLOTS)
        s->slot_type = FA_I32;
    if (s->rotation)
        return;
    s->angles = FA_ROPE_COMPUTED;
    s->base = 0;
    s->scaling = (fa_rope_scaling){0};
    if (!s->to_cache || s->cache == FA_KV_SLOTS)
        s->position_type = FA_I32; /* not read */
}

static void fill_defaults(fa_lowrank_kv_spec *s, const fa__target *target)
{
    drop_unused(s);
    if (!s->head_dim_v)
        s->head_dim_v = s->head_dim;
    if (s->norm && s->norm_eps == 0)
        s->norm_eps = 1e-6;
    if (s->sums != FA_LOWRANK_SUMS_DEFAULT)
        return;
    s->sums = target->cc < 80      ? FA_LOWRANK_SUMS_CHUNKED
              : s->dtype == FA_F32 ? FA_LOWRANK_SUMS_SPLIT_TF32
                                   : FA_LOWRANK_SUMS_TENSOR;
}

static fa_status validate(fa_spec *spec, const fa__target *target)
{
    fa_lowrank_kv_spec *s = &spec->lowrank_kv;
    fa_status status = check_form(s);
    if (!status)
        status = check_sums(s, target);
    if (!status)
        status = check_rope(s);
    if (status)
        return status;
    fill_defaults(s, target);
    status = fa__lowrank_check_columns("fa_lowrank_kv_spec", s->heads, s->head_dim, s->head_dim_v);
    if (status)
        return status;
    const fa__rotary rotary = rotary_of(s);
    return s->rotation ? fa__rotary_check(&rotary) : FA_OK;
}

static fa_status plan(const fa_spec *spec, const fa__target *target, fa__plan *p)
{
    return fa__lowrank_plan_make(&spec->lowrank_kv, target, p);
}

/* --- instantiate --- */

static void label_sizes(const fa_lowrank_kv_spec *s, fa__buf *label)
{
    const bool own_v = s->head_dim_v != s->head_dim;
    const fa__label_number dimensions[] = {{"M", s->model_dim},
                                           {"R", s->rank},
                                           {"G", s->heads},
                                           {"D", s->head_dim},
                                           {"Dv", own_v ? s->head_dim_v : 0},
                                           {"Dr", s->rope_dim},
                                           {"B", s->batch},
                                           {"S", s->seqlen},
                                           {"tile_tokens=", s->tile_tokens},
                                           {"shares=", s->shares}};
    fa__label_numbers(label, dimensions, sizeof dimensions / sizeof dimensions[0]);
}

static void write_label(fa_lowrank_kv_spec *s, fa__buf *label)
{
    fa__buf_format(label, "lowrank_kv %s %s", fa__dtype_name(s->dtype), form_names[s->form]);
    if (s->plan)
        fa__buf_format(label, " %s", plan_names[s->plan]);
    fa__buf_format(label, " %s", sums_names[s->sums]);
    if (s->norm)
        fa__buf_format(label, " %s", fa__norm_names[s->norm]);
    if (s->to_cache)
        fa__buf_format(label, " to_%s", fa__cache_names[s->cache]);
    fa__buf_text(label, s->unique ? " unique" : "");
    if (s->rotation)
        fa__buf_format(label, " %s", fa__rotation_names[s->rotation]);
    fa__buf_text(label, s->rope_once ? " rope_once" : "");
    if (s->angles)
        fa__buf_format(label, " %s", fa__rotary_angles_names[s->angles]);
    fa__buf_text(label, s->position_type ? " positions_i64" : "");
    fa__buf_text(label, s->slot_type ? " slots_i64" : "");
    label_sizes(s, label);
    if (s->norm && s->norm_eps != 1e-6) {
        fa__buf_text(label, " norm_eps=");
        fa__json_real(label, s->norm_eps);
    }
    const fa__rotary rotary = rotary_of(s);
    if (s->rotation)
        fa__rotary_label(label, &rotary);
}

static void write_steps(const fa__plan *p, fa__buf *source)
{
    lowrank_plan own;
    fa__lowrank_plan_get(p, &own);
    fa__buf_format(source,
                   "#include \"fajit/steps.cuh\"\ninline constexpr lowrank_step STEPS[%d] = {",
                   FA__MAX_FUNCTIONS);
    for (int32_t i = 0; i < own.kernel_count; i++) {
        const lowrank_kernel *k = &own.kernel[i];
        fa__buf_format(source, "%s{%d, %s", i ? ", " : "", k->step,
                       k->is_product ? "true, {}, " : "false, ");
        if (k->is_product)
            fa__prologue_fields(source, &k->product, sizeof k->product);
        else
            fa__prologue_fields(source, &k->small, sizeof k->small);
        fa__buf_text(source, k->is_product ? "}" : ", {}}");
    }
    fa__buf_text(source, "};\n");
}

static void write_prologue(fa_lowrank_kv_spec *s, const fa__plan *p, fa__buf *source)
{
    const fa__rotary rotary = rotary_of(s);
    fa__prologue_begin(source);
    fa__prologue_dtype(source, "Element", s->dtype);
    fa__prologue_dtype(source, "NormWeight", s->norm == FA_ROPE_RMS_NORM_F32 ? FA_F32 : s->dtype);
    fa__prologue_int(source, "FORM", (int64_t)s->form);
    fa__prologue_int(source, "SUMS", fa__lowrank_policy(s));
    fa__prologue_bool(source, "NORM", s->norm != FA_ROPE_NO_NORM);
    fa__prologue_real(source, "NORM_EPS", s->norm_eps);
    fa__prologue_int(source, "RANK", s->rank);
    fa__prologue_int(source, "MODEL_DIM", s->model_dim);
    fa__prologue_int(source, "HEADS", s->heads);
    fa__prologue_int(source, "HEAD_DIM", s->head_dim);
    fa__prologue_int(source, "HEAD_DIM_V", s->head_dim_v);
    fa__prologue_int(source, "BATCH", s->batch);
    fa__prologue_int(source, "SEQLEN", s->seqlen);
    fa__prologue_bool(source, "TO_CACHE", s->to_cache);
    fa__prologue_int(source, "CACHE", (int64_t)s->cache);
    fa__prologue_bool(source, "UNIQUE", s->unique);
    fa__prologue_bool(source, "POSITIONS_WIDE", s->position_type == FA_I64);
    fa__prologue_bool(source, "SLOTS_WIDE", s->slot_type == FA_I64);
    fa__prologue_int(source, "ROPE_DIM", s->rope_dim);
    fa__prologue_int(source, "ROTATION", (int64_t)s->rotation);
    fa__prologue_bool(source, "ROPE_ONCE", s->rope_once);
    write_steps(p, source);
    fa__prologue_int(source, "WARPS", LOWRANK_WARPS);
    fa__prologue_int(source, "PARAM_BYTES", sizeof(lowrank_params));
    fa__rotary_prologue(source, &rotary);
}

static fa_status instantiate(const fa_spec *spec, const fa__plan *p, fa__program *program)
{
    static const char *const entries[FA__MAX_FUNCTIONS] = {
        "fajit_lowrank_kv<0>", "fajit_lowrank_kv<1>", "fajit_lowrank_kv<2>", "fajit_lowrank_kv<3>",
        "fajit_lowrank_kv<4>"};
    fa_lowrank_kv_spec own = spec->lowrank_kv;
    lowrank_plan ways;
    fa__lowrank_plan_get(p, &ways);
    write_label(&own, &program->label);
    write_prologue(&own, p, &program->source);
    for (int32_t i = 1; i < ways.kernel_count; i++)
        program->further_entries[i - 1] = entries[i];
    return fa__program_embedded(program, &fa__template_lowrank_kv, entries[0]);
}

static const size_t param_sizes[] = {sizeof(lowrank_params)};
_Static_assert(sizeof(lowrank_params) == 496, "lowrank_kv.cu's default says the same");
_Static_assert(sizeof(lowrank_params) <= sizeof(((fa__launch_room *)0)->block),
               "room for a launch");

const fa__op fa__op_lowrank_kv = {
    .id = FA_OP_LOWRANK_KV,
    .name = "lowrank_kv",
    .text = "keys and values from compressed activations",
    .params = parameters,
    .param_count = sizeof parameters / sizeof parameters[0],
    .validate = validate,
    .plan = plan,
    .instantiate = instantiate,
    .launch = fa__lowrank_launch,
    .workspace = fa__lowrank_workspace,
    .param_sizes = param_sizes,
    .param_size_count = 1,
};
