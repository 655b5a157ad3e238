// y = x w^T, with all that is done to a result before it is stored, in one launch.
//
//     t[m, n] = scale(m, n) sum over k of x[m, k] w[n, k] + bias[n]
//     y[m, n] = round(rotate(activation(t))[m, n] + residual[m, n])
//
// Parameters of an instance (constants in front of this text; the defaults below compile alone)
//
//     name               type          legal values
//     Element            storage type  of x and w: float, fajit::f16, fajit::bf16, fajit::fp8_e4m3
//     Addend             storage type  of bias: float, fajit::f16, fajit::bf16
//     Output             storage type  of y and residual: the same
//     ARITHMETIC         int           0 FMA, float32 on ordinary units; 1 WHOLE, one tensor-core
//                                      product an element (not float); 2 SPLIT_TF32, 3 SPLIT_BF16,
//                                      4 SPLIT_F16 (float). 1 to 4 need sm_80, 1 with f16 sm_75,
//                                      fp8 sm_89. 4: without MAY_SPLIT and WARPS_K, and launched
//                                      behind fajit_linear_parts<0>
//     PARTS_THREADS, PARTS_ROWS
//                        int           of a block of fajit_linear_parts: a multiple of 32 threads
//                                      for each row
//     M, N, K            int           1 and up; 0: given at launch
//     TILE_M, TILE_N     int           of a block; powers of two, and multiples of 16 WARPS_M and
//                                      16 WARPS_N. FMA: multiples of the 2^i threads they are
//                                      spread over. TILE_N: at most as many as threads
//     STAGES             int           tiles of 128 bytes of k in shared memory at most, 2 and up
//     WARPS_M, WARPS_N   int           that share a tile
//     WARPS_K            int           1, 2 or 4 groups of these that share its k (not FMA)
//     VECTOR_WIDTH       int           power of two, at most 16 bytes of Output; elements of a
//                                      store. Divides N, SPLIT_1, SPLIT_2, and what is rotated and
//                                      copied of a head, as far as these are baked
//     MAY_SPLIT          bool          k may be shared by several blocks, through a workspace
//     SCALES             int           0 none, 1 x_scale[0] w_scale[0], 2 x_scale[m] w_scale[n]
//     BIAS, RESIDUAL     bool
//     ACTIVATION         int           0 none, 1 silu, 2 gelu, 3 gelu by tanh
//     SPLIT_1, SPLIT_2   int           columns at which the second and third output begin; 0: none
//     MAPPED_ROWS        bool          row m goes to row rows[m] of the outputs
//     ROWS_WIDE, POSITIONS_WIDE
//                        bool          int64, not int32
//     ROTATION           int           0 none, 1 HALF, 2 INTERLEAVED; pairs as in rotary.cuh
//     HEAD_DIM           int           even, with ROTATION
//     ROTARY_DIM         int           even, at most HEAD_DIM
//     ROTATED            int           columns that are heads to rotate, the first ones; 0: all
//     SHARED_BYTES, PARAM_BYTES
//                        int           of dynamic shared memory and of the launch parameters, as
//                                      the host sees them
//   angles (angles.cuh)
//     ANGLES, ATTENTION_FACTOR, SCALING, RULE_BAKED, LOG2_BASE_Q54, INVERSE_FACTOR_Q64, RAMP_LOW,
//     RAMP_HIGH, RAMP_STEP, RAMP_SHIFT
//                                      as in rope.cu
//
// Grid: x runs over tiles of y, y over the parts of k. What a block does is in linear.cuh.
// fajit_linear_parts: x runs over rows of x and w, PARTS_ROWS a block.
#include "fajit/angles.cuh"
#include "fajit/dtype.cuh"
#include "fajit/linear.cuh"
#include "fajit/linear_parts.cuh"
#include "fajit/order.cuh"

#ifndef FAJIT_INSTANCE
using Element = float;
using Addend = float;
using Output = float;
inline constexpr int ARITHMETIC = 0, PARTS_THREADS = 256, PARTS_ROWS = 1;
inline constexpr int M = 0, N = 0, K = 0, TILE_M = 64, TILE_N = 64, STAGES = 2;
inline constexpr int WARPS_M = 2, WARPS_N = 2, WARPS_K = 1, VECTOR_WIDTH = 4;
inline constexpr bool MAY_SPLIT = false, BIAS = false, RESIDUAL = false, MAPPED_ROWS = false;
inline constexpr bool ROWS_WIDE = false, POSITIONS_WIDE = false;
inline constexpr int SCALES = 0, ACTIVATION = 0, SPLIT_1 = 0, SPLIT_2 = 0;
inline constexpr int ROTATION = 0, HEAD_DIM = 0, ROTARY_DIM = 0, ROTATED = 0;
inline constexpr int SHARED_BYTES = 32768, PARAM_BYTES = 288;
inline constexpr int ANGLES = fajit::ANGLES_COMPUTED, SCALING = 0;
inline constexpr double ATTENTION_FACTOR = 1;
inline constexpr bool RULE_BAKED = true;
inline constexpr long long LOG2_BASE_Q54 = 239370146084580908LL; // base 10000
inline constexpr long long INVERSE_FACTOR_Q64 = 0, RAMP_LOW = 0, RAMP_HIGH = 0, RAMP_STEP = 0,
                           RAMP_SHIFT = 0;
#endif

// What linear.cuh is told.
struct constants {
    using Element = ::Element;
    using Addend = ::Addend;
    using Output = ::Output;
    using Jumps = fajit::linear_no_jumps;
    static constexpr int ARITHMETIC = ::ARITHMETIC, M = ::M, N = ::N, K = ::K, TILE_M = ::TILE_M,
                         TILE_N = ::TILE_N, STAGES = ::STAGES, WARPS_M = ::WARPS_M,
                         WARPS_N = ::WARPS_N, WARPS_K = ::WARPS_K, VECTOR_WIDTH = ::VECTOR_WIDTH;
    static constexpr bool MAY_SPLIT = ::MAY_SPLIT, BIAS = ::BIAS, RESIDUAL = ::RESIDUAL,
                          MAPPED_ROWS = ::MAPPED_ROWS, ROWS_WIDE = ::ROWS_WIDE,
                          POSITIONS_WIDE = ::POSITIONS_WIDE, FRESH = false, WEIGHTS_BY_K = false,
                          X_JUMPS = false, Y_JUMPS = false;
    static constexpr int WAIT = fajit::LINEAR_PREFETCHES;
    static constexpr int SCALES = ::SCALES, ACTIVATION = ::ACTIVATION, SPLIT_1 = ::SPLIT_1,
                         SPLIT_2 = ::SPLIT_2, ROTATION = ::ROTATION, HEAD_DIM = ::HEAD_DIM,
                         ROTARY_DIM = ::ROTARY_DIM, ROTATED = ::ROTATED;
    static constexpr int ANGLES = ::ANGLES, SCALING = ::SCALING;
    static constexpr double ATTENTION_FACTOR = ::ATTENTION_FACTOR;
    static constexpr bool RULE_BAKED = ::RULE_BAKED;
    static constexpr long long LOG2_BASE_Q54 = ::LOG2_BASE_Q54,
                               INVERSE_FACTOR_Q64 = ::INVERSE_FACTOR_Q64, RAMP_LOW = ::RAMP_LOW,
                               RAMP_HIGH = ::RAMP_HIGH, RAMP_STEP = ::RAMP_STEP,
                               RAMP_SHIFT = ::RAMP_SHIFT;
};

using linear = fajit::linear_block<constants>;
static_assert(sizeof(linear::params) == PARAM_BYTES,
              "host and kernel disagree about the parameters");
static_assert(SHARED_BYTES == linear::SHARED_BYTES, "host and kernel disagree about shared memory");

inline constexpr int LEAST_BLOCKS = fajit::linear_least_blocks(TILE_M * TILE_N, linear::THREADS);

extern "C" __global__ void __launch_bounds__(linear::THREADS, LEAST_BLOCKS)
    fajit_linear(const __grid_constant__ linear::params p)
{
    extern __shared__ uint4 shared[];
    linear::run(p, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y),
                reinterpret_cast<unsigned char *>(shared));
}

using parts = fajit::linear_split_rows<linear::shape, PARTS_THREADS, PARTS_ROWS>;

// A template, so that only an instance that is made of it has it.
template <int PLACE>
__global__ void __launch_bounds__(PARTS_THREADS)
    fajit_linear_parts(const __grid_constant__ linear::params p)
{
    static_assert(PLACE == 0, "there is one");
    fajit::wait_for_predecessor(); // it may read the workspace, or write x and w
    fajit::let_successor_start();
    parts::run(p, static_cast<int>(blockIdx.x));
}
