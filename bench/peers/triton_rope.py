#!/usr/bin/env python3
"""Triton: a rope kernel written by hand, its first compile, and the cost of a launch."""

import time

import torch
import triton
import triton.language as tl

import common
from common import SCALE_BLOCK, SCALE_COUNT, SCALE_GRID, attempt, emit


@triton.jit
def rope_kernel(
    q,
    k,
    q_out,
    k_out,
    cos,
    sin,
    rows,
    TOKENS: tl.constexpr,
    INNER: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (i, 0) turns BLOCK rows of q, program (i, 1) the same rows of k. A row is one head of
    one token; INNER is the number of heads between two tokens (1 when tokens are innermost)."""
    x, y = q, q_out
    if tl.program_id(1) == 1:
        x, y = k, k_out
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, HALF)
    inside = (row < rows)[:, None]
    at = row.to(tl.int64)[:, None] * (2 * HALF) + column[None, :]
    angle = ((row // INNER) % TOKENS)[:, None] * HALF + column[None, :]
    c = tl.load(cos + angle, mask=inside, other=0.0)
    s = tl.load(sin + angle, mask=inside, other=0.0)
    a = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x + at + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + at, (a * c - b * s).to(y.dtype.element_ty), mask=inside)
    tl.store(y + at + HALF, (b * c + a * s).to(y.dtype.element_ty), mask=inside)


@triton.jit
def scale_kernel(out, x, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * factor, mask=i < n)


def launch_rope(case, i, q_out, k_out, cos, sin, block, warps):
    rows = case.batch * case.heads * case.tokens
    inner = case.heads if case.layout == "bnhd" else 1
    rope_kernel[(triton.cdiv(rows, block), 2)](
        case.q[i],
        case.k[i],
        q_out[i],
        k_out[i],
        cos,
        sin,
        rows,
        TOKENS=case.tokens,
        INNER=inner,
        HALF=case.head_dim // 2,
        BLOCK=block,
        num_warps=warps,
    )


def run(case):
    from torch_rope import BUDGET_MS

    cos, sin = (t.contiguous() for t in case.tables(torch.float32, 1))
    q_out = [torch.full_like(x, float("nan")) for x in case.q]
    k_out = [torch.full_like(x, float("nan")) for x in case.k]
    best = None
    for block, warps in ((4, 1), (8, 4), (16, 4), (32, 4), (32, 8)):

        def work(i, block=block, warps=warps):
            launch_rope(case, i, q_out, k_out, cos, sin, block, warps)

        work(0)
        case.check(q_out[0], k_out[0])
        us, noise = common.time_graph(torch, work, case.sets, case.per_replay, BUDGET_MS / 2)
        if best is None or us < best[0]:
            best = (us, noise, f"best of five: {block} rows a program, {warps} warps; in a graph")
    emit(case.name, "triton", "time", best[0], "us", best[2])
    emit(case.name, "triton", "noise", best[1], "%", "between two halves of the samples")


def scale_data():
    x = torch.rand(SCALE_COUNT, device="cuda") * 2 - 1
    out = torch.full_like(x, float("nan"))
    torch.cuda.synchronize()
    return x, out


def child_scale():
    x, out = scale_data()
    begin = time.perf_counter_ns()
    scale_kernel[(SCALE_GRID,)](out, x, SCALE_COUNT, 2.0, BLOCK=SCALE_BLOCK)
    result = out.cpu()
    common.print_ms("total_ms", begin)
    common.check_scale(x.tolist(), result.tolist())


def child_rope():
    from torch_rope import CANONICAL_HOT, Case

    case = Case(CANONICAL_HOT)
    cos, sin = (t.contiguous() for t in case.tables(torch.float32, 1))
    q_out, k_out = [torch.zeros_like(case.q[0])], [torch.zeros_like(case.k[0])]
    torch.cuda.synchronize()
    begin = time.perf_counter_ns()
    launch_rope(case, 0, q_out, k_out, cos, sin, 8, 4)
    q_out[0].view(-1)[:1024].cpu()
    common.print_ms("total_ms", begin)
    case.check(q_out[0], k_out[0])


def measure_launch():
    x, out = scale_data()
    kernel = scale_kernel[(SCALE_GRID,)]
    ns = common.launch_ns(
        lambda: kernel(out, x, SCALE_COUNT, 2.0, BLOCK=SCALE_BLOCK), torch.cuda.synchronize
    )
    common.check_scale(x.tolist(), out.tolist())
    emit("launch_template", "triton", "launch", ns, "ns", common.LAUNCH_NOTE)


def main():
    from torch_rope import for_each_case

    attempt("launch_template", "triton", measure_launch)
    for_each_case("triton", run)
    note = "torch and triton imported, context and tensors there"
    for mode in ("template", "rope"):
        rows = (f"cold_{mode}", f"first_{mode}", "triton", "TRITON_CACHE_DIR", note)
        runs = 1 if common.QUICK else 2
        attempt(rows[1], "triton", common.cold_and_warm, mode, *rows, runs)


if __name__ == "__main__":
    {None: main, "template": child_scale, "rope": child_rope}[common.child_mode()]()
