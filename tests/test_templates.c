/* Every template through the real NVRTC, through the public interface: it compiles and nothing
 * spills. Every instance on sm_90a, a quarter of them on sm_80, and of every six another one on each
 * other architecture, save sm_86, which is as sm_80. Skipped where NVRTC is missing or does not know
 * the architecture. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"
#include "offline.h"

/* More registers than this leave too few threads to hide the latency of memory. */
#define MOST_REGISTERS_BAKED 80
#define MOST_REGISTERS_RICH 104 /* with three positions, or a norm */
#define MOST_REGISTERS_DYNAMIC 128
#define MOST_REGISTERS_LARGE 255 /* a head that fills the registers of a warp */
#define SMEM_WITHOUT_OPTIN (48u * 1024)

#define YARN .kind = FA_ROPE_YARN, .factor = 16, .original_max_position = 4096
#define LLAMA3 .kind = FA_ROPE_LLAMA3, .factor = 8, .original_max_position = 8192
#define SECTIONS(how, t, h, w)                                                                     \
    .positions = FA_ROPE_VECTOR, .sections = FA_ROPE_SECTIONS_##how, .section_t = (t),             \
    .section_h = (h), .section_w = (w)

static const fa_rope_spec rope_instances[] = {
    {.head_dim = 64, .batch = 4, .heads_q = 8, .heads_k = 8, .seqlen = 256},
    {.head_dim = 128},
    {.dtype = FA_F16, .head_dim = 128},
    {.dtype = FA_BF16, .head_dim = 128},
    {.style = FA_ROPE_INTERLEAVED, .head_dim = 64},
    {.dtype = FA_F16, .style = FA_ROPE_INTERLEAVED, .head_dim = 128},
    {.dtype = FA_BF16, .style = FA_ROPE_INTERLEAVED, .head_dim = 128, .in_place = true},
    {.head_dim = 64, .in_place = true},
    {.dtype = FA_BF16, .head_dim = 128, .in_place = true},
    {.dtype = FA_BF16, .head_dim = 128, .rotary_dim = 64},
    {.style = FA_ROPE_INTERLEAVED, .head_dim = 80, .rotary_dim = 32, .base = 500000},
    {.dtype = FA_BF16, .head_dim = 128, .rotary_dim = 32, .in_place = true},
    {.head_dim = 64, .angles = FA_ROPE_TABLES},
    {.dtype = FA_BF16, .head_dim = 128, .angles = FA_ROPE_TABLES, .positions = FA_ROPE_VECTOR},
    {.dtype = FA_F16,
     .style = FA_ROPE_INTERLEAVED,
     .head_dim = 96,
     .angles = FA_ROPE_TABLES,
     .in_place = true},
    {.head_dim = 128, .positions = FA_ROPE_VECTOR},
    {0},
    {.dtype = FA_BF16, .positions = FA_ROPE_VECTOR},
    {.style = FA_ROPE_INTERLEAVED},
    {.dtype = FA_F16, .style = FA_ROPE_INTERLEAVED, .angles = FA_ROPE_TABLES},
    {.dtype = FA_BF16, .rotary_dim = 64},
    {.head_dim = 2},
    {.dtype = FA_F16, .head_dim = 6},
    {.dtype = FA_F16, .head_dim = 67, .rotary_dim = 34},
    {.head_dim = 1024},
    {.dtype = FA_BF16, .style = FA_ROPE_INTERLEAVED, .head_dim = 1024, .base = 1e300},
    {.dtype = FA_BF16, .head_dim = 128, .base = 500000, .scaling = {YARN}},
    {.dtype = FA_F16,
     .head_dim = 128,
     .scaling = {.kind = FA_ROPE_DYNAMIC_NTK, .factor = 2, .original_max_position = 4096}},
    {.dtype = FA_BF16, .scaling = {LLAMA3}},
    {.dtype = FA_BF16, .head_dim = 128, .angles = FA_ROPE_FREQUENCIES},
    {.dtype = FA_BF16,
     .head_dim = 128,
     .positions = FA_ROPE_CUMULATIVE,
     .position_type = FA_I64,
     .inverse = true},
    {.dtype = FA_F16, .head_dim = 128, SECTIONS(INTERLEAVED, 24, 20, 20)},
    {.dtype = FA_BF16,
     .head_dim = 128,
     .angles = FA_ROPE_TABLES,
     SECTIONS(INTERLEAVED, 24, 20, 20)},
    {.dtype = FA_BF16, .head_dim = 128, .norm = FA_ROPE_RMS_NORM},
    {.dtype = FA_BF16, .head_dim = 256, .norm = FA_ROPE_RMS_NORM_F32, .norm_unit_offset = true},
    {.dtype = FA_F16, .head_dim = 128, .rotary_dim = 32, .norm = FA_ROPE_RMS_NORM},
    {.dtype = FA_BF16,
     .head_dim = 128,
     .norm = FA_ROPE_RMS_NORM,
     .scaling = {YARN},
     SECTIONS(INTERLEAVED, 24, 20, 20)},
    {.head_dim = 1024, .norm = FA_ROPE_RMS_NORM},
};

static const fa_kv_update_spec kv_instances[] = {
    {.rotation = FA_KV_ROTATE_INTERLEAVED,
     .angles = FA_ROPE_TABLES,
     .head_dim = 32,
     .batch = 2,
     .tokens = 16,
     .heads = 4,
     .cache_len = 128},
    {.rotation = FA_KV_ROTATE_INTERLEAVED,
     .angles = FA_ROPE_TABLES,
     .in_place = true,
     .head_dim = 32,
     .batch = 2,
     .tokens = 16,
     .heads = 4,
     .cache_len = 128},
    {.rotation = FA_KV_ROTATE_HALF, .in_place = true, .head_dim = 128},
    {.dtype = FA_BF16, .rotation = FA_KV_ROTATE_HALF, .head_dim = 128},
    {.dtype = FA_BF16,
     .rotation = FA_KV_ROTATE_HALF,
     .in_place = true,
     .tokens = 1,
     .head_dim = 128},
    {.dtype = FA_BF16,
     .cache = FA_KV_SLOTS,
     .in_place = true,
     .slot_type = FA_I64,
     .head_dim = 128,
     .heads = 8,
     .page_size = 16},
    {.dtype = FA_F16,
     .rotation = FA_KV_ROTATE_INTERLEAVED,
     .cache = FA_KV_BLOCK_TABLE,
     .in_place = true,
     .position_type = FA_I64,
     .head_dim = 80,
     .head_dim_v = 46,
     .rotary_dim = 32},
    {.rotation = FA_KV_ROTATE_HALF, .in_place = true},
    {.dtype = FA_BF16, .rotation = FA_KV_ROTATE_INTERLEAVED},
    {.head_dim = 1, .head_dim_v = 1024},
};
/* From sm_89 on. */
static const fa_kv_update_spec fp8_kv_instances[] = {
    {.dtype = FA_BF16,
     .rotation = FA_KV_ROTATE_HALF,
     .cache_dtype = FA_KV_E4M3,
     .scales = FA_KV_SCALE_HEAD,
     .cache = FA_KV_SLOTS,
     .in_place = true,
     .head_dim = 128},
    {.cache_dtype = FA_KV_E4M3, .scales = FA_KV_SCALE_TENSOR, .head_dim = 64},
};

static void compile_rope(fa_context *ctx, const fa_rope_spec *rope)
{
    fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE);
    spec.rope = *rope;
    compile_instance(ctx, &spec,
                     rope->norm && rope->head_dim > 512     ? MOST_REGISTERS_LARGE
                     : !rope->head_dim && !rope->rotary_dim ? MOST_REGISTERS_DYNAMIC
                     : rope->norm || rope->sections         ? MOST_REGISTERS_RICH
                                                            : MOST_REGISTERS_BAKED,
                     0);
}

static void compile_kv_update(fa_context *ctx, const fa_kv_update_spec *kv)
{
    fa_spec spec = FA_SPEC_INIT(FA_OP_KV_UPDATE);
    spec.kv_update = *kv;
    compile_instance(ctx, &spec, MOST_REGISTERS_DYNAMIC, SMEM_WITHOUT_OPTIN);
}

static void compile_some(const char *arch, size_t first, size_t step)
{
    fa_context *ctx = open_offline(arch, NULL);
    for (size_t i = first; i < sizeof rope_instances / sizeof rope_instances[0]; i += step)
        compile_rope(ctx, &rope_instances[i]);
    for (size_t i = first; i < sizeof kv_instances / sizeof kv_instances[0]; i += step)
        compile_kv_update(ctx, &kv_instances[i]);
    const bool fp8 = atoi(arch + strlen("sm_")) >= 89;
    for (size_t i = 0; fp8 && i < sizeof fp8_kv_instances / sizeof fp8_kv_instances[0]; i++)
        compile_kv_update(ctx, &fp8_kv_instances[i]);
    fa_context_destroy(ctx);
}

Test(templates, sm_75)
{
    compile_some("sm_75", 0, 6);
}

Test(templates, sm_80)
{
    compile_some("sm_80", 0, 4);
}

Test(templates, sm_89)
{
    compile_some("sm_89", 1, 6);
}

Test(templates, sm_90a)
{
    compile_some("sm_90a", 0, 1);
}

Test(templates, sm_100a)
{
    compile_some("sm_100a", 3, 6);
}

Test(templates, sm_120a)
{
    compile_some("sm_120a", 4, 6);
}

/* Found here, and not only on the GPU host that is to record them. */
Test(templates, conformance_kernels)
{
    int nvrtc = 0;
    fa_context *ctx = open_offline("sm_90a", &nvrtc);
    const char *root = getenv("FAJIT_TEST_ROOT");
    cr_assert_not_null(root);
    if (nvrtc < NVRTC_OF_FP8_MMA) {
        fa_context_destroy(ctx);
        cr_skip_test("the records were made with NVRTC 13; fp8 products need 12.4");
    }
    for (size_t i = 0; i < conform_case_count; i++) {
        fa_kernel *kernel = NULL;
        char *source = conform_source(root, &conform_cases[i]);
        cr_assert_not_null(source, "%s", conform_cases[i].name);
        cr_expect_eq(conform_compile(ctx, &conform_cases[i], source, &kernel), FA_OK, "%s",
                     fa_last_error());
        fa_kernel_release(kernel);
        free(source);
    }
    fa_context_destroy(ctx);
}

static char *render_ptx(fa_rope_spec rope)
{
    fa_context *ctx = open_offline("sm_90a", NULL);
    fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE);
    char *text = NULL;
    spec.rope = rope;
    cr_assert_eq(fa_render(ctx, &spec, FA_TEXT_PTX, &text), FA_OK, "%s", fa_last_error());
    fa_context_destroy(ctx);
    return text;
}

Test(templates, accesses_are_16_bytes_wide)
{
    char *text = render_ptx((fa_rope_spec){.dtype = FA_BF16, .head_dim = 128});
    cr_expect_not_null(strstr(text, "ld.global.nc.v4.u32"));
    cr_expect_not_null(strstr(text, "st.global.v4.u32"));
    free(text);
    text = render_ptx((fa_rope_spec){.dtype = FA_F16, .head_dim = 6}); /* 3 pairs: one at a time */
    cr_expect_null(strstr(text, "ld.global.nc.v4.u32"));
    cr_expect_null(strstr(text, "st.global.v"));
    free(text);
}

/* What this launch writes must not be read past the caches that see its writes. */
Test(templates, in_place_reads_are_coherent)
{
    /* Nothing but q and k is read: frequencies are computed when head_dim is not baked. */
    char *text = render_ptx((fa_rope_spec){.in_place = true});
    cr_expect_null(strstr(text, "ld.global.nc"));
    cr_expect_not_null(strstr(text, "ld.global.v4.u32"));
    free(text);
}

/* Sine and cosine of wrong accuracy would come from these. */
Test(templates, no_approximate_functions)
{
    char *text = render_ptx((fa_rope_spec){.head_dim = 64});
    cr_expect_null(strstr(text, "sin.approx"));
    cr_expect_null(strstr(text, "cos.approx"));
    cr_expect_null(strstr(text, "%fd")); /* a register of double precision */
    cr_expect_null(strstr(text, ".ftz"));
    free(text);
}
