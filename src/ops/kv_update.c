/* FA_OP_KV_UPDATE: new keys and values written into a cache. The kernel is
 * kernel_templates/kv_update.cu. */
#include "ops/kv_update.h"

#include <stdlib.h>

#include "json.h"
#include "ops/params.h"
#include "status.h"

static const char *const cache_dtype_names[] = {"same", "e4m3", NULL};
static const char *const scale_names[] = {"none", "tensor", "head", NULL};

#define MEMBER(name) offsetof(fa_spec, kv_update) + offsetof(fa_kv_update_spec, name)
#define DIMENSION(name, alias, low, high, text) NUMBER(name, alias, true, low, high, text)

static const fa_param_info parameters[] = {
    CHOICE(dtype, fa__dtype_names, "element type of k_new and v_new"),
    CHOICE(cache_dtype, cache_dtype_names, "of the cache: that of the new ones, or quantized"),
    CHOICE(scales, scale_names, "of a quantized cache: for all heads, or one a head"),
    CHOICE(cache, fa__cache_names,
           "entry = position, a slot in a pool of pages, or by a block table"),
    CHOICE(cache_layout, fa__kv_layout_names, "of caches and outputs whose strides are all 0"),
    YES(in_place, "the cache is changed; else it is copied with the changes"),
    YES(unique, "promised: no two tokens of a batch go to one entry"),
    CHOICE(rotation, fa__rotation_names, "of the keys; pairs as in rope"),
    CHOICE(angles, fa__rotary_angles_names,
           "computed from base, or read: cos and sin tables, or an inv_freq vector"),
    CHOICE(position_type, fa__index_names, "of positions"),
    CHOICE(slot_type, fa__index_names, "of slots"),
    DIMENSION(head_dim, "D", 1, KV_MAX_HEAD_DIM, "elements of a head of K"),
    {"head_dim_v", NULL, FA_PARAM_INT, MEMBER(head_dim_v), false, 1, KV_MAX_HEAD_DIM, NULL,
     "elements of a head of V; 0: as K"},
    {"rotary_dim", "R", FA_PARAM_INT, MEMBER(rotary_dim), false, 1, KV_MAX_HEAD_DIM, NULL,
     "even number of elements rotated, the first of each head; 0: all"},
    DIMENSION(batch, "B", 1, INT32_MAX, "batches"),
    DIMENSION(tokens, "T", 1, INT32_MAX, "new tokens of a batch"),
    DIMENSION(heads, "G", 1, INT32_MAX, "heads of K and V"),
    DIMENSION(cache_len, "L", 1, INT32_MAX, "entries of a row of a dense cache"),
    DIMENSION(page_size, "P", 1, KV_MAX_PAGE_SIZE, "entries of a page"),
    ROTARY_PARAMS(MEMBER),
};

/* --- validate --- */

static fa__rotary rotary_of(fa_kv_update_spec *s)
{
    return (fa__rotary){"kv_update", s->angles, &s->base, &s->scaling, s->rotary_dim};
}

static fa_status check_rotation(const fa_kv_update_spec *s)
{
    if (s->rotation == FA_KV_ROTATE_NONE) {
        if (s->rotary_dim)
            return fa__fail(FA_ERR_ROTARY_DIM,
                            "kv_update: rotary_dim = %d without rotation; leave it 0 or choose a "
                            "rotation (fa_kv_update_spec.rotary_dim, rotation)",
                            s->rotary_dim);
        return FA_OK;
    }
    if (s->rotary_dim % 2)
        return fa__fail(FA_ERR_ROTARY_DIM,
                        "kv_update: rotary_dim = %d is odd; an even number is needed "
                        "(fa_kv_update_spec.rotary_dim)",
                        s->rotary_dim);
    if (s->head_dim && s->rotary_dim > s->head_dim)
        return fa__fail(FA_ERR_ROTARY_DIM,
                        "kv_update: rotary_dim = %d is larger than head_dim = %d "
                        "(fa_kv_update_spec.rotary_dim)",
                        s->rotary_dim, s->head_dim);
    if (s->head_dim % 2 && !s->rotary_dim)
        return fa__fail(FA_ERR_ROTARY_DIM,
                        "kv_update: all of head_dim = %d is to be rotated, which is odd; set an "
                        "even fa_kv_update_spec.rotary_dim",
                        s->head_dim);
    return FA_OK;
}

static fa_status check_cache(const fa_kv_update_spec *s, const fa__target *target)
{
    const bool pages = s->cache != FA_KV_DENSE;
    if (pages && !s->in_place)
        return fa__fail(FA_ERR_VALUE,
                        "kv_update: cache = %s without in_place; pages are always changed in place "
                        "(fa_kv_update_spec.in_place)",
                        fa__cache_names[s->cache]);
    if (pages && s->cache_len)
        return fa__fail(FA_ERR_VALUE,
                        "kv_update: cache_len = %d with cache = %s; leave it 0, pages have "
                        "page_size (fa_kv_update_spec.cache_len)",
                        s->cache_len, fa__cache_names[s->cache]);
    if (!pages && s->page_size)
        return fa__fail(FA_ERR_VALUE,
                        "kv_update: page_size = %d with cache = dense; leave it 0, or choose slots "
                        "or block_table (fa_kv_update_spec.page_size, cache)",
                        s->page_size);
    if (s->head_dim_v && !s->head_dim)
        return fa__fail(FA_ERR_SIZE,
                        "kv_update: head_dim_v = %d is baked, but head_dim is not; bake both "
                        "(fa_kv_update_spec.head_dim)",
                        s->head_dim_v);
    if (s->cache_dtype == FA_KV_SAME && s->scales)
        return fa__fail(FA_ERR_VALUE,
                        "kv_update: scales = %s with cache_dtype = same; only a quantized cache "
                        "has scales (fa_kv_update_spec.scales, cache_dtype)",
                        scale_names[s->scales]);
    if (s->cache_dtype == FA_KV_E4M3 && target->cc < 89)
        return fa__fail(FA_ERR_DTYPE,
                        "kv_update: cache_dtype = e4m3 is not supported on %s; sm_89 or later is "
                        "needed (fa_kv_update_spec.cache_dtype)",
                        target->arch);
    return FA_OK;
}

/* One form for specs that mean the same, so that they share a kernel. */
static void fill_defaults(fa_kv_update_spec *s)
{
    if (!s->head_dim_v)
        s->head_dim_v = s->head_dim;
    if (s->cache != FA_KV_SLOTS)
        s->slot_type = FA_I32;
    if (s->rotation && !s->rotary_dim)
        s->rotary_dim = s->head_dim;
    if (s->rotation)
        return;
    s->angles = FA_ROPE_COMPUTED;
    s->base = 0;
    s->scaling = (fa_rope_scaling){0};
    if (s->cache == FA_KV_SLOTS)
        s->position_type = FA_I32; /* not read */
}

static fa_status validate(fa_spec *spec, const fa__target *target)
{
    fa_kv_update_spec *s = &spec->kv_update;
    fa_status status = check_cache(s, target);
    if (!status)
        status = check_rotation(s);
    if (status)
        return status;
    fill_defaults(s);
    const fa__rotary rotary = rotary_of(s);
    return s->rotation ? fa__rotary_check(&rotary) : FA_OK;
}

/* --- plan --- */

static fa_status plan(const fa_spec *spec, const fa__target *target, fa__plan *p)
{
    const fa_kv_update_spec *s = &spec->kv_update;
    const int64_t bytes = (int64_t)fa__dtype_bytes(s->dtype), widest = 16 / bytes;
    uint64_t must_divide = 0;
    if (s->head_dim && (s->rotary_dim || !s->rotation))
        must_divide = fa__kv_dividends(s, s->head_dim, s->rotary_dim);
    else if (s->rotary_dim)
        must_divide = fa__kv_dividends(s, s->rotary_dim, s->rotary_dim);
    const int64_t width = fa__power_of_two(must_divide, widest);
    const int64_t width_v = fa__power_of_two((uint64_t)s->head_dim_v, widest);
    p->block_threads = KV_BLOCK_THREADS;
    p->flags.programmatic = target->cc >= 90; /* kv_update.cu waits for its predecessor by itself */
    p->value[KV_VECTOR_WIDTH] = (int32_t)width;
    p->value[KV_VECTOR_WIDTH_V] = (int32_t)width_v;
    fa__buf text = fa__buf_on(p->text, sizeof p->text);
    fa__buf_format(
        &text,
        "blocks of %d threads, accesses of %d bytes to k_new and %d to v_new, %d heads in "
        "flight%s",
        KV_BLOCK_THREADS, (int)(width * bytes), (int)(width_v * bytes), KV_HEADS_IN_FLIGHT,
        p->flags.programmatic ? ", programmatic launch" : "");
    return FA_OK; /* the longest text is shorter than the room */
}

/* --- instantiate --- */

static void write_label(fa_kv_update_spec *s, fa__buf *label)
{
    fa__buf_format(label, "kv_update %s", fa__dtype_name(s->dtype));
    if (s->cache_dtype)
        fa__buf_format(label, " %s", cache_dtype_names[s->cache_dtype]);
    if (s->scales)
        fa__buf_format(label, " scale_%s", scale_names[s->scales]);
    fa__buf_format(label, " %s", fa__cache_names[s->cache]);
    fa__buf_text(label, s->in_place ? " in_place" : "");
    fa__buf_text(label, s->unique ? " unique" : "");
    if (s->rotation)
        fa__buf_format(label, " %s", fa__rotation_names[s->rotation]);
    if (s->angles)
        fa__buf_format(label, " %s", fa__rotary_angles_names[s->angles]);
    fa__buf_text(label, s->position_type ? " positions_i64" : "");
    fa__buf_text(label, s->slot_type ? " slots_i64" : "");
    const bool own_v = s->head_dim_v != s->head_dim;
    const bool partial = s->rotation && s->rotary_dim != s->head_dim;
    const fa__label_number dimensions[] = {{"D", s->head_dim},
                                           {"Dv", own_v ? s->head_dim_v : 0},
                                           {"R", partial ? s->rotary_dim : 0},
                                           {"B", s->batch},
                                           {"T", s->tokens},
                                           {"G", s->heads},
                                           {"L", s->cache_len},
                                           {"P", s->page_size}};
    fa__label_numbers(label, dimensions, sizeof dimensions / sizeof dimensions[0]);
    const fa__rotary rotary = rotary_of(s);
    if (s->rotation)
        fa__rotary_label(label, &rotary);
}

static void write_prologue(fa_kv_update_spec *s, const fa__plan *p, fa__buf *source)
{
    const fa__rotary rotary = rotary_of(s);
    fa__prologue_begin(source);
    fa__prologue_dtype(source, "Element", s->dtype);
    if (s->cache_dtype == FA_KV_E4M3)
        fa__buf_text(source, "#include \"fajit/dtype.cuh\"\nusing Cached = fajit::fp8_e4m3;\n");
    else
        fa__prologue_dtype(source, "Cached", s->dtype);
    fa__prologue_int(source, "SCALES", (int64_t)s->scales);
    fa__prologue_int(source, "CACHE", (int64_t)s->cache);
    fa__prologue_bool(source, "IN_PLACE", s->in_place);
    fa__prologue_bool(source, "UNIQUE", s->unique);
    fa__prologue_bool(source, "POSITIONS_WIDE", s->position_type == FA_I64);
    fa__prologue_bool(source, "SLOTS_WIDE", s->slot_type == FA_I64);
    fa__prologue_int(source, "ROTATION", (int64_t)s->rotation);
    fa__prologue_int(source, "HEAD_DIM", s->head_dim);
    fa__prologue_int(source, "HEAD_DIM_V", s->head_dim_v);
    fa__prologue_int(source, "ROTARY_DIM", s->rotary_dim);
    fa__prologue_int(source, "BATCH", s->batch);
    fa__prologue_int(source, "TOKENS", s->tokens);
    fa__prologue_int(source, "HEADS", s->heads);
    fa__prologue_int(source, "CACHE_LEN", s->cache_len);
    fa__prologue_int(source, "PAGE_SIZE", s->page_size);
    fa__prologue_int(source, "VECTOR_WIDTH", p->value[KV_VECTOR_WIDTH]);
    fa__prologue_int(source, "VECTOR_WIDTH_V", p->value[KV_VECTOR_WIDTH_V]);
    fa__prologue_int(source, "HEADS_IN_FLIGHT", KV_HEADS_IN_FLIGHT);
    fa__prologue_int(source, "BLOCK_THREADS", KV_BLOCK_THREADS);
    fa__prologue_int(source, "PARAM_BYTES", sizeof(kv_kernel_params));
    fa__rotary_prologue(source, &rotary);
}

static fa_status instantiate(const fa_spec *spec, const fa__plan *p, fa__program *program)
{
    fa_kv_update_spec own = spec->kv_update;
    write_label(&own, &program->label);
    write_prologue(&own, p, &program->source);
    return fa__program_embedded(program, &fa__template_kv_update, "fajit_kv_update");
}

static const size_t param_sizes[] = {sizeof(kv_kernel_params)};
_Static_assert(sizeof(kv_kernel_params) == 408, "kv_update.cu's default says the same");
_Static_assert(sizeof(kv_kernel_params) <= sizeof(((fa__launch_room *)0)->block),
               "room for a launch");

const fa__op fa__op_kv_update = {
    .id = FA_OP_KV_UPDATE,
    .name = "kv_update",
    .text = "new keys and values into a cache, the keys rotated",
    .params = parameters,
    .param_count = sizeof parameters / sizeof parameters[0],
    .validate = validate,
    .plan = plan,
    .instantiate = instantiate,
    .launch = fa__kv_update_launch,
    .param_sizes = param_sizes,
    .param_size_count = 1,
};
