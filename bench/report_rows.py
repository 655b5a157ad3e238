"""What report.py shows: sections of rows, each with its peers and its target."""

from dataclasses import dataclass, field


@dataclass
class Row:
    title: str
    bench: str  # of fajit's value and of its floor
    target: str = ""  # as text
    limit: float = None  # largest value that meets the target
    share: float = None  # instead: smallest floor / value that meets it,
    rival: tuple = None  # or (bench, impl, metric) / value
    metric: str = "time"
    peers: list = field(default_factory=list)  # [(bench, metric)]
    floor: tuple = None  # (bench, impl, metric); None: (bench, "floor", the metric)
    less_driver: bool = False  # peers' values less the driver's own of the same bench


def rope_rows():
    rows = []
    for dtype in ("bf16", "f32"):
        for layout in ("bhnd", "bnhd"):
            for angles in ("computed", "tables"):
                for place in ("out", "in"):
                    where = "in" if place == "in" else "out of"
                    title = f"{dtype} {layout.upper()}, {angles}, {where} place"
                    peers = []
                    if place == "out":
                        peers = [(f"rope_large_{dtype}_{layout}_tables_out", "time")]
                    rows.append(
                        Row(
                            title,
                            f"rope_large_{dtype}_{layout}_{angles}_{place}",
                            ">= 92 % of copy rate",
                            share=0.92,
                            peers=peers,
                        )
                    )
    return rows


def canonical_rows():
    rows = []
    for kind, title, target, limit in (
        ("graph_hot", "in a graph, buffers in L2", "<= 2.5 us", 2.5),
        ("graph_cold", "in a graph, buffers from memory", "<= 2.5 us", 2.5),
        ("stream_cold", "plain launches", "", None),
    ):
        for angles in ("computed", "tables"):
            rows.append(
                Row(
                    f"{angles}, {title}",
                    f"rope_canonical_f32_{angles}_{kind}",
                    target,
                    limit,
                    peers=[(f"rope_canonical_f32_tables_{kind}", "time")],
                )
            )
    return rows


def kv_rows():
    rows = []
    for form, title, limit in (("stacked", "stacked output", 2.5), ("in", "in place", 2.0)):
        for kind, where in (("graph_hot", "buffers in L2"), ("graph_cold", "buffers from memory")):
            bench = f"kv_canonical_f32_{form}_{kind}"
            rows.append(
                Row(
                    f"float32 [2, 16, 128, 4, 32], {title}, in a graph, {where}",
                    bench,
                    f"<= {limit} us",
                    limit,
                    peers=[(bench, "time")],
                )
            )
    for name, title in (
        ("tables_in", "tables"),
        ("computed_in", "computed"),
        ("tables_in_unique", "tables, positions promised to differ"),
    ):
        rows.append(
            Row(
                f"float32 [8, 1024, 8192, 8, 128], in place, {title}",
                f"kv_large_f32_{name}",
                ">= 90 % of copy rate",
                share=0.9,
                peers=[("kv_large_f32_tables_in", "time")],
            )
        )
    for kind, where in (
        ("graph_hot", "in a graph, buffers in L2"),
        ("graph_cold", "in a graph, buffers from memory"),
        ("stream_cold", "plain launches"),
    ):
        for angles in ("computed", "tables"):
            rows.append(
                Row(
                    f"bfloat16 [64, 1, 4096, 8, 128], in place, {angles}, {where}",
                    f"kv_decode_bf16_{angles}_in_{kind}",
                    peers=[(f"kv_decode_bf16_tables_in_{kind}", "time")],
                )
            )
    return rows


LARGE_LINEAR = ((512, 4096), (2048, 512), (4096, 512), (2048, 2048))
SMALL_LINEAR = (((384, 48, 256), 2.5), ((384, 256, 48), 2.2), ((512, 256, 256), 3.5))


def linear_error_rows():
    rows = []
    for split in ("", "split_tf32_"):
        for n, k in LARGE_LINEAR:
            peer = f"linear_f32_M8192_N{n}_K{k}"
            how = " in tf32 parts" if split else ""
            rows.append(
                Row(
                    f"float32{how}, 8192 x {n} x {k}",
                    f"linear_f32_{split}M8192_N{n}_K{k}",
                    "<= cuBLAS",
                    share=1,
                    metric="error",
                    peers=[(peer, "error")],
                    rival=(peer, "cublas", "error"),
                )
            )
    return rows


def linear_rows():
    rows = []
    for dtype, title, share in (("f32", "float32", 2.0), ("bf16", "bfloat16", 1.0)):
        for n, k in LARGE_LINEAR:
            bench = f"linear_{dtype}_M8192_N{n}_K{k}"
            rows.append(
                Row(
                    f"{title}, 8192 x {n} x {k}",
                    bench,
                    f">= {share:g} x cuBLAS",
                    share=share,
                    peers=[(bench, "time")],
                    rival=(bench, "cublas", "time"),
                )
            )
    for split in ("split_tf32", "split_f16"):
        for n, k in LARGE_LINEAR:
            peer = f"linear_f32_M8192_N{n}_K{k}"
            aimed = split == "split_f16"  # what auto takes
            rows.append(
                Row(
                    f"float32, 8192 x {n} x {k}, {split}",
                    f"linear_f32_{split}_M8192_N{n}_K{k}",
                    ">= 2 x cuBLAS" if aimed else "",
                    share=2 if aimed else None,
                    peers=[(peer, "time")],
                    rival=(peer, "cublas", "time"),
                )
            )
    for size, limit in SMALL_LINEAR:
        for kind, where in (("graph_hot", "buffers in L2"), ("graph_cold", "buffers from memory")):
            bench = "linear_f32_M{}_N{}_K{}_".format(*size) + kind
            rows.append(
                Row(
                    "float32, {} x {} x {}".format(*size) + f", in a graph, {where}",
                    bench,
                    f"<= {limit} us",
                    limit,
                    peers=[(bench, "time")],
                )
            )
    for m in (1, 16):
        for kind, where in (("graph_hot", "the same W"), ("graph_cold", "W from memory")):
            bench = f"linear_bf16_M{m}_N4096_K4096_{kind}"
            rows.append(
                Row(
                    f"bfloat16, {m} x 4096 x 4096, in a graph, {where}",
                    bench,
                    peers=[(bench, "time")],
                )
            )
    for dtype, title in (("f32", "float32"), ("bf16", "bfloat16")):
        for n, k in LARGE_LINEAR:
            bench = f"linear_{dtype}_M8192_N{n}_K{k}_stream"
            rows.append(Row(f"{title}, 8192 x {n} x {k}, plain launches", bench))
    for size, _ in SMALL_LINEAR:
        bench = "linear_f32_M{}_N{}_K{}_stream_cold".format(*size)
        rows.append(Row("float32, {} x {} x {}, plain launches".format(*size), bench))
    for title, name in (
        ("float32, 8192 x 2048 x 2048", "f32_M8192_N2048_K2048"),
        ("float32, 8192 x 2048 x 2048, split_tf32", "f32_split_tf32_M8192_N2048_K2048"),
        ("bfloat16, 8192 x 2048 x 2048", "bf16_M8192_N2048_K2048"),
        ("float32, 384 x 48 x 256", "f32_M384_N48_K256"),
    ):
        rows.append(compile_row(title, f"linear_{name}"))
    return rows


def compile_row(title, bench, *target):
    return Row(f"cold compile: {title}", bench, *target, metric="compile")


def attention_rows():
    rows = []
    for kind, where in (("graph_hot", "buffers in L2"), ("graph_cold", "buffers from memory")):
        bench = f"attention_canonical_f32_{kind}"
        title = f"float32 [4, 64 by 128, 8, 32], in a graph, {where}"
        rows.append(Row(title, bench, peers=[(bench, "time")]))
    for shape, name in (
        ("bfloat16 [4, 4096, 32, 64], full", "bf16_d64_full"),
        ("bfloat16 [4, 4096, 32, 64], causal", "bf16_d64_causal"),
        ("bfloat16 [4, 4096, 16, 128], full", "bf16_d128_full"),
        ("bfloat16 [4, 4096, 16, 128], causal", "bf16_d128_causal"),
        ("bfloat16 [4, 4096, 8, 256], full", "bf16_d256_full"),
        ("bfloat16 [4, 4096, 25, 80], full", "bf16_d80_full"),
        ("float32 [4, 2048, 8, 64], full", "f32_d64_full"),
    ):
        bench = f"attention_{name}"
        rows.append(Row(shape, bench, peers=[(bench, "time")]))
    for title, name in (
        ("float32 [4, 64 by 128, 8, 32]", "canonical_f32"),
        ("bfloat16 [4, 4096, 16, 128], causal", "bf16_d128_causal"),
        ("bfloat16 [4, 4096, 8, 256], full", "bf16_d256_full"),
    ):
        rows.append(compile_row(title, f"attention_{name}", "<= 1000 ms", 1000))
    return rows


LARGE_LOWRANK = (
    ("m4096_r512_g8", "4096 to 512 to 8 heads"),
    ("m4096_r512_g16", "4096 to 512 to 16 heads"),
    ("m1024_r64_g8", "1024 to 64 to 8 heads"),
)


def crossover_rows():  # the same tokens as in bench_lowrank.c
    rows = []
    for weights, title, tokens_of in (
        (
            "f32_m256_r48",
            "float32, 256 to 48 to 4 heads of 32",
            (64, 256, 1024, 2048, 3072, 4096, 8192, 16384),
        ),
        (
            "bf16_m256_r48",
            "bfloat16, 256 to 48 to 4 heads of 32",
            (256, 1024, 2048, 4096, 8192),
        ),
        (
            "bf16_m384_r192",
            "bfloat16, 384 to 192 to 8 heads of 64",
            (64, 256, 1024, 4096, 16384),
        ),
    ):
        for tokens in tokens_of:
            for plan, how in (("one", "one launch"), ("two", "two launches"), ("auto", "auto")):
                bench = f"lowrank_crossover_{weights}_{tokens}_{plan}"
                rows.append(Row(f"{title}, {tokens} tokens, {how}", bench))
    return rows


def lowrank_rows():
    rows = []
    for kind, where in (("graph_hot", "buffers in L2"), ("graph_cold", "buffers from memory")):
        bench = f"lowrank_canonical_f32_{kind}"
        rows.append(
            Row(
                f"float32, 384 tokens, 256 to 48 to 4 heads of 32, {where}",
                bench,
                "<= 4.5 us",
                4.5,
                peers=[(bench, "time")],
            )
        )
    for (name, title), share in zip(LARGE_LOWRANK, (1.1, 1.1, 2.0)):
        bench = f"lowrank_bf16_{name}"
        rows.append(
            Row(
                f"bfloat16, 8192 tokens, {title} of 128",
                bench,
                f">= {share:g} x cuBLAS",
                share=share,
                peers=[(bench, "time")],
                rival=(bench, "torch_eager", "time"),
            )
        )
    bench = "lowrank_canonical_f32_stream_cold"
    rows.append(Row("float32, 384 tokens, plain launches", bench))
    for name, title in LARGE_LOWRANK:
        bench = f"lowrank_bf16_{name}_stream"
        rows.append(Row(f"bfloat16, 8192 tokens, {title} of 128, plain launches", bench))
    for title, name in (
        ("float32, 384 tokens", "canonical_f32"),
        ("bfloat16, 4096 to 512 to 16 heads", "bf16_m4096_r512_g16"),
    ):
        rows.append(compile_row(title, f"lowrank_{name}"))
    return rows


def cross_rows():
    rows = []
    for dtype, title, limit in (("f32", "float32", 15), ("bf16", "bfloat16", 8)):
        for kind, where in (
            ("graph_hot", "in a graph, buffers in L2"),
            ("graph_cold", "in a graph, buffers from memory"),
            ("stream_cold", "plain launches"),
        ):
            peer = (f"cross_canonical_{dtype}_{kind}", "time")
            for plan, how in (
                ("", "auto"),
                ("_one_launch", "one launch"),
                ("_few_launches", "three launches"),
            ):
                aimed = kind == "graph_hot" and not plan
                rows.append(
                    Row(
                        f"{title} [4, 64 by 128, 256, 8, 32], {where}, {how}",
                        f"cross_canonical_{dtype}{plan}_{kind}",
                        f"<= {limit} us" if aimed else "",
                        limit if aimed else None,
                        peers=[peer],
                    )
                )
    rows.append(
        Row(
            "bfloat16 [4, 2048 by 2048, 2048, 16, 128]",
            "cross_large_bf16",
            ">= 1.1 x torch.compile",
            share=1.1,
            peers=[("cross_large_bf16", "time")],
            rival=("cross_large_bf16", "torch_compile", "time"),
        )
    )
    rows.append(
        Row(
            "bfloat16 [16, 1 by 1500, 1024, 16, 64], keys kept",
            "cross_decode_bf16",
            peers=[("cross_decode_bf16", "time")],
        )
    )
    rows.append(
        Row("bfloat16 [4, 2048 by 2048, 2048, 16, 128], plain launches", "cross_large_bf16_stream")
    )
    for size, title in (
        ("16x16_c128", "[1, 16 by 16, 128, 4, 32]"),
        ("1x64_c256", "[1, 1 by 64, 256, 8, 32]"),
        ("64x128_c512", "[1, 64 by 128, 512, 8, 64]"),
    ):
        for dtype, kind in (("f32", "float32"), ("bf16", "bfloat16")):
            for plan, how in (("one", "one launch"), ("few", "three launches")):
                bench = f"cross_plans_{dtype}_{size}_{plan}"
                rows.append(Row(f"{kind} {title}, buffers in L2, {how}", bench))
    for name in ("canonical_f32", "canonical_bf16", "large_bf16", "decode_bf16"):
        title = name.replace("_", ", ").replace("f32", "float32").replace("bf16", "bfloat16")
        rows.append(compile_row(title, f"cross_{name}"))
    return rows


FIRST = [("first_template", "time"), ("first_rope", "time")]
COLD = [("cold_template", "time"), ("cold_rope", "time")]

SECTIONS = [
    (
        "Rope of q and k [4, 32, 4096, 128]",
        "Device time. The floor is the bytes moved at the copy rate "
        "of this run. Peers read tables and work out of place.",
        rope_rows(),
    ),
    (
        "Rope of q and k, float32 [4, 8, 256, 64]",
        "Device time of one launch among many. From memory: "
        "26 sets of buffers, 218 MB, taken in turn.",
        canonical_rows(),
    ),
    (
        "New keys and values into a cache [batch, tokens, cache_len, heads, head_dim]",
        "Device time of one update among many; the keys are rotated. The floor is the bytes of the "
        "new values, in and out, and those of a copied cache. Peers read tables.",
        kv_rows(),
    ),
    (
        "Linear, M x N x K",
        "Device time. cuBLAS is PyTorch's torch.mm, for float32 without TF32. The floor is the "
        "larger of the bytes at the copy rate and of the products at the data sheet's rate, three "
        "for one in float32.",
        linear_rows(),
    ),
    (
        "Linear, errors",
        "The largest of 4096 elements against float64, inputs in [-1, 1).",
        linear_error_rows(),
    ),
    (
        "Keys and values from compressed activations",
        "Device time of one launch among many, in a graph where nothing else is said. PyTorch "
        "calls cuBLAS.",
        lowrank_rows(),
    ),
    (
        "The same in one launch and in two",
        "Device time of one launch among many, in a graph; eight sets of buffers. What auto takes "
        "is chosen by a model of cost, before anything runs.",
        crossover_rows(),
    ),
    (
        "Attention [batch, queries, heads, head_dim]",
        "Device time of one launch among many. Peers are PyTorch's scaled_dot_product_attention: "
        "FlashAttention 2 and cuDNN in bfloat16, the memory-efficient kernel in float32.",
        attention_rows(),
    ),
    (
        "Attention with its projections [batch, queries by keys, model_dim, heads, head_dim]",
        "Device time of one launch among many; q and k are rotated. The floor is the larger of the "
        "bytes of inputs, weights and output and of the products at the data sheet's rate. Peers "
        "read tables.",
        cross_rows(),
    ),
    (
        "Launch",
        "Host time of a launch above the driver's own cuLaunchKernel with the same function "
        "and parameters, back to back; of cross_attention above three of them.",
        [
            Row(
                "template, 4 parameters",
                "launch_template",
                "<= 150 ns",
                150,
                metric="over_driver",
                peers=[("launch_template", "launch")],
                less_driver=True,
            ),
            *(
                Row(
                    f"{operation}, all sizes dynamic",
                    f"launch_{operation}",
                    "<= 150 ns",
                    150,
                    metric="over_driver",
                )
                for operation in (
                    "rope",
                    "linear",
                    "attention",
                    "lowrank_kv",
                    "cross_attention",
                )
            ),
        ],
    ),
    (
        "Compile answered from memory",
        "Host time of fa_compile among so many kernels. The kernels come "
        "from a stand-in for NVRTC, so that 10,000 of them take seconds.",
        [
            Row("among 1", "hit_1", "<= 200 ns", 200, metric="hit"),
            Row("among 100", "hit_100", "<= 200 ns", 200, metric="hit"),
            Row("among 10,000", "hit_10000", "<= 200 ns", 200, metric="hit"),
            Row("among 10,000, a random one each time", "hit_10000", metric="hit_any"),
            Row("template", "hit_template", metric="hit"),
        ],
    ),
    (
        "Start of a process",
        "From when the CUDA context and the inputs exist until a result is on the "
        "host, in a fresh process. The floor is the driver alone with the cubin in memory. Peers "
        "run the template, Triton and torch.compile also rope.",
        [
            Row(
                "first result, cache warm: template",
                "first_template",
                "<= 1 ms",
                1,
                peers=[("first_template", "time")],
                floor=("first_template", "driver", "time"),
            ),
            Row(
                "first result, cache warm: rope",
                "first_rope",
                "<= 1 ms",
                1,
                peers=FIRST,
                floor=("first_template", "driver", "time"),
            ),
            Row(
                "first result, no cache: template",
                "cold_template",
                peers=[("cold_template", "time")],
            ),
            Row("first result, no cache: rope", "cold_rope", "<= 1000 ms", 1000, peers=COLD),
            Row("first trivial compile", "nvrtc_start", peers=[("nvrtc_start", "time")]),
            Row(
                "cold compile, slowest rope instance",
                "compile_largest",
                "<= 1000 ms",
                1000,
                floor=("nvrtc_trivial", "nvrtc", "time"),
            ),
            Row(
                "256 kernels from a warm disk cache, above the driver",
                "load_256",
                "<= 15 ms",
                15,
                metric="over_driver",
            ),
            Row("library size", "library_size", "< 1 MB", 1, metric="size"),
        ],
    ),
]
