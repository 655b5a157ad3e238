// An attention block with its projections, in one launch or a launch for each step.
//
//     q = rotate(x_query w_q^T + b_q)    k = rotate(x_kv w_k^T + b_k)    v = x_kv w_v^T + b_v
//     heads = softmax(scale q k^T, masked) v
//     out = heads w_out^T + b_out
//
// Parameters of an instance (constants in front of this text; the defaults below compile alone)
//
//     name               type            legal values
//     Element            storage type    float, fajit::f16, fajit::bf16
//     FORM               int             0 all of it; 1 from k and v as they are; 2 k and v alone
//     ONE_LAUNCH         bool            all steps in one cooperative launch
//     MASK               int             as in attention.cu
//     MODEL_DIM          int             1 and up; 0: given at launch
//     HEADS_Q, HEADS_K   int             1 and up; HEADS_K divides HEADS_Q
//     HEAD_DIM           int             1 to 256; even with ROTATION
//     BATCH, SEQLEN_Q, SEQLEN_K
//                        int             1 and up; 0: given at launch
//     BIAS, BIAS_OUT     bool
//     SCALE              double          positive
//     ROTATION, ROTARY_DIM
//                        int             as in linear.cu
//     PROJECT, OUTPUT    linear_step     as the parameters of linear.cu with these names
//     ATTEND             attention_step  as those of attention.cu
//                                        with ONE_LAUNCH, all steps have blocks of the same size
//     MIN_BLOCKS         int             ONE_LAUNCH: blocks that a multiprocessor holds; else 0
//     PARAM_BYTES        int             of the launch parameters, as the host sees them
//   angles (angles.cuh)                  as in linear.cu
//
// Others are untested.
//
// The three steps are those of linear.cu, attention.cu and linear.cu again. The projections are one
// step: their tiles are counted through the groups q, k and v, which differ in what they multiply.
// Nothing is computed twice: what a step leaves lies in the workspace.
#include "fajit/attention.cuh"
#include "fajit/grid.cuh"
#include "fajit/linear.cuh"
#include "fajit/order.cuh"
#include "fajit/steps.cuh"

#ifndef FAJIT_INSTANCE
using Element = float;
inline constexpr int FORM = 0, MASK = 0, MODEL_DIM = 0, HEADS_Q = 8, HEADS_K = 8, HEAD_DIM = 32;
inline constexpr int BATCH = 0, SEQLEN_Q = 0, SEQLEN_K = 0, ROTATION = 2, ROTARY_DIM = 32;
inline constexpr int MIN_BLOCKS = 0, PARAM_BYTES = 1576;
inline constexpr bool BIAS = false, BIAS_OUT = false, ONE_LAUNCH = false;
inline constexpr double SCALE = 0.1767766952966369;
inline constexpr linear_step PROJECT = {0, 64, 64, 2, 2, 2, 1, 4, 40960},
                             OUTPUT = {0, 64, 64, 2, 2, 2, 1, 4, 32768};
inline constexpr attention_step ATTEND = {4, 1, 1, 32, 1, 16, 16, 1, 16384};
inline constexpr int ANGLES = fajit::ANGLES_COMPUTED, SCALING = 0;
inline constexpr double ATTENTION_FACTOR = 1;
inline constexpr bool RULE_BAKED = true;
inline constexpr long long LOG2_BASE_Q54 = 239370146084580908LL; // base 10000
inline constexpr long long INVERSE_FACTOR_Q64 = 0, RAMP_LOW = 0, RAMP_HIGH = 0, RAMP_STEP = 0,
                           RAMP_SHIFT = 0;
#endif

inline constexpr int KEYS_ALONE = 2; // FORM

// --- the steps -----------------------------------------------------------------------------------

// What both products have in common.
template <const linear_step &STEP> struct product_constants {
    using Element = ::Element;
    using Addend = ::Element;
    using Output = ::Element;
    using Jumps = fajit::linear_batch_jumps;
    static constexpr int ARITHMETIC = STEP.arithmetic, M = 0, TILE_M = STEP.tile_m,
                         TILE_N = STEP.tile_n, STAGES = STEP.stages, WARPS_M = STEP.warps_m,
                         WARPS_N = STEP.warps_n, WARPS_K = STEP.warps_k,
                         VECTOR_WIDTH = STEP.vector_width;
    static constexpr bool MAY_SPLIT = false, RESIDUAL = false, MAPPED_ROWS = false,
                          ROWS_WIDE = false, POSITIONS_WIDE = false, WEIGHTS_BY_K = false;
    static constexpr int SCALES = 0, ACTIVATION = 0, SPLIT_1 = 0, SPLIT_2 = 0;
    static constexpr int ANGLES = ::ANGLES, SCALING = ::SCALING;
    static constexpr double ATTENTION_FACTOR = ::ATTENTION_FACTOR;
    static constexpr bool RULE_BAKED = ::RULE_BAKED;
    static constexpr long long LOG2_BASE_Q54 = ::LOG2_BASE_Q54,
                               INVERSE_FACTOR_Q64 = ::INVERSE_FACTOR_Q64, RAMP_LOW = ::RAMP_LOW,
                               RAMP_HIGH = ::RAMP_HIGH, RAMP_STEP = ::RAMP_STEP,
                               RAMP_SHIFT = ::RAMP_SHIFT;
};

struct project_constants : product_constants<PROJECT> {
    static constexpr int N = HEADS_Q == HEADS_K ? HEADS_K * ::HEAD_DIM : 0, K = MODEL_DIM;
    static constexpr int ROTATION = ::ROTATION, HEAD_DIM = ::ROTATION ? ::HEAD_DIM : 0,
                         ROTARY_DIM = ::ROTATION ? ::ROTARY_DIM : 0,
                         ROTATED = fajit::LINEAR_ROTATED_GIVEN;
    static constexpr bool BIAS = ::BIAS, FRESH = false;
    static constexpr bool X_JUMPS = true, Y_JUMPS = FORM == KEYS_ALONE; // else to the workspace
    static constexpr int WAIT = ONE_LAUNCH ? fajit::LINEAR_WAITS_NOT : fajit::LINEAR_WAITS;
};

struct output_constants : product_constants<OUTPUT> {
    static constexpr int N = MODEL_DIM, K = HEADS_Q * ::HEAD_DIM;
    static constexpr int ROTATION = 0, HEAD_DIM = 0, ROTARY_DIM = 0, ROTATED = 0;
    static constexpr bool BIAS = BIAS_OUT, FRESH = ONE_LAUNCH;
    static constexpr bool X_JUMPS = false, Y_JUMPS = true;
    static constexpr int WAIT = ONE_LAUNCH ? fajit::LINEAR_WAITS_NOT : fajit::LINEAR_WAITS_FOR_X;
};

struct attend_constants {
    using Element = ::Element;
    static constexpr int MASK = ::MASK, HEAD_DIM = ::HEAD_DIM, HEAD_DIM_V = ::HEAD_DIM;
    static constexpr bool LSE = false, FRESH = ONE_LAUNCH, WAITS = !ONE_LAUNCH;
    static constexpr double SCALE = ::SCALE;
    static constexpr int BATCH = ::BATCH, HEADS_Q = ::HEADS_Q, HEADS_K = ::HEADS_K,
                         SEQLEN_Q = ::SEQLEN_Q, SEQLEN_K = ::SEQLEN_K;
    static constexpr int ROW_WARPS = ATTEND.row_warps, ROW_TILES = ATTEND.row_tiles,
                         KEY_WARPS = ATTEND.key_warps, KEY_TILE = ATTEND.key_tile,
                         STAGES = ATTEND.stages, LOAD_BYTES = ATTEND.load_bytes,
                         LOAD_BYTES_V = ATTEND.load_bytes_v, SMEM_BYTES = ATTEND.shared_bytes;
};

using projection = fajit::linear_block<project_constants>;
using attention = fajit::attention_block<attend_constants>;
using output = fajit::linear_block<output_constants>;
static_assert(PROJECT.shared_bytes == projection::SHARED_BYTES &&
                  OUTPUT.shared_bytes == output::SHARED_BYTES,
              "host and kernel disagree about shared memory");

inline constexpr int GROUPS = 3; // q, k, v

// Mirrored by cross_kernel_params in src/ops/cross_attention.h.
struct params {
    projection::params project[GROUPS];
    output::params out;
    attention::params attend;
    unsigned *barrier;        // of the grid: zero before the first launch
    int tiles_before[GROUPS]; // of the projections, before each group
    int project_tiles, attend_blocks, output_tiles;
};
static_assert(sizeof(params) == PARAM_BYTES, "host and kernel disagree about the parameters");

inline constexpr int PROJECT_STEP = 0, ATTEND_STEP = 1, OUTPUT_STEP = 2;

// Number `at` of a step's blocks.
template <int STEP>
__device__ __forceinline__ void run_block(const params &p, int at, unsigned char *shared)
{
    if constexpr (STEP == PROJECT_STEP) {
        const int group = at >= p.tiles_before[2] ? 2 : at >= p.tiles_before[1] ? 1 : 0;
        const int tile = at - p.tiles_before[group];
        if constexpr (projection::shape::IS_SMALL) {
            const projection::params mine = p.project[group]; // all fields are loaded at once
            projection::run(mine, tile, 0, shared);
        } else { // no registers for them
            projection::run(p.project[group], tile, 0, shared);
        }
    } else if constexpr (STEP == ATTEND_STEP) {
        attention::run(p.attend, at, shared);
    } else {
        output::run(p.out, at, 0, shared);
    }
}

template <int STEP> __host__ __device__ constexpr int threads_of()
{
    return STEP == PROJECT_STEP  ? projection::THREADS
           : STEP == ATTEND_STEP ? attention::THREADS
                                 : output::THREADS;
}

// --- one launch ----------------------------------------------------------------------------------

template <int STEP>
__device__ __forceinline__ void run_step(const params &p, int blocks, unsigned char *shared)
{
    static_assert(threads_of<STEP>() == threads_of<PROJECT_STEP>(), "blocks of the same size");
#pragma unroll 1
    for (int at = static_cast<int>(blockIdx.x); at < blocks; at += static_cast<int>(gridDim.x)) {
        run_block<STEP>(p, at, shared);
        __syncthreads(); // nobody reads shared memory any more
    }
}

// A template, so that an instance of several launches is not made of it.
template <int FIRST>
__device__ __forceinline__ void run_steps(const params &p, unsigned char *shared)
{
    static_assert(FIRST == PROJECT_STEP, "all of them");
    run_step<FIRST>(p, p.project_tiles, shared);
    fajit::grid_sync(p.barrier); // q, k and v are there
    run_step<FIRST + 1>(p, p.attend_blocks, shared);
    fajit::grid_sync(p.barrier); // the heads' outputs are there
    run_step<FIRST + 2>(p, p.output_tiles, shared);
}

// --- the kernels ---------------------------------------------------------------------------------

template <int STEP> __host__ __device__ constexpr int least_blocks()
{
    if (ONE_LAUNCH)
        return MIN_BLOCKS;
    if (STEP == ATTEND_STEP)
        return ATTEND.min_blocks;
    const linear_step &step = STEP == PROJECT_STEP ? PROJECT : OUTPUT;
    return fajit::linear_least_blocks_of_step(step.tile_m * step.tile_n, threads_of<STEP>());
}

template <int STEP>
__global__ void __launch_bounds__(threads_of<STEP>(), least_blocks<STEP>())
    fajit_cross_attention(const __grid_constant__ params p)
{
    extern __shared__ uint4 shared_words[];
    unsigned char *shared = reinterpret_cast<unsigned char *>(shared_words);
    if constexpr (ONE_LAUNCH) {
        // It may have written what is read here, or read what is written.
        fajit::wait_for_predecessor();
        fajit::let_successor_start();
        run_steps<STEP>(p, shared);
    } else {
        run_block<STEP>(p, static_cast<int>(blockIdx.x), shared); // waits by itself
    }
}

#ifndef FAJIT_INSTANCE
template __global__ void fajit_cross_attention<0>(const __grid_constant__ params p);
#endif
