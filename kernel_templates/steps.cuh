// How the steps of a kernel of several are laid out, as the host writes it into an instance: the
// constants of linear.cu and attention.cu with the same names.
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

#endif
