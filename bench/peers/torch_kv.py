"""The kv_update cases for PyTorch: keys are rotated, and both are written by indexed assignment
into the cache, or into a copy that is stacked."""

import sys

import torch

from common import BASE, QUICK, attempt, emit, time_graph

BUDGET_MS = 40 if QUICK else 200
TOKENS_LARGE = 128 if QUICK else 1024

# name, dtype, interleaved, in place, (batch, tokens, cache_len, heads, head_dim), sets of new
# values, whether they share one cache, launches in a graph
CANONICAL = (2, 16, 128, 4, 32)
LARGE = (8, TOKENS_LARGE, 8192, 8, 128)
DECODE = (64, 1, 4096, 8, 128)
CASES = [
    ("kv_canonical_f32_stacked_graph_cold", torch.float32, True, False, CANONICAL, 64, False, 512),
    ("kv_canonical_f32_stacked_graph_hot", torch.float32, True, False, CANONICAL, 1, False, 512),
    ("kv_canonical_f32_in_graph_cold", torch.float32, True, True, CANONICAL, 64, False, 512),
    ("kv_canonical_f32_in_graph_hot", torch.float32, True, True, CANONICAL, 1, False, 512),
    ("kv_large_f32_tables_in", torch.float32, True, True, LARGE, 2, False, 10),
    ("kv_decode_bf16_tables_in_graph_cold", torch.bfloat16, False, True, DECODE, 32, True, 256),
    ("kv_decode_bf16_tables_in_graph_hot", torch.bfloat16, False, True, DECODE, 1, True, 256),
]


class Case:
    """Random tensors for each set, positions from a place of each batch's own on, tables."""

    def __init__(self, row):
        self.name, self.dtype, self.interleaved, self.in_place, size = row[:5]
        self.sets, one_cache, self.per_replay = row[5:]
        self.batch, self.tokens, self.cache_len, self.heads, self.head_dim = size
        torch.manual_seed(1)
        new = (self.batch, self.tokens, self.heads, self.head_dim)
        old = (self.batch, self.cache_len, self.heads, self.head_dim)
        self.k, self.v = ([self.random(new) for _ in range(self.sets)] for _ in range(2))
        caches = 1 if one_cache else self.sets
        self.cache_k, self.cache_v = ([self.random(old) for _ in range(caches)] for _ in range(2))
        self.cache_k *= self.sets // caches
        self.cache_v *= self.sets // caches
        begin = torch.randint(self.cache_len - self.tokens + 1, (self.sets, self.batch, 1))
        self.positions = (begin + torch.arange(self.tokens)).to(torch.int64).cuda()
        half = self.head_dim // 2
        index = torch.arange(half, dtype=torch.float64, device="cuda")
        position = torch.arange(self.cache_len, dtype=torch.float64, device="cuda")
        angle = position[:, None] * BASE ** (-2.0 * index / self.head_dim)
        self.cos, self.sin = angle.cos(), angle.sin()
        self.rows = torch.arange(self.batch, device="cuda")[:, None]

    def random(self, shape):
        return (torch.rand(shape, device="cuda") * 2 - 1).to(self.dtype)

    def rotate(self, x, cos, sin):
        if self.interleaved:
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        half = self.head_dim // 2
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def update(self, k, v, cache_k, cache_v, positions, cos, sin):
        """What a model's code says: to be run as it is, or compiled."""
        turned = self.rotate(k, cos[positions][:, :, None], sin[positions][:, :, None]).to(k.dtype)
        if not self.in_place:
            cache_k, cache_v = cache_k.clone(), cache_v.clone()
        cache_k[self.rows, positions] = turned
        cache_v[self.rows, positions] = v
        return (cache_k, cache_v) if self.in_place else torch.stack((cache_k, cache_v))

    def check(self, update):
        """Against float64, on copies of the first set."""
        k, v = self.k[0], self.v[0]
        old_k, old_v = self.cache_k[0].clone(), self.cache_v[0].clone()
        positions = self.positions[0]
        got = update(k, v, old_k, old_v, positions, self.cos.float(), self.sin.float())
        want_k, want_v = self.cache_k[0].double(), self.cache_v[0].double()
        turned = self.rotate(
            k.double(), self.cos[positions][:, :, None], self.sin[positions][:, :, None]
        )
        want_k[self.rows, positions] = turned
        want_v[self.rows, positions] = v.double()
        for have, want in zip(got, (want_k, want_v)):
            error = ((have.double() - want).norm() / want.norm()).item()
            if not error < (1e-5 if self.dtype == torch.float32 else 1e-2):
                raise RuntimeError(f"wrong result: relative error {error}")


def measure(case, impl, update, note):
    case.check(update)
    cos, sin = case.cos.float(), case.sin.float()

    def work(i):
        return update(
            case.k[i], case.v[i], case.cache_k[i], case.cache_v[i], case.positions[i], cos, sin
        )

    us, noise = time_graph(torch, work, case.sets, case.per_replay, BUDGET_MS)
    emit(case.name, impl, "time", us, "us", note)
    emit(case.name, impl, "noise", noise, "%", "between two halves of the samples")


def run_all(impl, run):
    """run(case) for every case; one that fails is recorded as not measured."""
    for row in CASES:
        with torch.no_grad():
            attempt(row[0], impl, lambda row=row: run(Case(row)))
        torch.cuda.empty_cache()
    sys.stdout.flush()
