"""The plot of report.py: horizontal bars, written as SVG by hand."""

import os

PEERS = {
    "torch_eager": "PyTorch eager",
    "torch_compile": "torch.compile",
    "triton": "Triton",
    "cupy": "CuPy",
    "cuda_core": "cuda.core",
    "nvrtc": "NVRTC alone",
    "cublas": "cuBLAS",
    "torch_flash": "FlashAttention 2",
    "torch_cudnn": "cuDNN",
    "torch_efficient": "memory-efficient",
}

COLORS = {
    "fajit": "#1b6ca8",
    "triton": "#8aa0ad",
    "torch_compile": "#aebdc6",
    "torch_eager": "#d2dbe0",
}
BAR, GAP, LEFT, WIDTH, RIGHT = 15, 16, 140, 600, 90
LABEL = 22  # height of a group's heading

PLOT = [
    ("bfloat16 [4, 32, 4096, 128], layout [B, H, N, D]", "rope_large_bf16_bhnd_{}_out"),
    ("bfloat16, layout [B, N, H, D]", "rope_large_bf16_bnhd_{}_out"),
    ("float32, layout [B, H, N, D]", "rope_large_f32_bhnd_{}_out"),
    ("float32, layout [B, N, H, D]", "rope_large_f32_bnhd_{}_out"),
    ("float32 [4, 8, 256, 64], in a graph, from memory", "rope_canonical_f32_{}_graph_cold"),
]


def plot_groups(results):
    """[(label, [(impl, text, share of the floor)], whether the 92 % target applies)]"""
    groups = []
    for label, pattern in PLOT:
        tables = pattern.format("tables")
        floor = results.value(tables, "floor", "time")
        bars = []
        for angles in ("computed", "tables"):
            bench = pattern.format(angles)
            value, own = results.value(bench, "fajit", "time"), results.value(
                bench, "floor", "time"
            )
            if value and own:
                bars.append(("fajit", f"fajit, {angles}", own / value))
        for impl in ("triton", "torch_compile", "torch_eager"):
            value = results.value(tables, impl, "time")
            if value and floor:
                bars.append((impl, PEERS[impl], floor / value))
        if bars:
            groups.append((label, bars, "large" in pattern))
    return groups


def svg_text(x, y, text, anchor="start", size=12, weight="normal", color="#222"):
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'font-weight="{weight}" fill="{color}">{text}</text>'
    )


def write_svg(results, versions, out):
    groups = plot_groups(results)
    bars = sum(len(group[1]) for group in groups)
    top, height = 90, 90 + bars * (BAR + 3) + len(groups) * (GAP + LABEL) + 34
    total = LEFT + WIDTH + RIGHT
    gpu = next((v.split(": ", 1)[1] for v in versions if v.startswith("GPU: ")), "no GPU")
    shapes = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{height}" '
        f'viewBox="0 0 {total} {height}" font-family="sans-serif" role="img">',
        "<title>Rotary embedding: share of the device's copy rate</title>",
        f'<rect width="{total}" height="{height}" fill="#ffffff"/>',
        svg_text(
            20,
            28,
            "Rotary embedding of q and k: share of the device's copy rate",
            size=16,
            weight="bold",
        ),
        svg_text(
            20,
            48,
            f"{gpu}; longer is better; 100 %: each byte moved once at the copy rate",
            color="#555",
        ),
    ]
    bottom = height - 34
    for percent in (0, 25, 50, 75, 100):
        x = LEFT + WIDTH * percent / 100
        shapes.append(
            f'<line x1="{x:.1f}" y1="{top - 8}" x2="{x:.1f}" y2="{bottom}" stroke="#e3e7ea"/>'
        )
        shapes.append(svg_text(x, bottom + 18, f"{percent} %", "middle", color="#555"))
    y, target_end = top, top
    for label, group, has_target in groups:
        shapes.append(svg_text(20, y + BAR - 3, label, weight="bold"))
        y += LABEL
        for impl, name, share in group:
            width = WIDTH * min(share, 1.04)
            strong = impl == "fajit"
            shapes.append(
                svg_text(LEFT - 8, y + BAR - 3, name, "end", color="#333" if strong else "#666")
            )
            shapes.append(
                f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2" '
                f'fill="{COLORS[impl]}"/>'
            )
            shapes.append(
                svg_text(
                    total - 20,
                    y + BAR - 3,
                    f"{share * 100:.0f} %",
                    "end",
                    weight="bold" if strong else "normal",
                )
            )
            y += BAR + 3
        if has_target:
            target_end = y
        y += GAP
    if target_end > top:
        x = LEFT + WIDTH * 0.92
        shapes.append(
            f'<line x1="{x:.1f}" y1="{top - 8}" x2="{x:.1f}" y2="{target_end}" '
            'stroke="#c2402b" stroke-dasharray="4 3"/>'
        )
        shapes.append(svg_text(x, top - 12, "target 92 %", "middle", size=11, color="#c2402b"))
    if not groups:
        shapes.append(svg_text(LEFT, top + 20, "nothing was measured", color="#c2402b"))
    shapes.append("</svg>")
    with open(os.path.join(out, "results.svg"), "w", encoding="utf-8") as file:
        file.write("\n".join(shapes) + "\n")
