/* kv_update on a device: padding, duplicates, quantized caches, streams and graphs, views of every
 * kind, huge caches. */
#include <math.h>

#include "gpu_kv_update.h"

/* --- slots and padding --- */

static const fa_kv_update_spec with_slots = {.cache = FA_KV_SLOTS,
                                             .in_place = true,
                                             .rotation = FA_KV_ROTATE_HALF,
                                             .slot_type = FA_I64,
                                             .head_dim = 16};

/* Runs three tokens with these slots and positions; the caller frees the case. */
static fa_kernel *run_slots(fa_context *ctx, const int64_t slots[], size_t slot_count,
                            const int64_t positions[3], gpu_case *g)
{
    const fa_kv_update_spec sizes = kv_sized(with_slots, 1, 3, 2, 4);
    const int64_t extra[ORACLE_KV_EXTRA_COUNT] = {3, 0, (int64_t)slot_count, 0, 0, 0};
    fa_kernel *kernel = compile_kv(ctx, kv_bake(sizes, 1));
    make_kv(g, kv_bake(sizes, 1), sizes, extra, 1);
    set_indices(g, "slots", slots, slot_count);
    set_indices(g, "positions", positions, 3);
    oracle_kv_update_expect(&g->c);
    gpu_case_run(g, kernel);
    return kernel;
}

/* That exactly these entries of cache_v changed; those of K change with them by the reference. */
static void expect_changed(const gpu_case *g, const int64_t entries[], size_t count)
{
    const float *after = gpu_case_result(g, "cache_v");
    const float *before = g->c.tensor[gpu_case_index(g, "cache_v")].host;
    for (int64_t e = 0; e < 12; e++) {
        bool expected = false;
        for (size_t i = 0; i < count; i++)
            expected |= entries[i] == e;
        cr_expect_eq(memcmp(after + e * 32, before + e * 32, 32 * sizeof *after) != 0, expected,
                     "entry %d", (int)e);
    }
}

Test(gpu_kv_update_edges, K28_only_tokens_with_slots_are_written)
{
    static const int64_t slots[] = {3, -1, 5}, changed[] = {3, 5};
    static const int64_t beside[] = {1, -1, -7, 100000, INT32_MAX, INT32_MIN};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < sizeof beside / sizeof beside[0]; i++) {
        gpu_case g;
        fa_kernel *kernel = run_slots(ctx, slots, 3, (int64_t[]){7, beside[i], 9}, &g);
        expect_changed(&g, changed, 2);
        cr_expect_eq(*(uint32_t *)gpu_case_result(&g, "errors"), 7u, "padding is no error");
        gpu_case_free(&g);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

Test(gpu_kv_update_edges, K29_fewer_slots_than_tokens)
{
    static const int64_t slots[] = {11, 4};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t count = 1; count <= 2; count++) {
        gpu_case g;
        fa_kernel *kernel = run_slots(ctx, slots, count, (int64_t[]){7, 8, 9}, &g);
        expect_changed(&g, slots, count);
        gpu_case_free(&g);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

Test(gpu_kv_update_edges, K30_padding_never_writes_slot_0)
{
    static const int64_t slots[] = {-1, -1, -1};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    gpu_case g;
    fa_kernel *kernel = run_slots(ctx, slots, 3, (int64_t[]){0, 0, -1}, &g);
    expect_changed(&g, NULL, 0);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

Test(gpu_kv_update_edges, tokens_outside_are_counted_and_not_written)
{
    static const int64_t slots[] = {12, -2, INT64_C(1) << 32};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    gpu_case g;
    fa_kernel *kernel = run_slots(ctx, slots, 3, (int64_t[]){0, 0, 0}, &g);
    expect_changed(&g, NULL, 0);
    cr_expect_eq(*(uint32_t *)gpu_case_result(&g, "errors"), 10u);
    /* Without an error word they are skipped all the same. */
    g.c.args.kv_update.errors = NULL;
    gpu_case_launch(&g, kernel);
    expect_changed(&g, NULL, 0);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* A batch of a fixed size, captured once; how much of it is padding changes between replays. */
Test(gpu_kv_update_edges, K31_padded_batches_replayed_in_a_graph)
{
    enum { BATCH = 8 };
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int form = 0; form < 3; form++) {
        const fa_kv_update_spec sizes =
            kv_sized((fa_kv_update_spec){.rotation = FA_KV_ROTATE_HALF,
                                         .cache = form == 1 ? FA_KV_BLOCK_TABLE : FA_KV_DENSE,
                                         .in_place = form != 2,
                                         .head_dim = 16},
                     BATCH, 1, 2, 8);
        const int64_t extra[ORACLE_KV_EXTRA_COUNT] = {0};
        fa_kernel *kernel = compile_kv(ctx, sizes);
        gpu_stream stream = gpu_stream_create();
        gpu_case g;
        make_kv(&g, sizes, sizes, extra, 1);
        gpu_case_upload(&g);
        gpu_graph graph = gpu_case_capture(&g, kernel, stream, 1);
        for (int live = 0; live <= BATCH; live++) {
            int64_t positions[BATCH];
            for (int b = 0; b < BATCH; b++)
                positions[b] = b < live ? (3 * b + live) % 8 : -1;
            set_indices(&g, "positions", positions, BATCH);
            oracle_kv_update_expect(&g.c);
            gpu_case_replay(&g, graph, stream, 1);
            gpu_case_check(&g, kernel);
        }
        gpu_graph_destroy(graph);
        gpu_stream_destroy(stream);
        gpu_case_free(&g);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

/* Each launch may start before the one before it has ended, and reads what that one wrote. */
Test(gpu_kv_update_edges, launches_in_a_stream_see_each_other)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    const fa_kv_update_spec sizes = kv_sized((fa_kv_update_spec){.head_dim = 64}, 2, 3, 4, 33);
    const int64_t extra[ORACLE_KV_EXTRA_COUNT] = {0};
    fa_kernel *kernel = compile_kv(ctx, kv_bake(sizes, 1));
    gpu_case first, second; /* the outputs of one launch are the cache of the next, and back */
    make_kv(&first, kv_bake(sizes, 1), sizes, extra, 1);
    make_kv(&second, kv_bake(sizes, 1), sizes, extra, 9);
    gpu_case_upload(&first);
    gpu_case_upload(&second);
    fa_kv_update_args *a = &first.c.args.kv_update, *b = &second.c.args.kv_update;
    const size_t half = first.c.tensor[gpu_case_index(&first, "out")].bytes / 2;
    b->cache_k.data = a->k_out.data;
    b->cache_v.data = (char *)a->k_out.data + half;
    b->positions = a->positions;
    for (int i = 0; i < 50; i++) {
        OK(fa_launch(kernel, &first.c.args, NULL));
        OK(fa_launch(kernel, &second.c.args, NULL));
    }
    cr_assert(gpu_synchronize(NULL, NULL));
    /* The second launch alone, on the reference's result of the first. */
    const oracle_tensor *out = &first.c.tensor[gpu_case_index(&first, "out")];
    for (int k = 0; k < 2; k++)
        memcpy(second.c.tensor[gpu_case_index(&second, k ? "cache_v" : "cache_k")].host,
               (const char *)out->stored + (k ? half : 0), half);
    memcpy(second.c.tensor[gpu_case_index(&second, "positions")].host,
           first.c.tensor[gpu_case_index(&first, "positions")].host,
           second.c.tensor[gpu_case_index(&second, "positions")].bytes);
    oracle_kv_update_expect(&second.c);
    gpu_case_download(&second);
    oracle_verdict v;
    cr_expect_eq(gpu_case_wrong(&second, gpu_case_index(&second, "out"), &v), 0,
                 "element %zu is %g, not %g", v.first_bad, v.actual, v.expected);
    gpu_case_free(&first);
    gpu_case_free(&second);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* --- duplicates --- */

/* Many tokens for few entries: the last one wins, each time. */
static void run_duplicates(fa_context *ctx, fa_kv_update_spec spec, int batch, int tokens,
                           int entries, int repeats)
{
    const fa_kv_update_spec sizes = kv_sized(spec, batch, tokens, 2, entries);
    const int64_t extra[ORACLE_KV_EXTRA_COUNT] = {1, 1, 0, 0, 1, 0};
    fa_kernel *kernel = compile_kv(ctx, kv_bake(sizes, 1));
    gpu_case g;
    make_kv(&g, kv_bake(sizes, 1), sizes, extra, 3);
    for (int i = 0; i < repeats; i++) {
        gpu_case_run(&g, kernel);
    }
    gpu_case_free(&g);
    fa_kernel_release(kernel);
}

Test(gpu_kv_update_edges, the_last_of_several_tokens_is_written)
{
    static const fa_kv_update_spec specs[] = {
        {.in_place = true, .head_dim = 16, .rotation = FA_KV_ROTATE_HALF},
        {.head_dim = 16, .rotation = FA_KV_ROTATE_HALF},
        {.cache = FA_KV_SLOTS, .in_place = true, .head_dim = 16},
        {.cache = FA_KV_BLOCK_TABLE, .in_place = true, .head_dim = 16}};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    warm_kv(ctx, specs, 4);
    for (size_t i = 0; i < 4; i++) {
        const bool one = specs[i].cache == FA_KV_BLOCK_TABLE; /* one page, one batch */
        run_duplicates(ctx, specs[i], one ? 1 : 3, 129, 5, 20);
        run_duplicates(ctx, specs[i], one ? 1 : 2, 1500, 200, 3);
    }
    close_device(&f, ctx);
}

/* --- bits --- */

/* Values that nothing is to be done to come through with every bit, NaN payloads included. */
Test(gpu_kv_update_edges, copies_are_bitwise)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int i = 0; i < 3; i++) {
        const fa_kv_update_spec spec = {.dtype = (fa_dtype)i,
                                        .rotation = FA_KV_ROTATE_INTERLEAVED,
                                        .head_dim = 32,
                                        .rotary_dim = 16,
                                        .head_dim_v = 64};
        const fa_kv_update_spec sizes = kv_sized(spec, 1, 1024, 1, 1030);
        static const char *const names[] = {"k_new", "v_new", "cache_k", "cache_v"};
        fa_kernel *kernel = compile_kv(ctx, kv_bake(sizes, 1));
        gpu_case g;
        make_kv(&g, kv_bake(sizes, 1), sizes, NULL, 1);
        for (size_t k = 0; k < 4; k++) {
            oracle_tensor *t = &g.c.tensor[gpu_case_index(&g, names[k])];
            const size_t element = t->bytes / t->count, row = k % 2 ? 64 : 32;
            for (size_t e = 0; e < t->count; e++) {
                const uint32_t bits = (uint32_t)(e + k) * (element == 4 ? 43691u : 1u);
                if (k % 2 || k == 2 || e % row >= 16) /* not what is rotated */
                    memcpy((char *)t->host + e * element, &bits, element);
            }
        }
        oracle_kv_update_expect(&g.c);
        gpu_case_run(&g, kernel);
        gpu_case_free(&g);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

/* Pointers off by a few elements, rows with gaps: nothing between the rows is written. */
Test(gpu_kv_update_edges, K34_any_alignment_and_stride)
{
    static const fa_kv_update_spec specs[] = {
        {.dtype = FA_F16, .rotation = FA_KV_ROTATE_HALF, .in_place = true, .head_dim = 64},
        {.rotation = FA_KV_ROTATE_INTERLEAVED, .angles = FA_ROPE_TABLES, .head_dim = 64},
        {.dtype = FA_BF16,
         .rotation = FA_KV_ROTATE_HALF,
         .angles = FA_ROPE_FREQUENCIES,
         .cache_dtype = FA_KV_E4M3,
         .cache = FA_KV_SLOTS,
         .in_place = true,
         .head_dim = 64,
         .rotary_dim = 48}};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (size_t i = 0; i < 3; i++) {
        const fa_kv_update_spec sizes = kv_sized(specs[i], 2, 5, 3, 9);
        fa_kernel *kernel = compile_kv(ctx, kv_bake(sizes, 1));
        for (int64_t pad = 0; pad <= 8; pad += 1 + pad / 2)
            for (int shift = 0; shift <= 4; shift += 1 + shift / 2) {
                const int64_t extra[ORACLE_KV_EXTRA_COUNT] = {0, 0, 0, 0, 1, pad};
                gpu_case g;
                make_kv(&g, kv_bake(sizes, 1), sizes, extra, 7);
                for (size_t t = 0; t < g.c.tensor_count; t++)
                    g.shift[t] = (int)((size_t)shift * (t + 1));
                gpu_case_run(&g, kernel);
                gpu_case_free(&g);
            }
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

/* --- quantized caches --- */

Test(gpu_kv_update_edges, K57_quantized_with_scales_of_each_kind)
{
    static const fa_kv_update_spec specs[] = {
        {.rotation = FA_KV_ROTATE_INTERLEAVED, .cache_dtype = FA_KV_E4M3, .head_dim = 46},
        {.dtype = FA_BF16,
         .cache_dtype = FA_KV_E4M3,
         .scales = FA_KV_SCALE_HEAD,
         .rotation = FA_KV_ROTATE_HALF,
         .cache = FA_KV_BLOCK_TABLE,
         .in_place = true,
         .head_dim = 64},
        {.dtype = FA_F16,
         .cache_dtype = FA_KV_E4M3,
         .scales = FA_KV_SCALE_TENSOR,
         .in_place = true,
         .head_dim = 80}};
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    warm_kv(ctx, specs, 3);
    for (size_t i = 0; i < 3; i++)
        for (uint64_t seed = 1; seed <= 3; seed++)
            compile_and_run_kv(ctx, kv_sized(specs[i], 2, 9, 7, 16), 1, NULL, seed);
    close_device(&f, ctx);
}

/* Every float16 value and the values half way between those of e4m3, their neighbours included. */
Test(gpu_kv_update_edges, quantization_is_exact)
{
    enum { TOKENS = 512, DIM = 128 };
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int dtype = 0; dtype < 2; dtype++) {
        const fa_kv_update_spec spec = {.dtype = (fa_dtype)dtype,
                                        .cache_dtype = FA_KV_E4M3,
                                        .scales = FA_KV_SCALE_TENSOR,
                                        .in_place = true,
                                        .unique = true,
                                        .head_dim = DIM};
        const fa_kv_update_spec sizes = kv_sized(spec, 1, TOKENS, 1, TOKENS);
        const int64_t extra[ORACLE_KV_EXTRA_COUNT] = {0};
        fa_kernel *kernel = compile_kv(ctx, kv_bake(sizes, 1));
        gpu_case g;
        make_kv(&g, kv_bake(sizes, 1), sizes, extra, 1);
        void *v = g.c.tensor[gpu_case_index(&g, "v_new")].host;
        for (uint32_t i = 0; i < TOKENS * DIM; i++) {
            const double low = oracle_e4m3_load((uint8_t)(i / 8 % 255));
            const double high = oracle_e4m3_load((uint8_t)(i / 8 % 255 + 1));
            const float middle = (float)((low + high) / 2);
            if (dtype == FA_F16)
                ((uint16_t *)v)[i] = (uint16_t)i;
            else
                ((float *)v)[i] =
                    i % 3 == 0 ? middle : nextafterf(middle, i % 3 == 1 ? 1e9f : -1e9f);
        }
        *(float *)g.c.tensor[gpu_case_index(&g, "v_scale")].host = dtype ? 0.37f : 1;
        oracle_kv_update_expect(&g.c);
        gpu_case_run(&g, kernel);
        gpu_case_free(&g);
        fa_kernel_release(kernel);
    }
    close_device(&f, ctx);
}

/* --- views --- */

/* Pages that hold K and V side by side, [pages, 2, page_size, G, D], and entries that do. */
Test(gpu_kv_update_edges, K33_interleaved_pools_equal_separate_ones)
{
    enum { PAGES = 6, SIZE = 4, G = 2, D = 16, COUNT = PAGES * SIZE * G * D };
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    const fa_kv_update_spec sizes = kv_sized(with_slots, 1, 11, G, SIZE);
    const int64_t extra[ORACLE_KV_EXTRA_COUNT] = {PAGES, 0, 0, 0, 1, 0};
    fa_kernel *kernel = compile_kv(ctx, kv_bake(sizes, 1));
    gpu_case g;
    make_kv(&g, kv_bake(sizes, 1), sizes, extra, 2);
    gpu_case_run(&g, kernel);
    float *pool = gpu_alloc(2 * COUNT * sizeof *pool), *host = malloc(2 * COUNT * sizeof *host);
    cr_assert_not_null(host);
    for (int form = 0; form < 2; form++) {
        const size_t apart = form ? D : SIZE * G * D; /* of K and V */
        fa_kv_update_args *a = &g.c.args.kv_update;
        gpu_fill(pool, 0xff, 2 * COUNT * sizeof *pool);
        a->cache_k = form ? (fa_tensor){pool, 2 * SIZE * G * D, 2 * D, 2 * G * D}
                          : (fa_tensor){pool, 2 * SIZE * G * D, D, G * D};
        a->cache_v = a->cache_k;
        a->cache_v.data = pool + apart;
        OK(fa_launch(kernel, &g.c.args, NULL));
        cr_assert(gpu_synchronize(NULL, NULL));
        gpu_download(host, pool, 2 * COUNT * sizeof *host);
        size_t written = 0;
        for (size_t i = 0; i < 2 * COUNT; i++) {
            const size_t which = i / apart % 2, at = i / (2 * apart) * apart + i % apart;
            const char *name = which ? "cache_v" : "cache_k";
            const float *before = g.c.tensor[gpu_case_index(&g, name)].host;
            const float *after = gpu_case_result(&g, name);
            if (before[at] == after[at])
                continue; /* a poisoned pool keeps its poison here */
            written++;
            cr_assert_eq(host[i], after[at], "form %d, element %zu", form, i);
        }
        cr_expect_gt(written, 0u);
        size_t kept = 0;
        for (size_t i = 0; i < 2 * COUNT; i++)
            kept += isnan(host[i]) != 0;
        cr_expect_eq(kept + written, 2u * COUNT, "%zu kept, %zu written", kept, written);
    }
    free(host);
    gpu_free(pool);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* K, V as slices of one fused [B, T, 3, G, D] tensor. */
Test(gpu_kv_update_edges, K37_new_values_from_a_fused_tensor)
{
    enum { B = 2, T = 5, G = 3, D = 16, ALL = 3 * G * D };
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    const fa_kv_update_spec sizes = kv_sized(
        (fa_kv_update_spec){.in_place = true, .rotation = FA_KV_ROTATE_HALF, .head_dim = D}, B, T,
        G, 8);
    fa_kernel *kernel = compile_kv(ctx, kv_bake(sizes, 1));
    gpu_case g;
    make_kv(&g, kv_bake(sizes, 1), sizes, NULL, 4);
    float fused[B * T * ALL];
    for (size_t i = 0; i < B * T * ALL; i++)
        fused[i] = NAN;
    for (int k = 0; k < 2; k++)
        for (size_t row = 0; row < B * T; row++)
            memcpy(fused + row * ALL + (size_t)(k + 1) * G * D,
                   (float *)g.c.tensor[gpu_case_index(&g, k ? "v_new" : "k_new")].host +
                       row * G * D,
                   G * D * sizeof(float));
    gpu_case_upload(&g);
    float *memory = gpu_alloc(sizeof fused);
    gpu_upload(memory, fused, sizeof fused);
    g.c.args.kv_update.k_new = (fa_tensor){memory + G * D, T * ALL, D, ALL};
    g.c.args.kv_update.v_new = (fa_tensor){memory + 2 * G * D, T * ALL, D, ALL};
    gpu_case_launch(&g, kernel);
    gpu_case_check(&g, kernel);
    gpu_free(memory);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* --- batches --- */

Test(gpu_kv_update_edges, no_new_tokens_is_a_copy_or_nothing)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    for (int in_place = 0; in_place < 2; in_place++) {
        const fa_kv_update_spec sizes =
            kv_sized((fa_kv_update_spec){.in_place = in_place != 0, .head_dim = 16}, 2, 0, 3, 5);
        compile_and_run_kv(ctx, sizes, 1, NULL, 1);
    }
    close_device(&f, ctx);
}

/* A sequence alone gives the bits that it gives in a batch. */
Test(gpu_kv_update_edges, K58_alone_equals_in_a_batch)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    const fa_kv_update_spec spec = {
        .dtype = FA_BF16, .rotation = FA_KV_ROTATE_HALF, .head_dim = 64};
    fa_kernel *kernel = compile_kv(ctx, spec);
    gpu_case many, one;
    make_kv(&many, spec, kv_sized(spec, 7, 9, 4, 40), NULL, 5);
    make_kv(&one, spec, kv_sized(spec, 1, 9, 4, 40), NULL, 5);
    memcpy(one.c.tensor[gpu_case_index(&one, "positions")].host,
           many.c.tensor[gpu_case_index(&many, "positions")].host, 9 * sizeof(int32_t));
    oracle_kv_update_expect(&one.c);
    gpu_case *both[] = {&many, &one};
    for (int i = 0; i < 2; i++) {
        gpu_case_upload(both[i]);
        gpu_case_launch(both[i], kernel);
        gpu_case_check(both[i], kernel);
    }
    const size_t half = one.c.tensor[gpu_case_index(&one, "out")].bytes / 2;
    const char *whole = gpu_case_result(&many, "out"), *alone = gpu_case_result(&one, "out");
    cr_expect_eq(memcmp(whole, alone, half), 0);
    cr_expect_eq(memcmp(whole + 7 * half, alone + half, half), 0);
    for (int i = 0; i < 2; i++)
        gpu_case_free(both[i]);
    fa_kernel_release(kernel);
    close_device(&f, ctx);
}

/* --- caches over 2^31 elements --- */

static bool all_are(const unsigned char *bytes, size_t count, unsigned char value)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != value)
            return false;
    return true;
}

/* A cache of which each token's entry is looked at. */
typedef struct huge {
    fa_kv_cache cache;
    int outer, entries;
    int64_t stride; /* of rows or pages, in elements */
} huge;

enum { HUGE_D = 64, HUGE_DV = 8, HUGE_TOKENS = 4, HUGE_ROW = HUGE_D * 2 /* bytes */ };

/* Entries at both ends and around the middle, for each batch. */
static void spread_indices(const huge *h, int batch, int64_t *index)
{
    const int64_t all = h->cache == FA_KV_DENSE ? h->entries : (int64_t)h->outer * h->entries;
    const int64_t at[HUGE_TOKENS] = {0, all - 1, all / 2 + 3, all / 3};
    for (int i = 0; i < batch * HUGE_TOKENS; i++)
        index[i] = at[i % HUGE_TOKENS];
}

/* Each token's keys are in its entry, and the entries beside it are as they were. */
static void check_huge(const huge *h, const unsigned char *k, const unsigned char *fresh,
                       const int64_t *index, int count)
{
    unsigned char row[HUGE_ROW];
    for (int i = 0; i < count; i++) {
        const int64_t o = h->cache == FA_KV_DENSE ? i / HUGE_TOKENS : index[i] / h->entries;
        const int64_t e = h->cache == FA_KV_DENSE ? index[i] : index[i] % h->entries;
        const unsigned char *at = k + (o * h->stride + e * HUGE_D) * 2;
        gpu_download(row, at, HUGE_ROW);
        cr_expect_eq(memcmp(row, fresh + i * HUGE_ROW, HUGE_ROW), 0, "token %d", i);
        if (e + 1 < h->entries) {
            gpu_download(row, at + HUGE_ROW, HUGE_ROW);
            cr_expect(all_are(row, HUGE_ROW, 0x11), "behind token %d", i);
        }
        if (e > 0) {
            gpu_download(row, at - HUGE_ROW, HUGE_ROW);
            cr_expect(all_are(row, HUGE_ROW, 0x11), "before token %d", i);
        }
    }
}

/* Writes into caches of `h` that are filled with 0x11, in place of those of the case. */
static void launch_huge(const huge *h, gpu_case *g, const fa_kernel *kernel, void *k, void *v)
{
    const bool dense = h->cache == FA_KV_DENSE;
    fa_kv_update_args *a = &g->c.args.kv_update;
    gpu_case_upload(g);
    a->cache_k = (fa_tensor){k, h->stride, HUGE_D, HUGE_D};
    a->cache_v.data = v;
    a->cache_len = dense ? h->entries : 0;
    a->page_size = dense ? 0 : h->entries;
    a->pages = dense ? 0 : h->outer;
    OK(fa_launch(kernel, &g->c.args, NULL));
    cr_assert(gpu_synchronize(NULL, NULL));
}

/* A cache over 2^31 elements. */
static void run_huge(fa_context *ctx, huge h)
{
    const bool dense = h.cache == FA_KV_DENSE;
    const int64_t total = (h.outer - 1) * h.stride + (int64_t)h.entries * HUGE_D;
    const size_t bytes = (size_t)total * 2;
    const size_t v_bytes = (size_t)h.outer * (size_t)h.entries * HUGE_DV * 2;
    if (free_memory() < bytes + v_bytes + ((size_t)1 << 30))
        cr_skip_test("needs %zu GiB of device memory", ((bytes + v_bytes) >> 30) + 1);
    const fa_kv_update_spec spec = {.dtype = FA_F16,
                                    .in_place = true,
                                    .cache = h.cache,
                                    .head_dim = HUGE_D,
                                    .head_dim_v = HUGE_DV};
    const fa_kv_update_spec sizes = kv_sized(spec, dense ? h.outer : 1, HUGE_TOKENS, 1, h.entries);
    fa_kernel *kernel = compile_kv(ctx, kv_bake(sizes, 1));
    const int count = sizes.batch * HUGE_TOKENS;
    int64_t index[64];
    gpu_case g; /* for the new values alone: its own cache has one entry */
    make_kv(&g, kv_bake(sizes, 1), kv_sized(sizes, sizes.batch, HUGE_TOKENS, 1, 1), NULL, 1);
    spread_indices(&h, sizes.batch, index);
    set_indices(&g, dense ? "positions" : "slots", index, (size_t)count);
    unsigned char *k = gpu_alloc(bytes), *v = gpu_alloc(v_bytes);
    gpu_fill(k, 0x11, bytes);
    gpu_fill(v, 0x11, v_bytes);
    launch_huge(&h, &g, kernel, k, v);
    check_huge(&h, k, g.c.tensor[gpu_case_index(&g, "k_new")].host, index, count);
    gpu_free(k);
    gpu_free(v);
    gpu_case_free(&g);
    fa_kernel_release(kernel);
}

Test(gpu_kv_update_edges, K25_pools_over_2_31_elements)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    run_huge(ctx, (huge){FA_KV_SLOTS, (1 << 21) + 7, 16, 16 * 64});
    close_device(&f, ctx);
}

Test(gpu_kv_update_edges, K11_strides_of_2_30_elements)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    run_huge(ctx, (huge){FA_KV_DENSE, 5, 100, INT64_C(1) << 30});
    close_device(&f, ctx);
}

Test(gpu_kv_update_edges, K12_rows_over_2_31_elements)
{
    fixture f;
    fa_context *ctx = open_device(&f, 0);
    run_huge(ctx, (huge){FA_KV_DENSE, 1, (1 << 25) + 5, (INT64_C(1) << 31) + 5 * 64});
    close_device(&f, ctx);
}
