#!/usr/bin/env python3
"""Rope as PyTorch runs it operation by operation."""

from torch_rope import for_each_case, measure, rotate_half_form


def run(case):
    cos, sin = case.tables(case.dtype, 2)
    measure(
        case,
        "torch_eager",
        lambda i: (rotate_half_form(case.q[i], cos, sin), rotate_half_form(case.k[i], cos, sin)),
        "rotate_half form, tables in the data's type, in a graph",
    )


if __name__ == "__main__":
    for_each_case("torch_eager", run)
