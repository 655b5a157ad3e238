#!/usr/bin/env python3
"""The attention cases by PyTorch's scaled_dot_product_attention: FlashAttention 2 and cuDNN; in
float32 its memory-efficient kernel without TF32."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from common import QUICK, attempt, emit, time_graph

BUDGET_MS = 40 if QUICK else 200

# name, dtype, causal, (batch, heads, seqlen_q, seqlen_k, head_dim), sets of buffers, launches
CASES = [
    ("attention_canonical_f32_graph_cold", torch.float32, False, (4, 8, 64, 128, 32), 64, 512),
    ("attention_canonical_f32_graph_hot", torch.float32, False, (4, 8, 64, 128, 32), 1, 512),
    ("attention_bf16_d64_full", torch.bfloat16, False, (4, 32, 4096, 4096, 64), 2, 20),
    ("attention_bf16_d64_causal", torch.bfloat16, True, (4, 32, 4096, 4096, 64), 2, 20),
    ("attention_bf16_d128_full", torch.bfloat16, False, (4, 16, 4096, 4096, 128), 2, 20),
    ("attention_bf16_d128_causal", torch.bfloat16, True, (4, 16, 4096, 4096, 128), 2, 20),
    ("attention_bf16_d256_full", torch.bfloat16, False, (4, 8, 4096, 4096, 256), 2, 20),
    ("attention_bf16_d80_full", torch.bfloat16, False, (4, 25, 4096, 4096, 80), 2, 20),
    ("attention_f32_d64_full", torch.float32, False, (4, 8, 2048, 2048, 64), 2, 20),
]
PEERS = {
    "torch_flash": (torch.bfloat16, SDPBackend.FLASH_ATTENTION),
    "torch_cudnn": (torch.bfloat16, SDPBackend.CUDNN_ATTENTION),
    "torch_efficient": (torch.float32, SDPBackend.EFFICIENT_ATTENTION),
}


def random(shape, dtype):
    """[B, N, H, D] in memory, seen as the [B, H, N, D] that PyTorch takes."""
    return (torch.rand(shape, device="cuda") * 2 - 1).to(dtype).transpose(1, 2)


def attend(q, k, v, causal):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def check(q, k, v, causal, got):
    want = attend(*(x[:1, :2].double() for x in (q, k, v)), causal)
    error = ((got[:1, :2].double() - want).norm() / want.norm()).item()
    if not error < (1e-5 if q.dtype == torch.float32 else 2e-2):
        raise RuntimeError(f"wrong result: relative error {error}")


def run(row, impl, backend):
    name, dtype, causal, (batch, heads, seqlen_q, seqlen_k, dim), sets, per_replay = row
    torch.manual_seed(1)
    q = [random((batch, seqlen_q, heads, dim), dtype) for _ in range(sets)]
    k = [random((batch, seqlen_k, heads, dim), dtype) for _ in range(sets)]
    v = [random((batch, seqlen_k, heads, dim), dtype) for _ in range(sets)]
    with sdpa_kernel(backend):
        got = attend(q[0], k[0], v[0], causal)
    check(q[0], k[0], v[0], causal, got)

    def work(i):
        return attend(q[i], k[i], v[i], causal)

    with sdpa_kernel(backend):
        us, noise = time_graph(torch, work, sets, per_replay, BUDGET_MS)
    flops = 4 * seqlen_q * seqlen_k * dim * heads * batch / (2 if causal else 1)
    emit(name, impl, "time", us, "us", "scaled_dot_product_attention, in a graph")
    emit(name, impl, "noise", noise, "%", "between two halves of the samples")
    emit(name, impl, "rate", flops / us / 1e6, "TFLOP/s", "of what the mask leaves")


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    for impl, (dtype, backend) in PEERS.items():
        for row in CASES:
            if row[1] != dtype:
                continue
            with torch.no_grad():
                attempt(row[0], impl, lambda row=row: run(row, impl, backend))
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
