/* Launches of attention without a GPU: every check of the arguments, the parameters, the grid. */
#include "attention_spec.h"
#include "op_steps.h"
#include "ops/attention.h"

#define TENSOR(n) AT(UINT64_C(n) << 48)
#define BYTES(pointer, n) ((void *)((char *)(pointer) + (n)))

static const fa_attention_spec plain = {.head_dim = 64, .lse = true};

/* Everything packed, far apart, aligned to 256 bytes. */
static void launched_begin(launched *x, fa_attention_spec attention)
{
    *x = (launched){.spec = attention_spec(attention), .args = FA_ARGS_INIT(FA_OP_ATTENTION)};
    OK(prepare(&x->spec, &x->plan));
    x->args.attention = (fa_attention_args){.q.data = TENSOR(1),
                                            .k.data = TENSOR(2),
                                            .v.data = TENSOR(3),
                                            .out.data = TENSOR(4),
                                            .lse = TENSOR(5),
                                            .batch = attention.batch ? 0 : 2,
                                            .heads_q = attention.heads_q ? 0 : 4,
                                            .heads_k = attention.heads_k ? 0 : 2,
                                            .seqlen_q = attention.seqlen_q ? 0 : 5,
                                            .seqlen_k = attention.seqlen_k ? 0 : 7};
}

static const attention_kernel_params *launched_params(const launched *x)
{
    return launched_block(x);
}

Test(attention_launch, parameters_are_those_of_the_args)
{
    launched x;
    launched_begin(&x, plain);
    OK(launched_run(&x));
    const attention_kernel_params *k = launched_params(&x);
    cr_expect_not(x.launch.empty);
    cr_expect_eq(x.launch.grid[0], 8u);
    cr_expect_eq(x.launch.block[0], x.plan.block_threads);
    cr_expect_eq(x.launch.smem_bytes, x.plan.smem_dynamic_bytes);
    cr_expect_eq(k->q.data, UINT64_C(1) << 48);
    cr_expect_eq(k->lse, UINT64_C(5) << 48);
    cr_expect_eq(k->q.batch, 5 * 4 * 64);
    cr_expect_eq(k->q.head, 64);
    cr_expect_eq(k->q.token, 4 * 64);
    cr_expect_eq(k->k.token, 2 * 64);
    cr_expect_eq(k->v.batch, 7 * 2 * 64);
    cr_expect_eq(k->lse_batch, 4 * 5);
    cr_expect_eq(k->lse_head, 5);
    cr_expect_eq(k->tiles, 1);
    cr_expect_eq(k->section, 8);
}

Test(attention_launch, heads_first_swaps_the_strides_that_are_not_given)
{
    launched x;
    fa_attention_spec spec = plain;
    spec.heads_first = true;
    launched_begin(&x, spec);
    x.args.attention.v = (fa_tensor){TENSOR(3), 7 * 128, 64, 128};
    OK(launched_run(&x));
    const attention_kernel_params *k = launched_params(&x);
    cr_expect_eq(k->q.head, 5 * 64);
    cr_expect_eq(k->q.token, 64);
    cr_expect_eq(k->v.head, 64);
    cr_expect_eq(k->v.token, 128);
}

#define REFUSALS(X)                                                                                \
    X(FA_ERR_NULL_POINTER, "fa_attention_args.q", a->q.data = NULL)                                \
    X(FA_ERR_NULL_POINTER, "fa_attention_args.k", a->k.data = NULL)                                \
    X(FA_ERR_NULL_POINTER, "fa_attention_args.v", a->v.data = NULL)                                \
    X(FA_ERR_NULL_POINTER, "fa_attention_args.out", a->out.data = NULL)                            \
    X(FA_ERR_NULL_POINTER, "fa_attention_args.lse", a->lse = NULL)                                 \
    X(FA_ERR_MISALIGNED, "q", a->q.data = BYTES(a->q.data, 2))                                     \
    X(FA_ERR_MISALIGNED, "k", a->k.data = BYTES(a->k.data, 1))                                     \
    X(FA_ERR_MISALIGNED, "v", a->v.data = BYTES(a->v.data, 3))                                     \
    X(FA_ERR_MISALIGNED, "out", a->out.data = BYTES(a->out.data, 2))                               \
    X(FA_ERR_MISALIGNED, "lse", a->lse = BYTES(a->lse, 2))                                         \
    X(FA_ERR_SIZE, "batch = -1", a->batch = -1)                                                    \
    X(FA_ERR_SIZE, "heads_q = -4", a->heads_q = -4)                                                \
    X(FA_ERR_SIZE, "heads_k = -2", a->heads_k = -2)                                                \
    X(FA_ERR_SIZE, "seqlen_q = -1", a->seqlen_q = -1)                                              \
    X(FA_ERR_SIZE, "seqlen_k = -1", a->seqlen_k = -1)                                              \
    X(FA_ERR_LIMIT, "seqlen_k = 2147483647", a->seqlen_k = INT32_MAX)                              \
    X(FA_ERR_LIMIT, "2147483392", a->seqlen_q = INT32_MAX - 254)                                   \
    X(FA_ERR_SIZE, "heads_k = 0", a->heads_k = 0)                                                  \
    X(FA_ERR_HEAD_RATIO, "heads_k = 3", a->heads_k = 3)                                            \
    X(FA_ERR_ALIAS, "overlaps q", a->out.data = a->q.data)                                         \
    X(FA_ERR_ALIAS, "overlaps k", a->k.data = BYTES(a->out.data, 2 * 5 * 4 * 64 * 4 - 4))          \
    X(FA_ERR_ALIAS, "overlaps v", a->out.data = a->v.data)                                         \
    X(FA_ERR_ALIAS, "lse", a->lse = a->out.data)                                                   \
    X(FA_ERR_ALIAS, "lse", a->lse = a->q.data)                                                     \
    X(FA_ERR_ALIAS, "lse", a->lse = a->k.data)                                                     \
    X(FA_ERR_ALIAS, "lse", a->lse = a->v.data)                                                     \
    X(FA_ERR_STRIDE, "out", (a->out = (fa_tensor){a->out.data, 64, 64, 64}))                       \
    X(FA_ERR_STRIDE, "lse", a->lse_stride_batch = 1)                                               \
    X(FA_ERR_STRIDE, "q", (a->q = (fa_tensor){a->q.data, 0, 1, INT64_MAX}))

Test(attention_launch, refusals_name_the_argument)
{
    launched x;
    fa_attention_args *a = &x.args.attention;
#define REFUSE(STATUS, WORD, CHANGE)                                                               \
    launched_begin(&x, plain);                                                                     \
    CHANGE;                                                                                        \
    REFUSED(launched_run(&x), STATUS, WORD);
    REFUSALS(REFUSE)
#undef REFUSE
}

Test(attention_launch, an_lse_that_is_not_written_is_refused)
{
    launched x;
    launched_begin(&x, (fa_attention_spec){.head_dim = 64});
    REFUSED(launched_run(&x), FA_ERR_VALUE, "fa_attention_spec.lse");
    x.args.attention.lse = NULL;
    OK(launched_run(&x));
    cr_expect_eq(launched_params(&x)->lse, 0u);
}

Test(attention_launch, F53_more_work_than_a_grid_holds_is_refused)
{
    launched x;
    launched_begin(&x, plain);
    fa_attention_args *a = &x.args.attention;
    a->batch = a->heads_q = 65536;
    a->heads_k = 1;
    a->seqlen_q = 64;
    a->seqlen_k = 0;
    REFUSED(launched_run(&x), FA_ERR_GEOMETRY, "launch them in parts");
    a->heads_q = 32767;
    OK(launched_run(&x));
    cr_expect_eq(x.launch.grid[0], 65536u * 32767);
}

/* As many as a grid's y and z would not hold. */
Test(attention_launch, K14_65536_sequences_or_heads)
{
    launched x;
    launched_begin(&x, plain);
    x.args.attention.batch = 65536;
    OK(launched_run(&x));
    cr_expect_eq(x.launch.grid[0], 65536u * 4);
    launched_begin(&x, plain);
    x.args.attention.heads_q = 65536;
    OK(launched_run(&x));
    cr_expect_eq(x.launch.grid[0], 65536u * 2);
}

/* Elements that 32 bits do not count. */
Test(attention_launch, K11_K12_offsets_over_2_31_elements)
{
    launched x;
    launched_begin(&x, (fa_attention_spec){.dtype = FA_F16, .head_dim = 128, .lse = true});
    fa_attention_args *a = &x.args.attention;
    a->batch = 8300;
    a->heads_q = a->heads_k = 16;
    a->seqlen_q = a->seqlen_k = 128;
    a->k = (fa_tensor){a->k.data, INT64_C(1) << 30, 128, 16 * 128};
    OK(launched_run(&x));
    const attention_kernel_params *k = launched_params(&x);
    cr_expect_eq(k->q.batch, 128 * 16 * 128);
    cr_expect_eq(k->k.batch, INT64_C(1) << 30);
    /* the next tensor begins where this one ends */
    a->v.data = BYTES(a->out.data, INT64_C(8300) * 128 * 16 * 128 * 2);
    OK(launched_run(&x));
    a->v.data = BYTES(a->v.data, -16);
    REFUSED(launched_run(&x), FA_ERR_ALIAS, "overlaps v");
}

/* Heads that run side by side: whole groups, as far as their keys and values fit 16 MiB. */
Test(attention_launch, sections_are_whole_groups_of_heads)
{
    static const struct {
        int32_t heads_q, heads_k, seqlen_k, section;
    } cases[] = {
        {16, 16, 64, 32},  /* all of both batches */
        {16, 16, 4096, 8}, /* 2 MiB a head */
        {16, 4, 4096, 32}, /* 8 groups of four, of two batches */
        {32, 4, 8192, 32}, /* 4 MiB a head: 4 groups of 8 */
        {32, 4, 65536, 8}, /* one group, too large as it is */
        {16, 16, 0, 32},   /* no keys */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        launched x;
        launched_begin(&x, plain);
        x.args.attention.heads_q = cases[i].heads_q;
        x.args.attention.heads_k = cases[i].heads_k;
        x.args.attention.seqlen_k = cases[i].seqlen_k;
        OK(launched_run(&x));
        cr_expect_eq(launched_params(&x)->section, cases[i].section, "case %zu: %d", i,
                     launched_params(&x)->section);
    }
}

Test(attention_launch, empty_work_succeeds)
{
    launched x;
    launched_begin(&x, plain);
    x.args.attention.seqlen_q = 0;
    x.args.attention.q.data = NULL;
    OK(launched_run(&x));
    cr_expect(x.launch.empty);
    launched_begin(&x, plain);
    x.args.attention.seqlen_k = 0;
    x.args.attention.k.data = x.args.attention.v.data = NULL;
    OK(launched_run(&x));
    cr_expect_not(x.launch.empty, "zeros have to be written");
}

Test(attention_launch, baked_sizes_may_be_left_out_but_not_contradicted)
{
    const fa_attention_spec baked = {
        .head_dim = 64, .batch = 2, .heads_q = 4, .heads_k = 2, .seqlen_q = 5, .seqlen_k = 7};
    static const char *const names[] = {"batch = 3 at launch, but 2", "heads_q = 3 at launch",
                                        "heads_k = 3", "seqlen_q = 3", "seqlen_k = 3"};
    launched x;
    launched_begin(&x, baked);
    x.args.attention.lse = NULL;
    OK(launched_run(&x));
    cr_expect_eq(launched_params(&x)->seqlen_k, 7);
    for (size_t i = 0; i < 5; i++) {
        launched_begin(&x, baked);
        fa_attention_args *a = &x.args.attention;
        int32_t *const given[] = {&a->batch, &a->heads_q, &a->heads_k, &a->seqlen_q, &a->seqlen_k};
        *given[i] = 3;
        REFUSED(launched_run(&x), FA_ERR_BAKED, names[i]);
    }
}

Test(attention_launch, width_follows_every_pointer_and_stride)
{
    for (int i = 0; i < 4; i++)
        for (int shift = 0; shift < 4; shift++)
            for (int by_stride = 0; by_stride < 2; by_stride++) {
                launched x;
                launched_begin(&x, plain);
                fa_attention_args *a = &x.args.attention;
                fa_tensor *const tensors[] = {&a->q, &a->k, &a->v, &a->out};
                if (by_stride)
                    *tensors[i] = (fa_tensor){tensors[i]->data, 8192, 64, 256 + shift};
                else
                    tensors[i]->data = BYTES(tensors[i]->data, 4 * shift);
                OK(launched_run(&x));
                const attention_kernel_params *k = launched_params(&x);
                const int32_t widths[] = {k->width_q, k->width_k, k->width_v, k->width_out};
                for (int n = 0; n < 4; n++)
                    cr_expect_eq(widths[n],
                                 n != i || !shift ? 16
                                 : shift == 2     ? 8
                                                  : 4,
                                 "tensor %d of %d, shift %d: %d", n, i, shift, widths[n]);
            }
}
