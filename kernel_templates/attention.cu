// Attention over dense keys and values: out = softmax(scale q k^T, masked) v, in one launch.
//
// Parameters of an instance (constants in front of this text; the defaults below compile alone)
//
//     name               type          legal values
//     Element            storage type  of q, k, v and out: float, fajit::f16, fajit::bf16
//     MASK               int           0 none, 1 causal, the last query sees the last key, 2
//                                      causal, the first query sees the first key alone
//     LSE                bool          the logarithm of the sum of exponentials is written too
//     HEAD_DIM, HEAD_DIM_V
//                        int           1 to 256; of q and k, and of v and out
//     SCALE              double        positive; of the scores
//     BATCH, HEADS_Q, HEADS_K, SEQLEN_Q, SEQLEN_K
//                        int           1 and up; 0: given at launch. HEADS_K divides HEADS_Q
//     ROW_WARPS, ROW_TILES
//                        int           a block takes ROW_WARPS * ROW_TILES * 16 queries, each warp
//                                      ROW_TILES (1 or 2; 1 with float) times 16 of them
//     KEY_WARPS          int           1 or more: warps that share 16 queries, each with a part of
//                                      every key tile. ROW_TILES is 1 unless this is
//     KEY_TILE           int           keys of a tile: a multiple of 16 * KEY_WARPS
//     STAGES             int           1 or more tiles of keys, and of values, that are loaded
//                                      or in use
//     LOAD_BYTES, LOAD_BYTES_V
//                        int           widest access to rows of q and k, and of v and out: power of
//                                      two, at most 16, that divides a row
//     MIN_BLOCKS         int           blocks that a multiprocessor is to hold at least
//     SMEM_BYTES, PARAM_BYTES
//                        int           shared memory and launch parameters as the host sees them
//
// Others are untested.
//
// Grid: x runs over the tiles of queries of all heads. What a block does is in attention.cuh.
#include "fajit/attention.cuh"
#include "fajit/dtype.cuh"

#ifndef FAJIT_INSTANCE
using Element = fajit::f16;
inline constexpr int MASK = 0, HEAD_DIM = 64, HEAD_DIM_V = 64;
inline constexpr bool LSE = true;
inline constexpr double SCALE = 0.125;
inline constexpr int BATCH = 0, HEADS_Q = 0, HEADS_K = 0, SEQLEN_Q = 0, SEQLEN_K = 0;
inline constexpr int ROW_WARPS = 4, ROW_TILES = 1, KEY_WARPS = 1, KEY_TILE = 64, STAGES = 1;
inline constexpr int LOAD_BYTES = 16, LOAD_BYTES_V = 16, MIN_BLOCKS = 1;
inline constexpr int SMEM_BYTES = 24576, PARAM_BYTES = 200;
#endif

// What attention.cuh is told.
struct constants {
    using Element = ::Element;
    static constexpr int MASK = ::MASK, HEAD_DIM = ::HEAD_DIM, HEAD_DIM_V = ::HEAD_DIM_V;
    static constexpr bool LSE = ::LSE, FRESH = false, WAITS = true;
    static constexpr double SCALE = ::SCALE;
    static constexpr int BATCH = ::BATCH, HEADS_Q = ::HEADS_Q, HEADS_K = ::HEADS_K,
                         SEQLEN_Q = ::SEQLEN_Q, SEQLEN_K = ::SEQLEN_K;
    static constexpr int ROW_WARPS = ::ROW_WARPS, ROW_TILES = ::ROW_TILES, KEY_WARPS = ::KEY_WARPS,
                         KEY_TILE = ::KEY_TILE, STAGES = ::STAGES;
    static constexpr int LOAD_BYTES = ::LOAD_BYTES, LOAD_BYTES_V = ::LOAD_BYTES_V;
};

using attention = fajit::attention_block<constants>;
static_assert(sizeof(attention::params) == PARAM_BYTES,
              "host and kernel disagree about the parameters");
static_assert(attention::SHARED_BYTES == SMEM_BYTES,
              "host and kernel disagree about shared memory");

extern "C" __global__ void __launch_bounds__(attention::THREADS, MIN_BLOCKS)
    fajit_attention(const __grid_constant__ attention::params p)
{
    extern __shared__ uint4 shared[];
    attention::run(p, static_cast<int>(blockIdx.x), reinterpret_cast<unsigned char *>(shared));
}
