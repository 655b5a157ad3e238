// Keys and values from compressed activations, through a latent of a few numbers a token:
//
//     latent = norm(hidden w_down)          K = latent w_up_k          V = latent w_up_v
//
// Parameters of an instance (constants in front of this text; the defaults below compile alone)
//
//     name               type          legal values
//     Element            storage type  float, fajit::f16, fajit::bf16
//     NormWeight         storage type  float or Element
//     FORM               int           0 WHOLE, 1 DOWN (hidden to latent), 2 UP (latent to K and V)
//     SUMS               int           SUMS_... of products.cuh; float32 takes all but SUMS_TENSOR,
//                                      the others all but SUMS_SPLIT_TF32 and SUMS_TF32
//     NORM               bool          root mean square norm of the latent, with weights
//     NORM_EPS           double        y = x / sqrt(mean(x^2) + NORM_EPS) * weight
//     RANK               int           1 and up
//     MODEL_DIM, HEADS, HEAD_DIM, HEAD_DIM_V, BATCH, SEQLEN
//                        int           1 and up; 0: given at launch; HEAD_DIM_V with HEAD_DIM
//     TO_CACHE           bool          the output is a cache, and positions or slots say where
//     CACHE              int           CACHE_... of cache_place.cuh
//     UNIQUE             bool          no two tokens of a batch go to one entry
//     POSITIONS_WIDE, SLOTS_WIDE
//                        bool          int64, not int32
//     ROPE_DIM           int           of the rotary part that all heads share; even when it is
//                                      rotated; 0: there is none
//     ROTATION           int           of it: 0 none, 1 HALF, 2 INTERLEAVED
//     ROPE_ONCE          bool          it is written once a token, not beside K in each head
//     STEPS              lowrank_step[5]
//                                      a kernel each, as many as there are
//     WARPS, PARAM_BYTES int           warps of a block that is none of linear.cuh's, and size of
//                                      the launch parameters, as the host sees them
//   angles (angles.cuh)
//     ANGLES, ATTENTION_FACTOR, SCALING, RULE_BAKED, LOG2_BASE_Q54, INVERSE_FACTOR_Q64, RAMP_LOW,
//     RAMP_HIGH, RAMP_STEP, RAMP_SHIFT
//                                      as in rope.cu
//
// One kernel makes one step. Few tokens: both products at once, lowrank_small.cuh, with the latent
// in shared memory. Many: each product by itself, as linear.cu does it, lowrank_product.cuh, and
// the norm between them where the latent lies.
#include "fajit/lowrank_finish.cuh"
#include "fajit/lowrank_product.cuh"
#include "fajit/lowrank_shape.cuh"
#include "fajit/lowrank_small.cuh"
#include "fajit/products.cuh"
#include "fajit/steps.cuh"

#ifndef FAJIT_INSTANCE
using Element = float;
using NormWeight = float;
inline constexpr int FORM = 0, SUMS = fajit::SUMS_CHUNKED;
inline constexpr bool NORM = false, TO_CACHE = false, UNIQUE = false, POSITIONS_WIDE = false,
                      SLOTS_WIDE = false, ROPE_ONCE = false;
inline constexpr double NORM_EPS = 1e-6;
inline constexpr int RANK = 48, MODEL_DIM = 256, HEADS = 4, HEAD_DIM = 32, HEAD_DIM_V = 32,
                     BATCH = 0, SEQLEN = 0;
inline constexpr int CACHE = 0, ROPE_DIM = 0, ROTATION = 0;
inline constexpr lowrank_step STEPS[5] = {{0, false, {16, 16, 2, 4, 48, 64, 48, 2, 106624}, {}}};
inline constexpr int WARPS = 8, PARAM_BYTES = 496;
inline constexpr int ANGLES = fajit::ANGLES_COMPUTED, SCALING = 0;
inline constexpr double ATTENTION_FACTOR = 1;
inline constexpr bool RULE_BAKED = true;
inline constexpr long long LOG2_BASE_Q54 = 239370146084580908LL; // base 10000
inline constexpr long long INVERSE_FACTOR_Q64 = 0, RAMP_LOW = 0, RAMP_HIGH = 0, RAMP_STEP = 0,
                           RAMP_SHIFT = 0;
#endif

// Of kernel number F.
template <int F> struct constants {
    using Element = ::Element;
    using NormWeight = ::NormWeight;
    static constexpr int STEP = STEPS[F].step;
    static constexpr lowrank_small SMALL = STEPS[F].small;
    static constexpr linear_step PRODUCT = STEPS[F].product;
    static constexpr int FORM = ::FORM, SUMS = ::SUMS;
    static constexpr bool NORM = ::NORM, TO_CACHE = ::TO_CACHE, UNIQUE = ::UNIQUE,
                          POSITIONS_WIDE = ::POSITIONS_WIDE, SLOTS_WIDE = ::SLOTS_WIDE,
                          ROPE_ONCE = ::ROPE_ONCE;
    static constexpr double NORM_EPS = ::NORM_EPS;
    static constexpr int RANK = ::RANK, MODEL_DIM = ::MODEL_DIM, HEADS = ::HEADS,
                         HEAD_DIM = ::HEAD_DIM, HEAD_DIM_V = ::HEAD_DIM_V, BATCH = ::BATCH,
                         SEQLEN = ::SEQLEN;
    static constexpr int CACHE = ::CACHE, ROPE_DIM = ::ROPE_DIM, ROTATION = ::ROTATION;
    static constexpr int ANGLES = ::ANGLES, SCALING = ::SCALING;
    static constexpr double ATTENTION_FACTOR = ::ATTENTION_FACTOR;
    static constexpr bool RULE_BAKED = ::RULE_BAKED;
    static constexpr long long LOG2_BASE_Q54 = ::LOG2_BASE_Q54,
                               INVERSE_FACTOR_Q64 = ::INVERSE_FACTOR_Q64, RAMP_LOW = ::RAMP_LOW,
                               RAMP_HIGH = ::RAMP_HIGH, RAMP_STEP = ::RAMP_STEP,
                               RAMP_SHIFT = ::RAMP_SHIFT;
};

using params = fajit::lowrank_params<Element>;
static_assert(sizeof(params) == PARAM_BYTES, "host and kernel disagree about the parameters");
static_assert(fajit::LOWRANK_WARPS == WARPS, "host and kernel disagree about a block's warps");

template <int F> __host__ __device__ constexpr int threads_of()
{
    const linear_step &product = STEPS[F].product;
    return 32 * (STEPS[F].is_product ? product.warps_m * product.warps_n * product.warps_k : WARPS);
}

template <int F> __host__ __device__ constexpr int least_blocks()
{
    const linear_step &product = STEPS[F].product;
    return STEPS[F].is_product
               ? fajit::linear_least_blocks(product.tile_m * product.tile_n, threads_of<F>())
               : 1;
}

template <int F>
__global__ void __launch_bounds__(threads_of<F>(), least_blocks<F>())
    fajit_lowrank_kv(const __grid_constant__ params p)
{
    using shape = fajit::lowrank_shape<constants<F>>;
    extern __shared__ uint4 shared_words[];
    unsigned char *shared = reinterpret_cast<unsigned char *>(shared_words);
    if constexpr (shape::STEP == fajit::LOWRANK_NORM)
        fajit::lowrank_norm_block<shape>(p, shared);
    else if constexpr (STEPS[F].is_product)
        fajit::lowrank_product<shape>::run(p, shared);
    else
        fajit::lowrank_small_block<shape>::run(p, shared);
}

#ifndef FAJIT_INSTANCE
template __global__ void fajit_lowrank_kv<0>(const __grid_constant__ params p);
#endif
