// How the steps of a kernel of several are laid out, as the host writes it into an instance: the
// constants of linear.cu and attention.cu with the same names, and those of lowrank_kv.cu.
#ifndef FAJIT_STEPS_CUH
#define FAJIT_STEPS_CUH

struct linear_step {
    int arithmetic, tile_m, tile_n, stages, warps_m, warps_n, warps_k, vector_width;
    int shared_bytes;
};

struct attention_step {
    int row_warps, row_tiles, key_warps, key_tile, stages, load_bytes, load_bytes_v, min_blocks;
    int shared_bytes;
};

// A block of few tokens: see lowrank_small.cuh.
struct lowrank_small {
    int rows;          // tokens: a multiple of 16
    int depth, stages; // of a warp's ring for the first product; whole steps
    int ahead;         // stages on their way at once, those of the second product counted
    int down_columns;  // of the latent that are summed at once: a multiple of 8
    int up_columns, up_depth, up_stages; // the same of the second product
    int shared_bytes;
};

struct lowrank_step {
    int step; // LOWRANK_...
    bool is_product;
    lowrank_small small;
    linear_step product;
};

#endif
