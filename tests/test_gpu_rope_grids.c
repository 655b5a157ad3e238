/* rope on a device over the grids of shapes that others test theirs on. The large ones are not for
 * the emulator. */
#include "gpu_rope.h"

static void warm(fa_context *ctx, const fa_rope_spec *ropes, size_t count)
{
    fa_spec specs[32];
    cr_assert_leq(count, 32u);
    for (size_t i = 0; i < count; i++)
        specs[i] = rope_spec(ropes[i]);
    cr_assert_eq(fa_warm(ctx, specs, count, NULL, NULL), FA_OK, "%s", fa_last_error());
}

static fa_rope_spec sized(fa_rope_spec spec, int batch, int heads_q, int heads_k, int seqlen)
{
    spec.batch = batch;
    spec.heads_q = heads_q;
    spec.heads_k = heads_k;
    spec.seqlen = seqlen;
    return spec;
}

Test(gpu_rope_grids, K35_rotary_fraction_style_in_place)
{
    fixture f;
    fa_rope_spec specs[12];
    fa_context *ctx = open_device(&f, 0);
    for (int i = 0; i < 12; i++)
        specs[i] = (fa_rope_spec){.dtype = FA_BF16,
                                  .head_dim = 128,
                                  .rotary_dim = 32 << i % 3,
                                  .style = (fa_rope_style)(i / 3 % 2),
                                  .in_place = i / 6 != 0,
                                  .layout = FA_LAYOUT_BNHD};
    warm(ctx, specs, 12);
    for (int i = 0; i < 12; i++)
        run_rope(ctx, specs[i], sized(specs[i], 2, 8, 4, 19), NULL, (uint64_t)i + 1);
    close_device(&f, ctx);
}

static void run_batches(const int *batches, int batch_count, const int *lengths, int length_count)
{
    static const int offsets[] = {0, 15, 99, 131071};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int type = 0; type < 2; type++) {
        const fa_rope_spec spec = {.dtype = type ? FA_F16 : FA_F32,
                                   .style = (fa_rope_style)type,
                                   .layout = (fa_layout)type,
                                   .head_dim = 32};
        for (int b = 0; b < batch_count; b++)
            for (int n = 0; n < length_count; n++)
                for (int o = 0; o < 4; o++) {
                    const int64_t extra[ROPE_EXTRAS] = {offsets[o]};
                    run_rope(ctx, spec, sized(spec, batches[b], 3, 1, lengths[n]), extra,
                             (uint64_t)(b * 16 + n * 4 + o + 1));
                }
    }
    close_device(&f, ctx);
}

Test(gpu_rope_grids, small_batches_lengths_and_offsets)
{
    static const int batches[] = {1, 19}, lengths[] = {1, 4, 19};
    run_batches(batches, 2, lengths, 3);
}

Test(gpu_rope_grids, large_batches_lengths_and_offsets)
{
    static const int batches[] = {1, 19, 99, 989}, lengths[] = {1, 4, 19, 204};
    run_batches(batches, 4, lengths, 4);
}

static void run_dims(int seqlen)
{
    static const int dims[] = {64, 72, 80, 120, 128, 256};
    fixture f;
    fa_rope_spec specs[12];
    fa_context *ctx = open_device(&f, 0);
    for (int i = 0; i < 12; i++)
        specs[i] = (fa_rope_spec){.dtype = FA_BF16,
                                  .head_dim = dims[i / 2],
                                  .rotary_dim = i % 2 ? 32 : dims[i / 2],
                                  .layout = FA_LAYOUT_BNHD};
    warm(ctx, specs, 12);
    for (int i = 0; i < 12; i++)
        run_rope(ctx, specs[i], sized(specs[i], 1, 17, 17, seqlen), NULL, (uint64_t)i + 1);
    close_device(&f, ctx);
}

Test(gpu_rope_grids, small_17_heads_of_every_size)
{
    run_dims(11);
}

Test(gpu_rope_grids, large_17_heads_of_every_size)
{
    run_dims(8192);
}
