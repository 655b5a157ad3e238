/* A launch of linear without a GPU. */
#ifndef LINEAR_LAUNCHED_H
#define LINEAR_LAUNCHED_H

#include "linear_spec.h"
#include "op_steps.h"
#include "ops/linear.h"

#define TENSOR(n) AT((uint64_t)(n) << 42)
#define BYTES(pointer, n) ((void *)((char *)(uintptr_t)(pointer) + (n)))

/* M = 100, N = 128, K = 256 and room for a workspace: everything packed, far apart, aligned. */
static inline void launched_begin(launched *x, fa_linear_spec linear)
{
    *x = (launched){.spec = linear_spec(linear), .args = FA_ARGS_INIT(FA_OP_LINEAR)};
    OK(prepare(&x->spec, &x->plan));
    x->args.workspace = TENSOR(15);
    x->args.workspace_bytes = 1 << 30;
    x->args.linear = (fa_linear_args){.x.data = TENSOR(1),
                                      .w.data = TENSOR(2),
                                      .y = {{TENSOR(3), 0}, {TENSOR(4), 0}, {TENSOR(5), 0}},
                                      .residual.data = TENSOR(6),
                                      .bias = TENSOR(7),
                                      .m = linear.m ? 0 : 100,
                                      .n = linear.n ? 0 : 128,
                                      .k = linear.k ? 0 : 256,
                                      .rows = TENSOR(8),
                                      .row_count = 500,
                                      .errors = TENSOR(9),
                                      .positions = TENSOR(10),
                                      .cos = TENSOR(11),
                                      .sin = TENSOR(12),
                                      .max_position = 128,
                                      .inv_freq = TENSOR(11),
                                      .x_scale = TENSOR(13),
                                      .w_scale = TENSOR(14)};
}

static inline const linear_kernel_params *launched_params(const launched *x)
{
    return launched_block(x);
}

#endif
