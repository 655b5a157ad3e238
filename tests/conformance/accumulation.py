"""Finds the rule by which the tensor cores of a GPU add, from what conformance_record wrote.

    accumulation.py FOLDER [CASE]...

For each case mma_* of FOLDER it prints the rules of the family below that explain most of the
outputs, with how many they leave unexplained. The family: the K products are taken in groups of so
many, and the sum so far joins each group; all terms of a group are aligned to the greatest exponent
among them (a product's is the sum of its factors' exponents); what lies more than F bits below that
is cut off; the sum is exact, and is rounded at the end of the group. Needs NumPy.
"""

import itertools
import sys
from pathlib import Path

import numpy as np

# name: element bits, mantissa bits, bias, K
CASES = {
    "mma_f16": (16, 10, 15, 16),
    "mma_f16_k8": (16, 10, 15, 8),
    "mma_bf16": (16, 7, 127, 16),
    "mma_tf32": (32, 10, 127, 8),
    "mma_e4m3": (8, 3, 7, 32),
    "mma_e5m2": (8, 2, 15, 32),
}
FAR = -10000  # exponent of a term that is zero


def split(bits, mantissa_bits, bias, width):
    """Signed significand (an integer) and exponent of its last bit's weight plus mantissa_bits."""
    magnitude = bits & ((1 << (width - 1)) - 1)
    exponent, fraction = magnitude >> mantissa_bits, magnitude & ((1 << mantissa_bits) - 1)
    significand = np.where(exponent > 0, fraction | (1 << mantissa_bits), fraction)
    significand = np.where(bits >> (width - 1) & 1, -significand, significand)
    return significand.astype(np.int64), np.maximum(exponent, 1).astype(np.int64) - bias


def elements(words, width):
    """(warps, lanes, words) -> (warps, lanes, words, elements of a word)."""
    if width == 32:  # tf32: the upper 19 bits
        return (words >> 13)[..., None]
    return np.stack([words >> s & ((1 << width) - 1) for s in range(0, 32, width)], axis=-1)


def matrices(inputs, width, K):
    """A as (warps, 16, K), B as (warps, 8, K), C as (warps, 16, 8), all as bits."""
    per = 32 // width
    words_a, words_b = K // 2 // per, K // 4 // per
    inputs = inputs.reshape(-1, 32, words_a + words_b + 4).astype(np.int64)
    warps = len(inputs)
    a, b = np.zeros((warps, 16, K), np.int64), np.zeros((warps, 8, K), np.int64)
    c = np.zeros((warps, 16, 8), np.int64)
    ea = elements(inputs[..., :words_a], width)
    eb = elements(inputs[..., words_a : words_a + words_b], width)
    for lane, i in itertools.product(range(32), range(max(words_a, 4))):
        g, t = lane // 4, lane % 4
        for j in range(per):
            if i < words_a:
                a[:, g + 8 * (i % 2), per * t + j + 4 * per * (i // 2)] = ea[:, lane, i, j]
            if i < words_b:
                b[:, g, per * t + j + 4 * per * i] = eb[:, lane, i, j]
        if i < 4:
            c[:, g + 8 * (i // 2), 2 * t + i % 2] = inputs[:, lane, words_a + words_b + i]
    return a, b, c


def outputs_of(words):
    d = np.zeros((len(words) // 128, 16, 8), np.int64)
    words = words.reshape(-1, 32, 4)
    for lane, i in itertools.product(range(32), range(4)):
        d[:, lane // 4 + 8 * (i // 2), 2 * (lane % 4) + i % 2] = words[:, lane, i]
    return d


def shifted(x, left):
    """x * 2^left, toward zero."""
    up = np.clip(left, 0, 39)
    down = np.clip(-left, 0, 62)
    return np.where(left >= 0, x << up, np.sign(x) * (np.abs(x) >> down))


def to_float32(total, exponent, nearest):
    """total * 2^exponent as the bits of a float32."""
    size, sign = np.abs(total), np.where(total < 0, 1 << 31, 0)
    length = np.frexp(size.astype(np.float64))[1].astype(np.int64)
    length -= (size < (1 << np.clip(length - 1, 0, 62))) & (length > 0)
    last = np.maximum(length + exponent - 24, -149)  # weight of the result's last bit
    drop = last - exponent
    kept = shifted(size, -drop)
    if nearest:
        rest = size - shifted(kept, drop)
        half = np.where(drop > 0, 1 << np.clip(drop - 1, 0, 62), 1 << 62)
        kept += (rest > half) | ((rest == half) & (kept & 1 == 1))
    grown = kept == 1 << 24
    kept, last = np.where(grown, kept >> 1, kept), last + grown
    biased = np.where(kept >= 1 << 23, last + 150, 0)
    bits = np.where(biased >= 255, 0x7F800000, np.maximum(biased, 0) << 23 | kept & 0x7FFFFF)
    return np.where(total == 0, 0, bits | sign)


def predict(terms, c, group, F, to_zero, nearest):
    significand, exponent, unit = terms
    for first in range(0, significand.shape[-1], group):
        cs, ce = split(c, 23, 127, 32)
        m = np.concatenate([significand[..., first : first + group], cs[..., None]], axis=-1)
        e = np.concatenate([exponent[..., first : first + group], ce[..., None]], axis=-1)
        last = np.concatenate(
            [exponent[..., first : first + group] - unit, ce[..., None] - 23], axis=-1
        )
        top = np.where(m != 0, e, FAR).max(axis=-1, keepdims=True)
        left = last - (top - F)
        aligned = shifted(m, left) if to_zero else np.where(
            left >= 0, m << np.clip(left, 0, 39), m >> np.clip(-left, 0, 62)
        )
        c = to_float32(aligned.sum(axis=-1), top[..., 0] - F, nearest)
    return c


def find(name, folder):
    width, mantissa, bias, K = CASES[name]
    a, b, c = matrices(np.fromfile(folder / f"{name}.in", "<u4"), width, K)
    d = outputs_of(np.fromfile(folder / f"{name}.raw", "<u4").astype(np.int64))
    width = 19 if width == 32 else width
    (ma, ea), (mb, eb) = split(a, mantissa, bias, width), split(b, mantissa, bias, width)
    terms = (
        ma[:, :, None, :] * mb[:, None, :, :],
        ea[:, :, None, :] + eb[:, None, :, :],
        2 * mantissa,
    )
    compared = (d & 0x7F800000) != 0x7F800000
    found = []
    groups = [g for g in (4, 8, 16, 32) if g <= K]
    for group, F, to_zero, nearest in itertools.product(groups, range(12, 31), (True, False), (False, True)):
        wrong = int(((predict(terms, c, group, F, to_zero, nearest) != d) & compared).sum())
        found.append((wrong, group, F, "toward zero" if to_zero else "down", "to nearest" if nearest else "toward zero"))
    print(f"{name}: {int(compared.sum())} outputs")
    for wrong, group, F, cut, rounded in sorted(found)[:5]:
        print(f"    {wrong} unexplained: groups of {group}, F = {F}, cut {cut}, rounded {rounded}")


def main():
    folder = Path(sys.argv[1])
    for name in sys.argv[2:] or CASES:
        find(name, folder)


if __name__ == "__main__":
    sys.exit(main())
