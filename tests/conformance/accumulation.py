"""The rule by which the tensor cores of a GPU add, checked against what conformance_record wrote.

    accumulation.py [--search] FOLDER [CASE]...

For each case mma_* of FOLDER it prints how many outputs the emulator's rule (RULES) leaves
unexplained, and fails if there are any. --search goes through the family that the rule is of, and
prints the members that explain most. The family: the K products are taken in groups, and the sum so
far joins each group; all terms of a group are aligned to the greatest exponent among them (a
product's is the sum of its factors', a subnormal factor's the least there is; zeros have none);
what lies more than F bits below that is cut off, toward zero or down; the sum is exact, and is
rounded to the type of the sums at the end of the group, toward zero (a result that becomes zero
loses its sign) or to nearest. C is the sum that the first group joins, or is added to that of the
last group as float32, to nearest. Needs NumPy.
"""

import itertools
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

FLOAT, HALF = (32, 23, 127), (16, 10, 15)  # bits, mantissa bits, bias
TF32, BF16 = (19, 10, 127), (16, 7, 127)
E4M3, E5M2 = (8, 3, 7), (8, 2, 15)

# name: types of the elements of A and B, K, type of the sums
CASES = {
    "mma_f16": (HALF, HALF, 16, FLOAT),
    "mma_f16_k8": (HALF, HALF, 8, FLOAT),
    "mma_f16_tiny": (HALF, HALF, 16, FLOAT),
    "mma_bf16": (BF16, BF16, 16, FLOAT),
    "mma_bf16_k8": (BF16, BF16, 8, FLOAT),
    "mma_bf16_tiny": (BF16, BF16, 16, FLOAT),
    "mma_tf32": (TF32, TF32, 8, FLOAT),
    "mma_tf32_k4": (TF32, TF32, 4, FLOAT),
    "mma_e4m3": (E4M3, E4M3, 32, FLOAT),
    "mma_e5m2": (E5M2, E5M2, 32, FLOAT),
    "mma_e4m3_e5m2": (E4M3, E5M2, 32, FLOAT),
    "mma_e5m2_e4m3": (E5M2, E4M3, 32, FLOAT),
    "mma_fp8_tiny": (E4M3, E5M2, 32, FLOAT),
    "mma_half_sums": (HALF, HALF, 16, HALF),
    "mma_half_sums_k8": (HALF, HALF, 8, HALF),
    "mma_half_tiny": (HALF, HALF, 16, HALF),
}
FAR = -10000  # exponent of a term that is zero


class Rule(NamedTuple):
    groups: str  # a key of groupings()
    F: int
    cut: str  # "toward zero", "down"
    rounded: str  # "toward zero", "to nearest"
    c: str  # "first", "last"


ONE_GROUP = Rule("all at once", 25, "toward zero", "toward zero", "first")
# On sm_90 the compiler makes two products of halves, and an addition, of one of fp8.
TWO_PRODUCTS = Rule("k % 4 < 2, then the others", 25, "toward zero", "toward zero", "last")
HALF_SUM = ONE_GROUP._replace(rounded="to nearest")
RULES = {name: TWO_PRODUCTS for name, (a, *_) in CASES.items() if a[0] == 8}
RULES |= {name: HALF_SUM for name, (*_, form) in CASES.items() if form == HALF}


def groupings(K):
    k = np.arange(K)
    low = k % 4 < 2
    found = {f"of {size} in a row": np.split(k, K // size) for size in (4, 8, 16) if size < K}
    found["all at once"] = [k]
    if K == 32:
        found["k % 4 < 2, then the others"] = [k[low], k[~low]]
        found["k % 4 >= 2, then the others"] = [k[~low], k[low]]
    return found


def split(bits, form):
    """Signed significand (an integer) and the exponent that its first bit would have."""
    width, mantissa_bits, bias = form
    magnitude = bits & ((1 << (width - 1)) - 1)
    exponent, fraction = magnitude >> mantissa_bits, magnitude & ((1 << mantissa_bits) - 1)
    significand = np.where(exponent > 0, fraction | (1 << mantissa_bits), fraction)
    significand = np.where(bits >> (width - 1) & 1, -significand, significand)
    return significand.astype(np.int64), np.maximum(exponent, 1).astype(np.int64) - bias


def factors(bits, form):
    """The same, as the units get them: of e4m3 they get halves, which are not subnormal."""
    significand, exponent = split(bits, form)
    if form != E4M3:
        return significand, exponent
    left = form[1] + 1 - np.frexp(np.abs(significand).astype(np.float64))[1]
    left = np.where(significand == 0, 0, left).astype(np.int64)
    return significand << left, exponent - left


def elements(words, width):
    """(warps, lanes, words) -> (warps, lanes, words, elements of a word)."""
    if width == 19:  # the upper bits of the word
        return (words >> 13)[..., None]
    return np.stack([words >> s & ((1 << width) - 1) for s in range(0, 32, width)], axis=-1)


def matrices(inputs, width, K, width_c):
    """A as (warps, 16, K), B as (warps, 8, K), C as (warps, 16, 8), all as bits."""
    per, per_c = 32 // width, 32 // width_c
    words_a, words_b, words_c = K // 2 // per, K // 4 // per, 4 // per_c
    inputs = inputs.reshape(-1, 32, words_a + words_b + words_c).astype(np.int64)
    warps = len(inputs)
    a, b = np.zeros((warps, 16, K), np.int64), np.zeros((warps, 8, K), np.int64)
    ea = elements(inputs[..., :words_a], width)
    eb = elements(inputs[..., words_a : words_a + words_b], width)
    for lane, i, j in itertools.product(range(32), range(words_a), range(per)):
        g, t = lane // 4, lane % 4
        a[:, g + 8 * (i % 2), per * t + j + 4 * per * (i // 2)] = ea[:, lane, i, j]
        if i < words_b:
            b[:, g, per * t + j + 4 * per * i] = eb[:, lane, i, j]
    return a, b, sums(inputs[..., words_a + words_b :], width_c)


def sums(words, width):
    """C or D as (warps, 16, 8)."""
    flat = elements(words.astype(np.int64), width).reshape(len(words), 32, 4)
    d = np.zeros((len(words), 16, 8), np.int64)
    for lane, i in itertools.product(range(32), range(4)):
        d[:, lane // 4 + 8 * (i // 2), 2 * (lane % 4) + i % 2] = flat[:, lane, i]
    return d


def shifted(x, left, cut="toward zero"):
    """x * 2^left."""
    up, down = np.clip(left, 0, 39), np.clip(-left, 0, 62)
    lower = x >> down if cut == "down" else np.sign(x) * (np.abs(x) >> down)
    return np.where(left >= 0, x << up, lower)


def rounded(total, exponent, how, form):
    """total * 2^exponent as bits."""
    width, mantissa_bits, bias = form
    size, sign = np.abs(total), np.where(total < 0, 1 << (width - 1), 0)
    length = np.frexp(size.astype(np.float64))[1].astype(np.int64)  # exact: below 2^53
    first = np.maximum(length - 1 + exponent, 1 - bias)
    drop = first - mantissa_bits - exponent
    kept = shifted(size, -drop)
    if how == "to nearest":
        rest = size - shifted(kept, drop)
        half = np.where(drop > 0, 1 << np.clip(drop - 1, 0, 62), 1 << 62)
        kept += (rest > half) | ((rest == half) & (kept & 1 == 1))
    infinite = 2 * bias + 1 << mantissa_bits
    bits = np.minimum(kept + (first + bias - 1 << mantissa_bits), infinite)
    return np.where(kept == 0, 0, bits | sign)


def add_group(significand, exponent, unit, c, rule, form):
    """A product is significand * 2^(exponent - unit)."""
    cs, ce = split(c, form)
    m = np.concatenate([significand, cs[..., None]], axis=-1)
    e = np.concatenate([exponent, ce[..., None]], axis=-1)
    last = np.concatenate([exponent - unit, ce[..., None] - form[1]], axis=-1)
    top = np.where(m != 0, e, FAR).max(axis=-1, keepdims=True)
    aligned = shifted(m, last - (top - rule.F), rule.cut)
    return rounded(aligned.sum(axis=-1), top[..., 0] - rule.F, rule.rounded, form)


def add_floats(x, y):
    with np.errstate(over="ignore"):
        total = x.astype(np.uint32).view(np.float32) + y.astype(np.uint32).view(np.float32)
    return total.view(np.uint32).astype(np.int64)


class Case:
    def __init__(self, name, folder):
        form_a, form_b, K, self.form = CASES[name]
        words = np.fromfile(folder / f"{name}.in", "<u4")
        a, b, self.c = matrices(words, form_a[0], K, self.form[0])
        words = np.fromfile(folder / f"{name}.raw", "<u4")
        self.d = sums(words.reshape(-1, 32, self.form[0] // 8), self.form[0])
        (ma, ea), (mb, eb) = factors(a, form_a), factors(b, form_b)
        self.significand = ma[:, :, None, :] * mb[:, None, :, :]
        self.exponent = ea[:, :, None, :] + eb[:, None, :, :]
        self.unit, self.groups = form_a[1] + form_b[1], groupings(K)

    def unexplained(self, rule):
        d = self.c if rule.c == "first" else np.zeros_like(self.c)
        for group in self.groups[rule.groups]:
            m, e = self.significand[..., group], self.exponent[..., group]
            d = add_group(m, e, self.unit, d, rule, self.form)
        if rule.c == "last":
            d = add_floats(d, self.c)
        return int((d != self.d).sum())

    def search(self):
        rules = itertools.product(
            self.groups,
            range(20, 31),
            ("toward zero", "down"),
            ("toward zero", "to nearest"),
            ("first", "last") if self.form == FLOAT else ("first",),
        )
        found = sorted((self.unexplained(Rule(*r)), r) for r in rules)
        for wrong, (groups, F, cut, how, c) in found[:5]:
            print(f"    {wrong}: {groups}, F = {F}, cut {cut}, rounded {how}, c {c}")


def main():
    words = sys.argv[1:]
    search = "--search" in words
    words = [w for w in words if w != "--search"]
    if not words or not set(words[1:]) <= set(CASES):
        sys.exit(__doc__)
    failed = False
    for name in words[1:] or CASES:
        case = Case(name, Path(words[0]))
        wrong = case.unexplained(RULES.get(name, ONE_GROUP))
        failed |= wrong > 0
        print(f"{name}: {wrong} of {case.d.size} outputs unexplained")
        if search:
            case.search()
    return failed


if __name__ == "__main__":
    sys.exit(main())
