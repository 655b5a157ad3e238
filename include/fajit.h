/* fajit - CUDA kernels specialized at run time.
 *
 * SPDX-License-Identifier: MIT
 *
 * The only public header. A program needs three calls:
 *
 *     fa_context *ctx;
 *     fa_context_create(NULL, &ctx);                 // current context, else device 0
 *
 *     fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE);       // what to bake
 *     spec.rope = (fa_rope_spec){.dtype = FA_F32, .head_dim = 64, .style = FA_ROPE_HALF};
 *     fa_kernel *kernel;
 *     fa_compile(ctx, &spec, &kernel);               // memory, else disk, else NVRTC
 *
 *     fa_args args = FA_ARGS_INIT(FA_OP_ROPE);       // what to run on
 *     args.rope = (fa_rope_args){.q = {q}, .q_out = {q_out},
 *                                .batch = 4, .heads_q = 8, .seqlen = 256};
 *     fa_launch(kernel, &args, stream);
 *
 * Conventions, valid for everything below
 * - Errors. Every call that can fail returns fa_status. On failure out-pointers are NULL (handles)
 *   or untouched (values), and fa_last_error() holds a message for the calling thread. The library
 *   never prints, aborts or exits.
 * - Structs. Every struct is plain C and means something sensible when zeroed. Those that may grow
 *   begin with `size`, set by the caller to sizeof of the struct (the FA_*_INIT macros do it): it
 *   tells the library which members the program knows. Members that are not set stay zero.
 * - Strings passed in are UTF-8, NUL-terminated, and copied before the call returns.
 * - Threads. Any function may be called from any thread at any time, unless its text says
 *   otherwise; only the destruction of a handle must not race with other uses of the same handle.
 * - CUDA. The caller's current context is the same after a call as before it.
 * - fork. A child process must not use handles made by its parent: calls on them return
 *   FA_ERR_FORKED at once, and their destruction does nothing.
 */
#ifndef FAJIT_H
#define FAJIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define FA_API __attribute__((visibility("default")))
#else
#define FA_API
#endif

#define FA_VERSION_MAJOR 0
#define FA_VERSION_MINOR 1
#define FA_VERSION_PATCH 0

/* ------------------------------------------------------------------------------------------------
 * Status codes
 * --------------------------------------------------------------------------------------------- */

/* X(name, value, text). Values are stable: they are never renumbered or reused. */
#define FA_STATUS_LIST(X)                                                                          \
    X(FA_OK, 0, "success")                                                                         \
    /* the request: refused before anything is compiled or launched */                             \
    X(FA_ERR_NULL_POINTER, 1, "a required pointer is NULL")                                        \
    X(FA_ERR_STRUCT_SIZE, 2, "a struct's size field is not set or not known")                      \
    X(FA_ERR_VALUE, 3, "a value is not one of the legal ones")                                     \
    X(FA_ERR_UNKNOWN_NAME, 4, "no operation or parameter has this name")                           \
    X(FA_ERR_SIZE, 5, "a size is missing, negative or too small")                                  \
    X(FA_ERR_LIMIT, 6, "a size is over the limit")                                                 \
    X(FA_ERR_ROTARY_DIM, 7, "rotary_dim is odd or larger than head_dim")                           \
    X(FA_ERR_HEAD_RATIO, 8, "the query heads are not a multiple of the key heads")                 \
    X(FA_ERR_DTYPE, 9, "the data type is not supported here")                                      \
    X(FA_ERR_MISALIGNED, 10, "a pointer is not aligned to its element")                            \
    X(FA_ERR_STRIDE, 11, "strides make elements overlap")                                          \
    X(FA_ERR_ALIAS, 12, "an output overlaps another tensor")                                       \
    X(FA_ERR_BAKED, 13, "an argument contradicts a value baked into the kernel")                   \
    X(FA_ERR_SHARED_MEMORY, 14, "more shared memory than the device allows a block")               \
    X(FA_ERR_WORKSPACE, 15, "the workspace is too small")                                          \
    X(FA_ERR_CONSTANT, 16, "a template constant is malformed")                                     \
    X(FA_ERR_OPTION, 17, "a compiler option is not allowed")                                       \
    X(FA_ERR_PARAM_COUNT, 18, "the number of kernel parameters is wrong")                          \
    X(FA_ERR_PARAM_SIZE, 19, "the size of a kernel parameter is wrong")                            \
    X(FA_ERR_GEOMETRY, 20, "a grid, block or cluster dimension is out of range")                   \
    X(FA_ERR_OP_MISMATCH, 21, "the arguments belong to another operation than the kernel")         \
    X(FA_ERR_ARCH, 22, "the architecture is not known or not supported")                           \
    X(FA_ERR_UNSUPPORTED, 23, "not supported by this device, driver or compiler")                  \
    X(FA_ERR_MANIFEST, 24, "the manifest is malformed")                                            \
    /* the surroundings */                                                                         \
    X(FA_ERR_CUDA_MISSING, 40, "the CUDA driver library cannot be used")                           \
    X(FA_ERR_NVRTC_MISSING, 41, "the NVRTC library cannot be used")                                \
    X(FA_ERR_NO_DEVICE, 42, "there is no such CUDA device")                                        \
    X(FA_ERR_OFFLINE, 43, "the context has no device")                                             \
    X(FA_ERR_WRONG_CONTEXT, 44, "the kernel belongs to another CUDA context")                      \
    X(FA_ERR_FORKED, 45, "the handle was made before a fork")                                      \
    X(FA_ERR_CAPTURE, 46, "not possible while a stream is being captured")                         \
    X(FA_ERR_COMPILE, 47, "the kernel source does not compile")                                    \
    X(FA_ERR_NVRTC, 48, "NVRTC failed")                                                            \
    X(FA_ERR_CUDA, 49, "the CUDA driver failed")                                                   \
    X(FA_ERR_OUT_OF_MEMORY, 50, "out of host memory")                                              \
    X(FA_ERR_DEVICE_MEMORY, 51, "out of device memory")                                            \
    X(FA_ERR_SEALED, 52, "the context is sealed and the kernel was not warmed")                    \
    X(FA_ERR_CANCELLED, 53, "cancelled")                                                           \
    X(FA_ERR_IO, 54, "a file cannot be read or written")

#define FA_STATUS_ENUM_(name, value, text) name = value,
typedef enum fa_status { FA_STATUS_LIST(FA_STATUS_ENUM_) } fa_status;
#undef FA_STATUS_ENUM_

/* "FA_ERR_ALIAS" for FA_ERR_ALIAS; "FA_ERR_?" for a value that is no status. Static storage. */
FA_API const char *fa_status_name(fa_status status);
/* The text beside it in the list above; "" for a value that is no status. Static storage. */
FA_API const char *fa_status_text(fa_status status);

/* What went wrong in the last call of this thread that failed: what was asked, what was found, what
 * is allowed; after FA_ERR_COMPILE the compiler's full log follows. "" if nothing failed yet. The
 * text is valid until the next failing call of this thread. */
FA_API const char *fa_last_error(void);

/* "0.1.0". Static storage. */
FA_API const char *fa_version(void);

/* ------------------------------------------------------------------------------------------------
 * Types shared by the operations
 * --------------------------------------------------------------------------------------------- */

typedef struct fa_context
    fa_context;                     /* a device (or an architecture), its compiler and its caches */
typedef struct fa_kernel fa_kernel; /* one compiled instance, loaded and ready; immutable */
typedef struct fa_future fa_future; /* a compile under way */
typedef struct CUstream_st *fa_stream; /* CUstream, cudaStream_t; NULL is the default stream */

/* In a spec: the dimension is not baked but given with each launch. */
#define FA_DYNAMIC 0

typedef enum fa_op {
    FA_OP_NONE = 0,
    FA_OP_TEMPLATE = 1,        /* the user's own kernel */
    FA_OP_ROPE = 2,            /* rotary embedding of q and k */
    FA_OP_KV_UPDATE = 3,       /* new keys and values written into a cache */
    FA_OP_LOWRANK_KV = 4,      /* keys and values from compressed activations */
    FA_OP_ATTENTION = 5,       /* softmax(scale q k^T, masked) v */
    FA_OP_LINEAR = 6,          /* y = x W^T with an epilogue */
    FA_OP_CROSS_ATTENTION = 7, /* projections, attention and output projection of a block */
} fa_op;

/* Element types as stored. Arithmetic is float32 unless an operation says otherwise. */
typedef enum fa_dtype {
    FA_F32 = 0,
    FA_F16 = 1,
    FA_BF16 = 2,
} fa_dtype;

/* Integers in device memory. */
typedef enum fa_index {
    FA_I32 = 0,
    FA_I64 = 1,
} fa_index;

/* Order of the dimensions in memory, outermost first: B batch, H head, N token, D head_dim. */
typedef enum fa_layout {
    FA_LAYOUT_BHND = 0,
    FA_LAYOUT_BNHD = 1,
} fa_layout;

/* A [B, H, N, D] tensor in device memory. Strides count elements; the last dimension is contiguous.
 * All three strides 0: packed in the spec's layout. The strides of dimensions of size 1 are
 * ignored. The memory belongs to the caller and must stay valid until the launch has run.
 *
 * A stride of 0 among the args of a launch means "without gaps": the three of a tensor together,
 * positions_axis_stride, block_table_stride. It means "the same again" in two places: where only
 * some of a tensor's strides are 0, and in positions_stride, which is then of one vector that every
 * batch shares. Positions [B, N] without gaps need positions_stride = N. */
typedef struct fa_tensor {
    void *data;
    int64_t stride_batch;
    int64_t stride_head;
    int64_t stride_token;
} fa_tensor;

/* ------------------------------------------------------------------------------------------------
 * Rotary angles: what FA_OP_ROPE and every operation that rotates share
 *
 *     angle(p, j) = p * inv_freq(j),   inv_freq(j) = base^(-2 j / R),   0 <= j < R / 2
 *
 * with R = rotary_dim. Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position
 * Embedding" (2021), eq. 34. Scaling stretches a model over sequences longer than those it was
 * trained on; f is inv_freq(j) of the plain formula, s the factor, L0 the original_max_position:
 *
 *     LINEAR       f / s. Chen et al., "Extending Context Window of Large Language Models via
 *                  Positional Interpolation" (2023)
 *     NTK          base * s^(R / (R - 2)) in place of base ("NTK-aware" scaling, 2023)
 *     DYNAMIC_NTK  base * (s L / L0 - (s - 1))^(R / (R - 2)) in place of base for a sequence of
 *                  length L > L0, plain up to L0
 *     YARN         f (1 - r) + f / s * r, r = clamp((j - low) / (high - low), 0, 1), low =
 *                  floor(d(beta_fast)), high = ceil(d(beta_slow)), within 0 and R - 1, where
 *                  d(b) = R ln(L0 / (2 pi b)) / (2 ln base) is the pair that turns b times in L0
 *                  positions. low = high is a step behind it. Sines and cosines are multiplied by
 *                  attention_factor. Peng et al., "YaRN: Efficient Context Window Extension of
 *                  Large Language Models" (2023), eq. 17 to 25
 *     LLAMA3       with w = 2 pi / f: f where w < L0 / high_freq_factor; f / s where w > L0 /
 *                  low_freq_factor; between them (1 - t) f / s + t f, t = (L0 / w -
 *                  low_freq_factor) / (high_freq_factor - low_freq_factor). The configuration of
 *                  the Llama 3.1 checkpoints ("rope_type": "llama3")
 *
 * Computed angles are exact to float32 rounding of sine and cosine at every int32 position: a
 * frequency is kept in turns as a 64-bit fraction.
 * --------------------------------------------------------------------------------------------- */

typedef enum fa_rope_style {
    FA_ROPE_HALF = 0,
    FA_ROPE_INTERLEAVED = 1,
} fa_rope_style;

typedef enum fa_rope_angles {
    FA_ROPE_COMPUTED = 0,    /* from base and scaling */
    FA_ROPE_TABLES = 1,      /* from float32 cos and sin tables [max_position, rotary_dim / 2] */
    FA_ROPE_FREQUENCIES = 2, /* from a float32 vector inv_freq [rotary_dim / 2], taken as exact */
} fa_rope_angles;

typedef enum fa_rope_scaling_kind {
    FA_ROPE_UNSCALED = 0,
    FA_ROPE_LINEAR = 1,
    FA_ROPE_NTK = 2,
    FA_ROPE_DYNAMIC_NTK = 3,
    FA_ROPE_YARN = 4,
    FA_ROPE_LLAMA3 = 5,
} fa_rope_scaling_kind;

/* A member that the kind does not use must be 0. */
typedef struct fa_rope_scaling {
    fa_rope_scaling_kind kind;
    int32_t original_max_position; /* DYNAMIC_NTK, YARN, LLAMA3: tokens it was trained on */
    int32_t sequence_length;       /* DYNAMIC_NTK: baked, or FA_DYNAMIC: given with each launch */
    bool untruncated;              /* YARN: low and high are not rounded (gpt-oss) */
    double factor;                 /* 1 to 1e6; every kind */
    double beta_fast, beta_slow;   /* YARN; 0: 32 and 1 */
    double low_freq_factor, high_freq_factor; /* LLAMA3; 0: 1 and 4 */
    /* Multiplies cos and sin, once. 0: 0.1 ln(factor) + 1 with YARN, else 1. Also with
     * FA_ROPE_FREQUENCIES (LongRoPE); not with tables, which hold what they hold. */
    double attention_factor;
} fa_rope_scaling;

/* ------------------------------------------------------------------------------------------------
 * FA_OP_ROPE: rotary position embedding of q [B, heads_q, N, D] and k [B, heads_k, N, D]
 *
 *     y[a] = x[a] cos - x[b] sin,   y[b] = x[b] cos + x[a] sin
 *     (a, b) = (j, j + rotary_dim / 2) for HALF, (2 j, 2 j + 1) for INTERLEAVED
 *
 * HALF is the pairing of GPT-NeoX and Llama checkpoints, INTERLEAVED that of the paper and GPT-J.
 * Elements from rotary_dim to head_dim are copied. Arithmetic is float32; results are rounded to
 * the storage type once. With norm, x is first y[i] = x[i] / sqrt(mean(x^2) + norm_eps) * w[i] over
 * the whole head (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019; per head as in
 * the Qwen3 and Gemma3 models), w in float32 without rounding in between.
 *
 * Tokens packed without batches, [T, heads, D], are batch 1 with FA_LAYOUT_BNHD.
 * --------------------------------------------------------------------------------------------- */

typedef enum fa_rope_positions {
    FA_ROPE_RANGE = 0,   /* token n is at position_offset + n */
    FA_ROPE_VECTOR = 1,  /* token n of batch b is at positions[b * positions_stride + n] */
    FA_ROPE_OFFSETS = 2, /* token n of batch b is at positions[b] + n */
    /* Sequences packed into batch 1: positions holds cumulative lengths [sequences + 1], ascending
     * from 0. Token n of sequence s is at n - positions[s], plus sequence_offsets[s] where given.
     * Tokens behind the last sequence count on from its end. */
    FA_ROPE_CUMULATIVE = 3,
} fa_rope_positions;

/* Which of three positions (time, height, width: positions is [3, B, N]) turns pair j. */
typedef enum fa_rope_sections {
    FA_ROPE_ONE_POSITION = 0,
    /* The first section_t pairs by time, the next section_h by height, the last section_w by width:
     * "mrope_section" of Wang et al., "Qwen2-VL" (2024). */
    FA_ROPE_SECTIONS_SPLIT = 1,
    /* j % 3 = 1 by height up to section_h of them, j % 3 = 2 by width up to section_w, all others
     * by time: "mrope_interleaved" of the Qwen3-VL checkpoints. */
    FA_ROPE_SECTIONS_INTERLEAVED = 2,
} fa_rope_sections;

typedef enum fa_rope_norm {
    FA_ROPE_NO_NORM = 0,
    FA_ROPE_RMS_NORM = 1,     /* weights of the element type */
    FA_ROPE_RMS_NORM_F32 = 2, /* float32 weights */
} fa_rope_norm;

typedef struct fa_rope_spec {
    fa_dtype dtype;
    fa_rope_style style;
    fa_rope_angles angles;
    fa_rope_positions positions;
    fa_layout layout;
    bool in_place;      /* q_out and k_out are q and k */
    int32_t head_dim;   /* 2 to 1024, or FA_DYNAMIC */
    int32_t rotary_dim; /* even, at most head_dim; 0: all of head_dim */
    int32_t batch;      /* this and the next three: baked, or FA_DYNAMIC */
    int32_t heads_q;    /* a multiple of heads_k */
    int32_t heads_k;
    int32_t seqlen;
    double base;             /* 0: 10000; otherwise > 1, finite; used with FA_ROPE_COMPUTED alone */
    fa_rope_scaling scaling; /* FA_ROPE_COMPUTED; attention_factor also FA_ROPE_FREQUENCIES */
    fa_index position_type;  /* of positions and sequence_offsets */
    fa_rope_sections sections;               /* with FA_ROPE_VECTOR; rotary_dim baked */
    int32_t section_t, section_h, section_w; /* pairs; together rotary_dim / 2 */
    bool inverse;          /* sines negated: undoes a rotation, and is the gradient of one */
    bool norm_unit_offset; /* the weights are stored less 1 (Gemma): w = 1 + weight */
    fa_rope_norm norm;     /* before the rotation; head_dim and rotary_dim baked */
    double norm_eps;       /* 0: 1e-6; otherwise > 0, at most 1 */
} fa_rope_spec;

typedef struct fa_rope_args {
    fa_tensor q, k;         /* k.data NULL: q alone; heads_q 0: k alone */
    fa_tensor q_out, k_out; /* ignored when in_place; otherwise distinct from q and k */
    /* Sizes. Those that the spec bakes may be left 0; if set they must agree. A dynamic size of 0
     * is empty work: the launch succeeds and does nothing. */
    int32_t batch, heads_q, heads_k, seqlen, head_dim;
    int32_t position_offset;  /* FA_ROPE_RANGE; may be negative with computed angles */
    const void *positions;    /* not FA_ROPE_RANGE; device memory, of the spec's position_type */
    int64_t positions_stride; /* elements between batches; 0: one vector [N] for every batch */
    const float *cos, *sin;   /* FA_ROPE_TABLES; device memory, [max_position, rotary_dim / 2] */
    int32_t max_position;     /* rows of the tables. A token on the device outside them gives NaN */
    int32_t sequence_length;  /* DYNAMIC_NTK, unless baked */
    const float *inv_freq;    /* FA_ROPE_FREQUENCIES; device memory, [rotary_dim / 2] */
    int64_t positions_axis_stride; /* sections: elements between axes; 0: without gaps */
    const void *sequence_offsets;  /* FA_ROPE_CUMULATIVE; device memory, [sequences]; NULL: 0 */
    int32_t sequences;             /* FA_ROPE_CUMULATIVE */
    const void *q_norm, *k_norm;   /* norm: weights [head_dim]; device memory */
} fa_rope_args;

/* ------------------------------------------------------------------------------------------------
 * FA_OP_KV_UPDATE: new keys and values are written into a cache, the keys rotated
 *
 *     cache_k[entry(b, n)] = store(rotate(k_new[b, n], position(b, n)) / k_scale)
 *     cache_v[entry(b, n)] = store(v_new[b, n] / v_scale)
 *
 * k_new is [B, T, G, D], v_new [B, T, G, Dv]; T counts the new tokens of a batch, and tokens packed
 * without batches, [T, G, D], are batch 1. `rotate` is that of FA_OP_ROPE, with the angles stated
 * above; V is never rotated. Arithmetic is float32, results are rounded to storage once, and
 * elements that are neither rotated nor quantized keep their bits. A scale is 1 unless the cache is
 * quantized: what is stored times the scale is the value.
 *
 * Where a token goes (fa_kv_cache):
 *     DENSE        entry position(b, n) of row b of a cache [B, cache_len, G, D]
 *     SLOTS        entry slots[b T + n] of a pool of pages, counted through all of them
 *     BLOCK_TABLE  entry position % page_size of page block_table[b, position / page_size]
 * A pool is [pages, page_size, G, D]. With FA_KV_HEADS_FIRST heads come before entries, in a dense
 * cache [B, G, cache_len, D] and in a pool [pages, G, page_size, D].
 *
 * Which tokens are written. A token whose slot or position is -1 is padding and skipped. One whose
 * slot, position or page lies outside is skipped too, and adds 1 to *errors. Nothing else is ever
 * written. Of tokens of one batch that go to the same entry (of all tokens, with SLOTS) the last
 * one is written, whatever the order in which threads run, unless the spec says `unique`.
 *
 * All device memory belongs to the caller and must stay valid until the launch has run. Errors of a
 * spec: VALUE, SIZE, LIMIT, ROTARY_DIM, DTYPE (FA_KV_E4M3 before sm_89). Errors of a launch:
 * NULL_POINTER, MISALIGNED, SIZE, LIMIT, ROTARY_DIM, STRIDE, ALIAS, BAKED, GEOMETRY.
 * --------------------------------------------------------------------------------------------- */

typedef enum fa_kv_cache {
    FA_KV_DENSE = 0,
    FA_KV_SLOTS = 1,
    FA_KV_BLOCK_TABLE = 2,
} fa_kv_cache;

typedef enum fa_kv_layout {
    FA_KV_TOKENS_FIRST = 0,
    FA_KV_HEADS_FIRST = 1,
} fa_kv_layout;

typedef enum fa_kv_rotation {
    FA_KV_ROTATE_NONE = 0,
    FA_KV_ROTATE_HALF = 1,        /* FA_ROPE_HALF */
    FA_KV_ROTATE_INTERLEAVED = 2, /* FA_ROPE_INTERLEAVED */
} fa_kv_rotation;

typedef enum fa_kv_storage {
    FA_KV_SAME = 0, /* the cache has the dtype of k_new and v_new */
    /* 8-bit floating point with 4 bits of exponent and 3 of mantissa, largest value 448, without
     * infinities: to nearest, ties to even, values beyond 448 become 448, NaN stays NaN. */
    FA_KV_E4M3 = 1,
} fa_kv_storage;

typedef enum fa_kv_scales {
    FA_KV_SCALE_NONE = 0,   /* values are stored as they are */
    FA_KV_SCALE_TENSOR = 1, /* k_scale[0] and v_scale[0] */
    FA_KV_SCALE_HEAD = 2,   /* k_scale[g] and v_scale[g] */
} fa_kv_scales;

typedef struct fa_kv_update_spec {
    fa_dtype dtype;            /* of k_new and v_new */
    fa_kv_storage cache_dtype; /* of the cache and the outputs */
    fa_kv_scales scales;       /* only with FA_KV_E4M3 */
    fa_kv_cache cache;
    fa_kv_layout cache_layout; /* of tensors whose strides are all 0 */
    bool in_place; /* the cache is changed; else it is copied to the outputs with the changes. Pools
                      of pages are always changed in place */
    bool unique;   /* promised: no two tokens of a batch (SLOTS: no two tokens) go to one entry. Not
                      checked, which saves reading the positions of each batch many times; when two
                      do, which of them is written, element by element, is not defined */
    fa_kv_rotation rotation;
    fa_rope_angles angles;
    fa_index position_type, slot_type;
    int32_t head_dim;   /* of K: 1 to 1024, or FA_DYNAMIC */
    int32_t head_dim_v; /* of V: 1 to 1024; 0: that of K */
    int32_t rotary_dim; /* even, at most head_dim; 0: all of head_dim. The rest is copied */
    int32_t batch;      /* this and the next four: baked, or FA_DYNAMIC */
    int32_t tokens;
    int32_t heads;
    int32_t cache_len;       /* entries of a row; only with FA_KV_DENSE */
    int32_t page_size;       /* entries of a page, 1 to 256; only with pages */
    double base;             /* 0: 10000; otherwise > 1, finite; used with FA_ROPE_COMPUTED alone */
    fa_rope_scaling scaling; /* FA_ROPE_COMPUTED; attention_factor also FA_ROPE_FREQUENCIES */
} fa_kv_update_spec;

typedef struct fa_kv_update_args {
    fa_tensor k_new, v_new; /* all strides 0: packed [B, T, G, D] */
    /* "batch" is a row of a dense cache or a page of a pool, "token" an entry of it. In place they
     * are written; else read only. They overlap nothing else; slices of one buffer are fine. */
    fa_tensor cache_k, cache_v;
    /* Unless in_place: shaped like the cache. v_out.data NULL: V follows K in one buffer, which is
     * the stacked [2, B, cache_len, G, D] when D = Dv; k_out is then packed. */
    fa_tensor k_out, v_out;
    /* Sizes. Those that the spec bakes may be left 0; if set they must agree. Dynamic ones of 0 are
     * empty work, and nothing is written; but tokens = 0 without in_place is a copy. */
    int32_t batch, tokens, heads, head_dim;
    int32_t cache_len, page_size; /* the one that the spec's `cache` needs; at least 1 */
    int32_t pages;                /* of the pool; at least 1 */
    int32_t max_pages;            /* FA_KV_BLOCK_TABLE: entries of each batch's table; at least 1 */
    const void *positions; /* [B, T]; may be NULL with SLOTS and without rotation; device memory */
    int64_t positions_stride; /* elements between batches; 0: one vector [T] for every batch */
    const void *slots;        /* FA_KV_SLOTS: [B T]; device memory */
    int64_t slot_count; /* the first so many tokens have a slot; others are not written. 0: all */
    const int32_t *block_table; /* FA_KV_BLOCK_TABLE: [B, max_pages]; device memory */
    int64_t block_table_stride; /* elements between batches; 0: max_pages, no shared table */
    const float *cos, *sin;     /* FA_ROPE_TABLES; device memory, [max_position, rotary_dim / 2] */
    int32_t max_position;       /* rows of the tables. A position past them is outside */
    const float *inv_freq;      /* FA_ROPE_FREQUENCIES; device memory, [rotary_dim / 2] */
    int32_t sequence_length;    /* FA_ROPE_DYNAMIC_NTK, unless baked */
    const float *k_scale, *v_scale; /* as `scales` says; device memory; positive */
    uint32_t *errors; /* NULL, or device memory to which the number of tokens outside is added */
} fa_kv_update_args;

/* ------------------------------------------------------------------------------------------------
 * FA_OP_LOWRANK_KV: keys and values from compressed activations, through a latent of few numbers
 *
 *     latent = norm(hidden w_down)      K = latent w_up_k      V = latent w_up_v
 *
 * hidden is [B, S, M], w_down [M, R], w_up_k [R, G, D], w_up_v [R, G, Dv] (row-major: stored [in,
 * out]). K is [B, S, G, D] and V [B, S, G, Dv]; both in one buffer are [B, S, 2, G, D], slot 0 K.
 * The latent is rounded to the storage type once, whether it stays in the kernel or not; so the
 * forms and plans below differ in no more than the order of their sums. With norm it is then
 * y[i] = x[i] / sqrt(mean(x^2) + norm_eps) * w[i], the mean over R, and rounded again.
 *
 * The rotary part (DeepSeek-AI, "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts
 * Language Model", 2024, eq. 12 to 16: multi-head latent attention) is a key of rope_dim numbers that
 * all heads share: k_rope [B, S, Dr], rotated to its token's position. It stands behind K in every
 * head, whose rows then have D + Dr elements (the key that attention multiplies with, eq. 16), or,
 * with rope_once, alone in rope_out [B, S, Dr] (what a latent cache keeps of it).
 *
 * The output is written by token, or, with to_cache, where a cache has its place: as FA_OP_KV_UPDATE
 * states it for its caches, with the same rules for padding, for what lies outside and for entries
 * that several tokens go to. FA_LOWRANK_DOWN writes a cache of latents so.
 *
 * All device memory belongs to the caller and must stay valid until the launch has run. Errors of a
 * spec: VALUE, SIZE, LIMIT, ROTARY_DIM, UNSUPPORTED (sums on tensor cores before sm_80),
 * SHARED_MEMORY. Errors of a launch: NULL_POINTER, MISALIGNED, SIZE, STRIDE, ALIAS, BAKED, GEOMETRY,
 * WORKSPACE.
 * --------------------------------------------------------------------------------------------- */

typedef enum fa_lowrank_form {
    FA_LOWRANK_WHOLE = 0, /* hidden to K and V */
    FA_LOWRANK_DOWN = 1,  /* hidden to the latent */
    FA_LOWRANK_UP = 2,    /* the latent to K and V */
} fa_lowrank_form;

/* How FA_LOWRANK_WHOLE is launched. What a kernel does is in fa_kernel_info_t.plan. With a dynamic
 * number of tokens AUTO and TWO_LAUNCHES have one way for few tokens and one for many; each launch
 * takes one, and fa_workspace_size tells what that needs. */
typedef enum fa_lowrank_plan {
    /* By a model of the cost. With tile_tokens or shares: ONE_LAUNCH, if that fits. */
    FA_LOWRANK_AUTO = 0,
    FA_LOWRANK_ONE_LAUNCH = 1,   /* the latent is never in device memory */
    FA_LOWRANK_TWO_LAUNCHES = 2, /* the latent is in the workspace; with norm there are three */
} fa_lowrank_plan;

/* How products are summed. */
typedef enum fa_lowrank_sums {
    /* f32: SPLIT_TF32, before sm_80 CHUNKED. f16, bf16: TENSOR, before sm_80 CHUNKED. */
    FA_LOWRANK_SUMS_DEFAULT = 0,
    FA_LOWRANK_SUMS_CHUNKED = 1,    /* float32, in chunks of 8 that are added up */
    FA_LOWRANK_SUMS_SPLIT_TF32 = 2, /* f32: as two parts of tf32, three products on tensor cores, in
                                       chunks of 8. float32-accurate; an infinity becomes NaN */
    FA_LOWRANK_SUMS_TF32 = 3,       /* f32: rounded to tf32, 11 bits. Not float32-accurate */
    FA_LOWRANK_SUMS_DOUBLE = 4,     /* float64 */
    FA_LOWRANK_SUMS_TENSOR = 5,     /* f16, bf16: tensor cores that sum in float32 */
    FA_LOWRANK_SUMS_TREE = 6,       /* float32, by pairs, pairs of pairs and so on up to 64 terms */
} fa_lowrank_sums;

typedef struct fa_lowrank_kv_spec {
    fa_dtype dtype; /* of everything but norm weights, tables and indices */
    fa_lowrank_form form;
    fa_lowrank_plan plan; /* only with FA_LOWRANK_WHOLE */
    fa_lowrank_sums sums;
    fa_rope_norm norm;         /* of the latent; not with FA_LOWRANK_UP, whose input has had it */
    bool to_cache;             /* K and V (DOWN: the latent) and rope_out are caches */
    fa_kv_cache cache;         /* with to_cache */
    fa_kv_layout cache_layout; /* of K and V with to_cache whose strides are all 0 */
    bool unique;               /* with to_cache: promised, as in fa_kv_update_spec */
    fa_kv_rotation rotation;   /* of the rotary part; pairs as in FA_OP_ROPE */
    bool rope_once;            /* in rope_out; always with FA_LOWRANK_DOWN */
    fa_rope_angles angles;
    fa_index position_type, slot_type;
    int32_t model_dim;  /* M: 1 and up, or FA_DYNAMIC; not used with FA_LOWRANK_UP */
    int32_t rank;       /* R: 1 and up; always baked */
    int32_t heads;      /* G, baked or FA_DYNAMIC; this and the next two not with FA_LOWRANK_DOWN */
    int32_t head_dim;   /* D, baked or FA_DYNAMIC */
    int32_t head_dim_v; /* Dv; 0: D */
    int32_t rope_dim;   /* Dr: 1 to 1024, even when it is rotated; 0: no rotary part */
    int32_t batch;      /* this and the next: baked, or FA_DYNAMIC */
    int32_t seqlen;     /* S */
    /* Of blocks that make both products, or one in sums that FA_OP_LINEAR lacks: */
    int32_t tile_tokens;     /* tokens of a block, 16 or 32; 0: by cost */
    int32_t shares;          /* 1 to 64 blocks share the columns of their tokens; 0: by cost */
    double norm_eps;         /* 0: 1e-6; otherwise > 0, at most 1 */
    double base;             /* 0: 10000; otherwise > 1, finite; used with FA_ROPE_COMPUTED alone */
    fa_rope_scaling scaling; /* FA_ROPE_COMPUTED; attention_factor also FA_ROPE_FREQUENCIES */
} fa_lowrank_kv_spec;

typedef struct fa_lowrank_kv_args {
    fa_tensor hidden;      /* [B, S, M]; stride_head is not used */
    const void *w_down;    /* [M, R] */
    int64_t w_down_stride; /* elements between rows; 0: R */
    /* "token" is a row: stride_token 0 and stride_head 0 are packed [R, G, D]. stride_batch is not
     * used. Slices of one [R, G, D + Dv] (kv_b_proj transposed) are fine. */
    fa_tensor w_up_k, w_up_v;
    fa_tensor latent; /* [B, S, R]: written by DOWN, read by UP; stride_head is not used */
    /* [B, S, G, D (+ Dr)] and [B, S, G, Dv]. v_out.data NULL: V follows K in each token of one
     * buffer, which is [B, S, 2, G, D] when rows of K and V have one size; k_out is then packed so.
     * With to_cache: caches, shaped as FA_OP_KV_UPDATE has them; both are needed. */
    fa_tensor k_out, v_out;
    fa_tensor k_rope;        /* with rope_dim: [B, S, Dr]; stride_head is not used */
    fa_tensor rope_out;      /* rope_once: the same, or a cache of it */
    const void *norm_weight; /* with norm: [R] */
    /* Sizes. Those that the spec bakes may be left 0; if set they must agree. A dynamic size of 0 is
     * empty work, and nothing is written. */
    int32_t batch, seqlen, model_dim, heads, head_dim;
    int32_t position_offset; /* without to_cache and positions: token n is at position_offset + n */
    const void *positions;   /* [B, S]; NULL without to_cache: as above; may be NULL with SLOTS and
                              without rotation; device memory */
    int64_t positions_stride; /* elements between batches; 0: one vector [S] for every batch */
    int32_t cache_len, page_size, pages, max_pages; /* to_cache: as in fa_kv_update_args */
    const void *slots;
    int64_t slot_count;
    const int32_t *block_table;
    int64_t block_table_stride;
    const float *cos, *sin; /* FA_ROPE_TABLES; device memory, [max_position, rope_dim / 2] */
    int32_t max_position;
    const float *inv_freq;   /* FA_ROPE_FREQUENCIES; device memory, [rope_dim / 2] */
    int32_t sequence_length; /* FA_ROPE_DYNAMIC_NTK, unless baked */
    uint32_t *errors; /* NULL, or device memory to which the number of tokens outside is added */
} fa_lowrank_kv_args;

/* ------------------------------------------------------------------------------------------------
 * FA_OP_ATTENTION: out = softmax(scale q k^T, masked) v, without the scores in device memory
 *
 *     s[i, j] = scale * sum_d q[b, i, h, d] k[b, j, g, d]     g = h / (heads_q / heads_k)
 *     lse[b, h, i] = ln sum_j exp(s[i, j])                    over the keys j that query i sees
 *     out[b, i, h, d] = sum_j exp(s[i, j] - lse[b, h, i]) v[b, j, g, d]
 *
 * q is [B, Tq, heads_q, D], k [B, Tk, heads_k, D], v [B, Tk, heads_k, Dv] and out [B, Tq, heads_q,
 * Dv]. Vaswani et al., "Attention Is All You Need" (2017), eq. 1; computed tile by tile as in Dao
 * et al., "FlashAttention" (2022). A query that sees no key, as with Tk = 0, has the output 0 and
 * the lse minus infinity.
 *
 * Masks. With FA_ATTENTION_CAUSAL query i sees the keys j <= i + Tk - Tq, so that the last query
 * sees the last key (queries that continue a cache); with FA_ATTENTION_CAUSAL_TOP_LEFT j <= i.
 *
 * Accuracy. Sums and exponentials are float32. f16 and bf16 are multiplied on tensor cores, and the
 * exponentials, between 0 and 1, are rounded to the storage type for the product with v. f32 is as
 * accurate as float32 arithmetic: each factor is split into two tf32 parts. As in any float32
 * computation, a score's own rounding error, about 2^-23 of the largest |q| |k| scale, is a
 * relative error of its exponential. In f32, factors of 2^127 and more, and infinite ones, give
 * NaN. Nothing depends on what else is in the batch, and results are bitwise reproducible.
 *
 * All device memory belongs to the caller and must stay valid until the launch has run. Errors of a
 * spec: VALUE, SIZE, LIMIT, HEAD_RATIO, SHARED_MEMORY. Errors of a launch: NULL_POINTER,
 * MISALIGNED, SIZE, LIMIT, HEAD_RATIO, STRIDE, ALIAS, BAKED, GEOMETRY, VALUE.
 * --------------------------------------------------------------------------------------------- */

typedef enum fa_attention_mask {
    FA_ATTENTION_FULL = 0, /* every query sees every key */
    FA_ATTENTION_CAUSAL = 1,
    FA_ATTENTION_CAUSAL_TOP_LEFT = 2,
} fa_attention_mask;

/* How the work is cut: AUTO takes the largest tiles of queries that, as far as batch, heads_q and
 * seqlen_q are baked, still give a block to each of 128 multiprocessors. */
typedef enum fa_attention_tiles {
    FA_ATTENTION_TILES_AUTO = 0,
    FA_ATTENTION_TILES_LARGE = 1,
    FA_ATTENTION_TILES_MEDIUM = 2,
    FA_ATTENTION_TILES_SMALL = 3, /* 16 queries; a block's warps share the keys */
} fa_attention_tiles;

typedef struct fa_attention_spec {
    fa_dtype dtype; /* of q, k, v and out */
    fa_attention_mask mask;
    fa_attention_tiles tiles;
    bool heads_first;   /* tensors whose strides are all 0 are [B, heads, T, D] */
    bool lse;           /* lse is written too */
    int32_t head_dim;   /* of q and k: 1 to 256; always baked. Multiples of 8 are fastest */
    int32_t head_dim_v; /* of v and out: 1 to 256; 0: head_dim */
    int32_t batch;      /* this and the next four: baked, or FA_DYNAMIC */
    int32_t heads_q;    /* a multiple of heads_k */
    int32_t heads_k;
    int32_t seqlen_q; /* at most 2^31 - 256, as seqlen_k */
    int32_t seqlen_k;
    double scale; /* 0: 1 / sqrt(head_dim); otherwise positive */
} fa_attention_spec;

typedef struct fa_attention_args {
    fa_tensor q, k, v; /* read only; may overlap each other, and may have strides of 0. k and v are
                          not looked at when seqlen_k is 0 */
    fa_tensor out;     /* overlaps nothing else; slices of one buffer are fine */
    /* [B, heads_q, Tq]; with the spec's lse. Strides in elements, both 0: packed. */
    float *lse;
    int64_t lse_stride_batch, lse_stride_head;
    /* Sizes. Those that the spec bakes may be left 0; if set they must agree. No batch, no head or
     * no query is empty work; no key is not: see above. */
    int32_t batch, heads_q, heads_k, seqlen_q, seqlen_k;
} fa_attention_args;

/* ------------------------------------------------------------------------------------------------
 * FA_OP_LINEAR: y [M, N] = x [M, K] W^T with an epilogue; W is [N, K] as layers store it, [out, in]
 *
 *     t[m, n] = scale(m, n) sum over k of x[m, k] W[n, k] + bias[n]
 *     y[m, n] = round(rotate(activation(t))[m, n] + residual[m, n])
 *
 * Each step is left out unless the spec asks for it. Sums are float32; float32 x and W are multiplied
 * to float32 accuracy. Infinities and NaN in x and W give what IEEE arithmetic gives. Results are
 * bitwise reproducible, and those of a row do not depend on the other rows of the same launch shape.
 *
 * `rotate` is that of FA_OP_ROPE: the first `rotated` columns are heads of head_dim, and rows are
 * tokens that have a position. The columns can be shared by up to three outputs, which is the stacked
 * layout of a cache (K, V) or a fused projection (Q, K, V); and rows can be mapped, which writes into
 * a cache.
 *
 * Workspace: where M is small, several blocks share the sums of a tile, unless `splits` is 1. Ask
 * fa_workspace_size. The workspace must be zero before the first launch that uses it, and is left
 * ready for the next; two launches that may run at once need two. Float32 as halves (SPLIT_F16, which
 * AUTO takes where m, n and k are baked and large, unless `splits` is given) always needs one, of
 * 4 (M + N) (K rounded up to 32s, + 1) bytes: it may hold anything before, and holds the halves
 * afterwards, so that it is no longer zero for another kernel.
 *
 * All device memory belongs to the caller and must stay valid until the launch has run. Errors of a
 * spec: VALUE, SIZE, LIMIT, ROTARY_DIM, DTYPE (fp8 before sm_89), UNSUPPORTED (SPLIT_* before sm_80),
 * SHARED_MEMORY (a forced tile).
 * Errors of a launch: NULL_POINTER, MISALIGNED, SIZE, STRIDE, ALIAS, BAKED, GEOMETRY, WORKSPACE.
 * --------------------------------------------------------------------------------------------- */

typedef enum fa_linear_operands {
    FA_LINEAR_SAME = 0, /* x and W have the spec's dtype */
    FA_LINEAR_E4M3 = 1, /* x and W are fp8, as FA_KV_E4M3 */
} fa_linear_operands;

typedef enum fa_linear_output {
    FA_LINEAR_OUT_SAME = 0, /* y and residual have the spec's dtype */
    FA_LINEAR_OUT_F32 = 1,
    FA_LINEAR_OUT_F16 = 2,
    FA_LINEAR_OUT_BF16 = 3,
} fa_linear_output;

/* How products are formed. Errors are relative to the sum of |x W|. */
typedef enum fa_linear_arithmetic {
    /* Tensor cores where they have the type: SPLIT_TF32 with float32, or SPLIT_F16 where that is faster
     * by a model of cost, m, n and k are baked and splits is 0. FMA on sm_75 with float32 and
     * bfloat16. */
    FA_LINEAR_AUTO = 0,
    FA_LINEAR_FMA = 1, /* a float32 multiply-add each, on ordinary units */
    /* float32 on tensor cores, sm_80 and later: x and W as sums of two tf32 numbers (three products
     * each, below 2^-21), or of three bfloat16 numbers (six products, below 2^-22.5) */
    FA_LINEAR_SPLIT_TF32 = 2,
    FA_LINEAR_SPLIT_BF16 = 3,
    /* The same as sums of two float16 numbers, with a power of two for each row of x and W (three
     * products, below 2^-21): two launches and a workspace. Of an element below 2^-28 of the largest
     * of its row, 2^-50 of that may be lost. Faster where M and N are large; `splits` at most 1. */
    FA_LINEAR_SPLIT_F16 = 4,
} fa_linear_arithmetic;

typedef enum fa_linear_scales {
    FA_LINEAR_SCALE_NONE = 0,
    FA_LINEAR_SCALE_TENSOR = 1, /* x_scale[0] w_scale[0] */
    FA_LINEAR_SCALE_ROW = 2,    /* x_scale[m] w_scale[n]: of each token and each output channel */
} fa_linear_scales;

typedef enum fa_linear_activation {
    FA_LINEAR_IDENTITY = 0,
    FA_LINEAR_SILU = 1,      /* t / (1 + exp(-t)) */
    FA_LINEAR_GELU = 2,      /* t (1 + erf(t / sqrt(2))) / 2 */
    FA_LINEAR_GELU_TANH = 3, /* t (1 + tanh(sqrt(2 / pi) (t + 0.044715 t^3))) / 2 */
} fa_linear_activation;

typedef struct fa_linear_spec {
    fa_dtype dtype; /* of x, W and bias; with FA_LINEAR_E4M3 of bias alone */
    fa_linear_operands operands;
    fa_linear_output output;
    fa_linear_arithmetic arithmetic;
    fa_linear_scales scales;
    fa_linear_activation activation;
    bool bias, residual;
    bool mapped_rows; /* row m goes to row rows[m] of every output; -1 is skipped. No two rows go to
                         the same one: this is not checked, and which is written is not defined */
    fa_index row_type; /* of rows */
    int32_t m, n, k;   /* baked, or FA_DYNAMIC */
    /* Columns [0, split_1) go to y[0], [split_1, split_2) to y[1], the rest to y[2]; 0: no second, no
     * third output. */
    int32_t split_1, split_2;
    fa_kv_rotation rotation;
    fa_rope_angles angles;
    fa_index position_type;
    int32_t head_dim;   /* even; with rotation */
    int32_t rotary_dim; /* even, at most head_dim; 0: all of head_dim */
    int32_t rotated;    /* columns, a multiple of head_dim; 0: all */
    /* How the work is laid out; 0: chosen by a table of costs, for n and k as far as baked and, with
     * m dynamic, for many rows, with tile_m = 16 for few. tile_m and tile_n are those of one line of
     * the table. */
    int32_t tile_m, tile_n;
    int32_t stages; /* tiles of k in shared memory at most, 2 to 16 */
    /* Blocks that share the sums of a tile, 1 to 64; 0: chosen at launch, by m: the bits of a row then
     * depend on how many there are. */
    int32_t splits;
    double base;
    fa_rope_scaling scaling;
} fa_linear_spec;

/* Rows in device memory, `stride` elements apart; 0: without gaps. */
typedef struct fa_matrix {
    void *data;
    int64_t stride;
} fa_matrix;

typedef struct fa_linear_args {
    fa_matrix x;        /* [M, K] */
    fa_matrix w;        /* [N, K] */
    fa_matrix y[3];     /* distinct from all inputs; but y[0] may be residual itself, without
                           mapped_rows and splits of the columns */
    fa_matrix residual; /* [M, N] */
    const void *bias;   /* [N] */
    /* Sizes. Those that the spec bakes may be left 0; if set they must agree. m or n of 0 is empty
     * work; with k of 0 sums are 0. */
    int32_t m, n, k;
    const void *rows;      /* mapped_rows: [M] of row_type */
    int64_t row_count;     /* mapped_rows: rows of every output. What lies outside is skipped */
    uint32_t *errors;      /* NULL, or device memory to which the number of rows outside is added */
    const void *positions; /* rotation: [M] of position_type; NULL: position_offset + m */
    int32_t position_offset;        /* may be negative with computed angles */
    const float *cos, *sin;         /* FA_ROPE_TABLES: [max_position, rotary_dim / 2] */
    int32_t max_position;           /* rows of the tables. A token outside them gives NaN */
    const float *inv_freq;          /* FA_ROPE_FREQUENCIES: [rotary_dim / 2] */
    int32_t sequence_length;        /* FA_ROPE_DYNAMIC_NTK, unless baked */
    const float *x_scale, *w_scale; /* as `scales` says; device memory */
} fa_linear_args;

/* ------------------------------------------------------------------------------------------------
 * FA_OP_CROSS_ATTENTION: an attention block with its projections
 *
 *     q = rotate(x_query W_q^T + b_q)     k = rotate(x_kv W_k^T + b_k)     v = x_kv W_v^T + b_v
 *     out = attention(q, k, v) W_out^T + b_out
 *
 * x_query is [B, Tq, C], x_kv [B, Tk, C], out [B, Tq, C]; q has heads_q heads of head_dim, k and v
 * heads_k. The weights are [out, in], as layers store them: W_q [heads_q * D, C], W_k and W_v
 * [heads_k * D, C], W_out [C, heads_q * D]. attention is that of FA_OP_ATTENTION; rotate that of
 * FA_OP_ROPE, of the first rotary_dim elements of each head, with query n at position_offset_q + n
 * and key n at position_offset_k + n, in every batch.
 * The streams may be one, which is self-attention. Vaswani et al., "Attention Is All You Need"
 * (2017), section 3.2.2; Su et al., "RoFormer" (2021).
 *
 * Sums are float32, f32 is multiplied to float32 accuracy; q, k, v and the heads' outputs are
 * rounded to the storage type once. Results are bitwise reproducible.
 *
 * Forms. FA_CROSS_WHOLE computes all of it. Where the keys stay, as those of an encoder while a
 * decoder writes, FA_CROSS_KEYS computes k and v once, and FA_CROSS_QUERIES the rest from them. The
 * forms and plans differ in no more than the order of their sums.
 *
 * Workspace: q, k, v and the heads' outputs are there between the steps, and what orders the steps
 * of FA_CROSS_ONE_LAUNCH. Ask fa_workspace_size. It must be zero before the first launch that uses
 * it and is left ready for the next; two launches that may run at once need two. FA_CROSS_KEYS
 * needs none.
 *
 * All device memory belongs to the caller and must stay valid until the launch has run. Errors of a
 * spec: VALUE, SIZE, LIMIT, HEAD_RATIO, ROTARY_DIM, UNSUPPORTED. Errors of a launch: NULL_POINTER,
 * MISALIGNED, SIZE, LIMIT, STRIDE, ALIAS, BAKED, GEOMETRY, WORKSPACE.
 * --------------------------------------------------------------------------------------------- */

typedef enum fa_cross_form {
    FA_CROSS_WHOLE = 0,   /* x_query and x_kv to out */
    FA_CROSS_QUERIES = 1, /* x_query, and k and v as FA_CROSS_KEYS wrote them, to out */
    FA_CROSS_KEYS = 2,    /* x_kv to k and v */
} fa_cross_form;

/* How the whole is launched. What a kernel does is in fa_kernel_info_t.plan. */
typedef enum fa_cross_plan {
    FA_CROSS_AUTO = 0,         /* FEW_LAUNCHES: measured in graphs, it never took more time */
    FA_CROSS_ONE_LAUNCH = 1,   /* blocks wait for each other between the steps */
    FA_CROSS_FEW_LAUNCHES = 2, /* a launch for the projections, the attention, and the output */
} fa_cross_plan;

typedef struct fa_cross_attention_spec {
    fa_dtype dtype; /* of everything but tables */
    fa_cross_form form;
    fa_cross_plan plan; /* only with FA_CROSS_WHOLE */
    fa_attention_mask mask;
    bool bias;     /* b_q, b_k and b_v are added, as far as they are used */
    bool bias_out; /* b_out is added */
    fa_kv_rotation rotation;
    fa_rope_angles angles;
    int32_t model_dim;  /* C, baked or FA_DYNAMIC */
    int32_t heads_q;    /* H and G: always baked, but H is not used with FA_CROSS_KEYS; H is a */
    int32_t heads_k;    /* multiple of G */
    int32_t head_dim;   /* D: 1 to 256, even with a rotation; always baked */
    int32_t rotary_dim; /* even, at most head_dim; 0: head_dim */
    int32_t batch;      /* this and the next two: baked, or FA_DYNAMIC */
    int32_t seqlen_q;   /* not used with FA_CROSS_KEYS */
    int32_t seqlen_k;
    double scale;            /* of the scores; 0: 1 / sqrt(head_dim); otherwise positive */
    double dropout;          /* probability; only 0, which is none, is supported */
    double base;             /* 0: 10000; otherwise > 1, finite; used with FA_ROPE_COMPUTED alone */
    fa_rope_scaling scaling; /* FA_ROPE_COMPUTED; attention_factor also FA_ROPE_FREQUENCIES */
} fa_cross_attention_spec;

typedef struct fa_cross_attention_args {
    /* stride_head of the first three is not used. */
    fa_tensor x_query, x_kv; /* [B, Tq, C] and [B, Tk, C], read only; may be one */
    fa_tensor out;           /* [B, Tq, C], overlaps nothing else */
    fa_tensor k, v;          /* [B, Tk, heads_k, D]: KEYS writes, QUERIES reads them */
    fa_matrix w_q, w_k, w_v, w_out;
    const void *b_q, *b_k, *b_v, *b_out; /* [heads * D] and [C] */
    /* Sizes. Those that the spec bakes may be left 0; if set they must agree. No batch, no query
     * or no model_dim is empty work; without keys the heads' outputs are 0. */
    int32_t batch, seqlen_q, seqlen_k, model_dim;
    int32_t position_offset_q, position_offset_k; /* may be negative with computed angles */
    const float *cos, *sin;  /* FA_ROPE_TABLES; device memory, [max_position, rotary_dim / 2] */
    int32_t max_position;    /* rows of the tables. A token outside them gives NaN */
    const float *inv_freq;   /* FA_ROPE_FREQUENCIES; device memory, [rotary_dim / 2] */
    int32_t sequence_length; /* FA_ROPE_DYNAMIC_NTK, unless baked */
} fa_cross_attention_args;

/* ------------------------------------------------------------------------------------------------
 * FA_OP_TEMPLATE: the user's own CUDA source, through the same cache, warm-up and launch path
 *
 * Each constant becomes a typed declaration in front of the source: `inline constexpr` of type int
 * (long long where the value needs it), double or bool; for FA_CONSTANT_DTYPE a type alias; for
 * FA_CONSTANT_IDENTIFIER a macro that expands to the identifier. The macro FAJIT_INSTANCE is
 * defined, so that a source can carry defaults for compiling alone. Nothing a constant holds can
 * become other text. The project's device headers ("fajit/dtype.cuh", ...) can be included.
 * --------------------------------------------------------------------------------------------- */

typedef enum fa_constant_type {
    FA_CONSTANT_INT = 0,
    FA_CONSTANT_FLOAT = 1,
    FA_CONSTANT_BOOL = 2,
    FA_CONSTANT_IDENTIFIER = 3,
    FA_CONSTANT_DTYPE = 4,
} fa_constant_type;

typedef struct fa_constant {
    /* A C identifier: none of C++'s keywords and reserved names, nor of fa_*, FAJIT_*, fajit. */
    const char *name;
    fa_constant_type type;
    int64_t int_value;      /* INT; BOOL: 0 or 1; DTYPE: an fa_dtype */
    double float_value;     /* FLOAT: finite */
    const char *identifier; /* IDENTIFIER: a C identifier, "::" allowed between parts */
} fa_constant;

typedef struct fa_header {
    const char *name; /* as in #include "name" */
    const char *text;
} fa_header;

typedef struct fa_template_spec {
    const char *name;   /* for messages and compiler diagnostics, e.g. "scale.cu" */
    const char *source; /* CUDA C++17 */
    /* The __global__ function: "scale", or an instance such as "scale<float, 4>". */
    const char *entry;
    const fa_constant *constants;
    size_t constant_count;
    const fa_header *headers; /* every header the source includes; there is no include path */
    size_t header_count;
    const char *const *options; /* NVRTC options; no include paths, architectures or file outputs */
    size_t option_count;
    uint32_t smem_bytes;      /* the largest dynamic shared memory of any launch, opted into once */
    uint32_t cluster[3];      /* blocks in a cluster, x y z; all 0: none; else 0 is 1. sm_90 on */
    bool cooperative;         /* grid-wide synchronization; all blocks resident at once */
    bool programmatic_launch; /* may start before its predecessor in the stream has ended (sm_90) */
} fa_template_spec;

typedef struct fa_param {
    const void *data; /* host memory holding the parameter's value */
    size_t size;      /* bytes; checked against the compiled kernel where the driver can tell */
} fa_param;

typedef struct fa_template_args {
    uint32_t grid[3];    /* blocks, x y z; 0 counts as 1 for y and z; grid[0] == 0 is empty work */
    uint32_t block[3];   /* threads of a block, x y z; 0 counts as 1 for y and z */
    uint32_t smem_bytes; /* dynamic shared memory, at most the spec's */
    const fa_param *params;
    size_t param_count; /* at most FA_MAX_PARAMS */
} fa_template_args;

#define FA_MAX_PARAMS 256

/* ------------------------------------------------------------------------------------------------
 * Spec and args: tagged structs
 * --------------------------------------------------------------------------------------------- */

/* What to compile: everything that is baked. Only the member of `op` is read. */
typedef struct fa_spec {
    size_t size; /* sizeof(fa_spec) */
    fa_op op;
    union {
        fa_template_spec tmpl;
        fa_rope_spec rope;
        fa_kv_update_spec kv_update;
        fa_lowrank_kv_spec lowrank_kv;
        fa_attention_spec attention;
        fa_linear_spec linear;
        fa_cross_attention_spec cross_attention;
    };
} fa_spec;

/* What to run on: pointers and sizes of one launch. Only the member of `op` is read. */
typedef struct fa_args {
    size_t size;     /* sizeof(fa_args) */
    fa_op op;        /* that of the kernel */
    void *workspace; /* device memory, 256-byte aligned, when fa_workspace_size says more than 0 */
    size_t workspace_bytes;
    union {
        fa_template_args tmpl;
        fa_rope_args rope;
        fa_kv_update_args kv_update;
        fa_lowrank_kv_args lowrank_kv;
        fa_attention_args attention;
        fa_linear_args linear;
        fa_cross_attention_args cross_attention;
    };
} fa_args;

/* clang-format off */
#ifdef __cplusplus /* C++ has designated initializers from C++20 on only */
#define FA_SPEC_INIT(operation) {sizeof(fa_spec), (operation)}
#define FA_ARGS_INIT(operation) {sizeof(fa_args), (operation)}
#define FA_CONTEXT_OPTIONS_INIT {sizeof(fa_context_options)}
#else
#define FA_SPEC_INIT(operation) {.size = sizeof(fa_spec), .op = (operation)}
#define FA_ARGS_INIT(operation) {.size = sizeof(fa_args), .op = (operation)}
#define FA_CONTEXT_OPTIONS_INIT {.size = sizeof(fa_context_options)}
#endif
/* clang-format on */

/* The parameter tables: the same data validates specs, reads `key=value` text and manifests, and
 * documents the operation. Static storage. */
typedef enum fa_param_kind {
    FA_PARAM_INT = 0,  /* int32_t */
    FA_PARAM_ENUM = 1, /* an enum of this header */
    FA_PARAM_BOOL = 2,
    FA_PARAM_REAL = 3, /* double */
} fa_param_kind;

typedef struct fa_param_info {
    const char *name;  /* the member of the operation's spec struct */
    const char *alias; /* short form, e.g. "B" for batch; NULL: none */
    fa_param_kind kind;
    size_t offset;            /* of the member in fa_spec */
    bool dynamic;             /* INT: 0 (FA_DYNAMIC) leaves it to the launch */
    double min, max;          /* INT and REAL: legal range, besides 0 where 0 has a meaning */
    const char *const *names; /* ENUM: legal values, NULL-terminated, in the order of the enum */
    const char *text;         /* one line of documentation */
} fa_param_info;

typedef struct fa_op_info_t {
    const char *name; /* "rope" */
    const char *text;
    const fa_param_info *params;
    size_t param_count;
} fa_op_info_t;

/* Describes an operation. FA_ERR_UNKNOWN_NAME when there is none of this number; numbers are
 * contiguous from 1. */
FA_API fa_status fa_op_info(fa_op op, fa_op_info_t *info);

/* Sets one member of `spec` (whose op is set) from text: fa_spec_set(&s, "dtype", "bf16"), or by
 * alias: fa_spec_set(&s, "D", "64"). FA_ERR_UNKNOWN_NAME lists the legal keys, FA_ERR_VALUE the
 * legal values. Not for FA_OP_TEMPLATE (FA_ERR_UNSUPPORTED). Pure: no CUDA, no locale. */
FA_API fa_status fa_spec_set(fa_spec *spec, const char *key, const char *value);

/* ------------------------------------------------------------------------------------------------
 * Context
 * --------------------------------------------------------------------------------------------- */

typedef enum fa_log_level {
    FA_LOG_DEFAULT = 0, /* as FA_LOG_WARNING */
    FA_LOG_ERROR = 1,
    FA_LOG_WARNING = 2,
    FA_LOG_INFO = 3,  /* one line for each kernel compiled or loaded */
    FA_LOG_DEBUG = 4, /* directories, misses, locks, evictions, which NVRTC compiled */
} fa_log_level;

/* Called with one line, without a newline, possibly from several threads at once. Must not call the
 * library. */
typedef void (*fa_log_callback)(void *user, fa_log_level level, const char *line);

/* Use the context current on the calling thread; device 0's primary context when there is none. */
#define FA_DEVICE_CURRENT (-1)

/* FA_CONTEXT_OPTIONS_INIT: device 0 and every default. (No options at all, NULL, mean
 * FA_DEVICE_CURRENT.) */
typedef struct fa_context_options {
    size_t size; /* sizeof(fa_context_options) */

    /* What to compile for. */
    int32_t device; /* ordinal, or FA_DEVICE_CURRENT; its primary context is used and kept */
    struct CUctx_st *cuda_context; /* the caller's own context instead; must outlive this one */
    bool offline;     /* no device: compiles for `arch` and fills caches; needs no CUDA driver */
    const char *arch; /* e.g. "sm_90a"; NULL: the device's, with its feature suffix */

    /* Cache. NULL and 0 stand for the environment variable named, then for what follows it. */
    const char *cache_dir; /* to write to: FAJIT_CACHE_DIR, $XDG_CACHE_HOME/fajit, ~/.cache/fajit */
    const char *cache_path;   /* read only, looked in first, ':' between: FAJIT_CACHE_PATH, none */
    uint64_t cache_max_bytes; /* least recently used entries go: FAJIT_CACHE_MAX_BYTES, 1 GiB */
    bool no_disk_cache;       /* neither read nor write any directory */
    uint32_t lock_timeout_ms; /* wait for another process's compile, then do it here: 30000 */

    uint32_t compile_jobs;     /* compiles at once; 0: by cores and half the memory, 512 MB each */
    uint32_t max_idle_kernels; /* loaded kernels kept although nobody holds them; 0: 16384 */

    fa_log_callback log; /* NULL: silent */
    void *log_user;
    fa_log_level log_level;
} fa_context_options;

/* Creates a context. options NULL: FA_DEVICE_CURRENT and defaults. The CUDA driver is opened now,
 * unless offline: FAJIT_CUDA_LIBRARY, else libcuda.so.1 or libcuda.so by the loader's search. NVRTC
 * is looked for by the first request that is not in memory, and loaded by the first that has to be
 * compiled: FAJIT_NVRTC_LIBRARY, else libnvrtc.so.13 or .12 in the lib64 and lib folders of
 * $CUDA_HOME and $CUDA_PATH, the folders of LD_LIBRARY_PATH, /usr/local/cuda, the system's library
 * folders, and last by the loader's search. A cache directory that cannot be used is a warning, not
 * an error. Errors: CUDA_MISSING, NO_DEVICE, CUDA, ARCH, VALUE, LIMIT, STRUCT_SIZE, OUT_OF_MEMORY,
 * FORKED. */
FA_API fa_status fa_context_create(const fa_context_options *options, fa_context **out);

/* Drops the caller's hold. Futures not yet waited for end with FA_ERR_CANCELLED unless running;
 * kernels still held stay valid until released. NULL is ignored. */
FA_API void fa_context_destroy(fa_context *ctx);

typedef struct fa_context_info_t {
    size_t size;             /* sizeof(fa_context_info_t), set by the caller */
    const char *arch;        /* "sm_90a" */
    int32_t device;          /* ordinal; -1 offline */
    const char *device_name; /* "" offline */
    int32_t driver_version;  /* CUDA version of the driver, 13000 for 13.0; 0 offline */
    const char *driver_path; /* the library that was opened; "" offline */
    int32_t nvrtc_version;   /* 13000 for 13.0; 0: not found, nvrtc_error says why */
    const char *nvrtc_path;
    const char *nvrtc_id;    /* tells builds of one version apart; part of every key */
    const char *nvrtc_error; /* "" when NVRTC is there */
    const char *cache_dir;   /* the directory to write to; "" when there is none */
    const char *cache_error; /* why nothing is kept on disk, as far as known now; "" */
    const char *cache_path;  /* the read-only directories in use, ':' between */
    uint64_t cache_max_bytes;
    uint32_t compile_jobs;
    bool sealed;
} fa_context_info_t;

/* Describes a context; opens NVRTC. Strings live as long as the context. */
FA_API fa_status fa_context_info(fa_context *ctx, fa_context_info_t *info);

typedef struct fa_device_info_t {
    size_t size; /* sizeof(fa_device_info_t), set by the caller */
    char name[256];
    char arch[16]; /* default architecture, "sm_90a" */
    int32_t compute_major, compute_minor;
    int32_t multiprocessors;
    uint64_t memory_bytes;
    uint32_t smem_per_block_bytes; /* with opt-in */
} fa_device_info_t;

/* Describes device `ordinal` without making a context on it. FA_ERR_NO_DEVICE past the last one. */
FA_API fa_status fa_device_info(int32_t ordinal, fa_device_info_t *info);

/* From now on nothing is compiled: a request that is in neither memory nor a cache directory fails
 * at once with FA_ERR_SEALED instead of stalling the caller. Cannot be undone. */
FA_API fa_status fa_seal(fa_context *ctx);

/* Counters since the context was created. */
typedef struct fa_stats {
    size_t size; /* sizeof(fa_stats), set by the caller */
    uint64_t memory_hits, disk_hits, compiles, compile_errors;
    uint64_t waits;         /* requests that waited for another thread's or process's compile */
    uint64_t lock_timeouts; /* waits given up, compiled here instead */
    uint64_t repairs;       /* damaged or foreign entries replaced */
    uint64_t publish_failures;
    uint64_t evictions;
    uint64_t launches_refused;    /* launches that failed validation */
    uint64_t compile_ns, load_ns; /* time spent in NVRTC and in loading, summed over threads */
    uint64_t bytes_read, bytes_written;
    uint64_t kernels_loaded; /* at this moment */
} fa_stats;

FA_API fa_status fa_stats_get(const fa_context *ctx, fa_stats *stats);

/* ------------------------------------------------------------------------------------------------
 * Compile
 * --------------------------------------------------------------------------------------------- */

/* Gives the kernel for `spec`: from memory (under 200 ns), from a cache directory, or by compiling
 * it. Concurrent requests for one kernel, in this process or others, compile it once. On a context
 * with a device the kernel is fully loaded on return: nothing is left for the first launch. On an
 * offline context it can be inspected but not launched.
 * The kernel belongs to the caller; release it with fa_kernel_release.
 * Errors: those of the spec, COMPILE, NVRTC_MISSING, NVRTC, SEALED, ARCH, SHARED_MEMORY, CUDA,
 * DEVICE_MEMORY, OUT_OF_MEMORY, CAPTURE, FORKED. A failure is not remembered: a retry tries again.
 */
FA_API fa_status fa_compile(fa_context *ctx, const fa_spec *spec, fa_kernel **out);

/* Starts fa_compile on one of the context's threads. The spec is copied. The future belongs to the
 * caller; a spec that is refused is reported here, everything else by fa_future_wait. */
FA_API fa_status fa_compile_async(fa_context *ctx, const fa_spec *spec, fa_future **out);

/* Whether fa_future_wait would return at once. NULL is ready. */
FA_API bool fa_future_ready(const fa_future *future);

/* Waits for the compile and gives what fa_compile would have given: a kernel of its own to each
 * call. The message of a failure becomes this thread's fa_last_error. */
FA_API fa_status fa_future_wait(fa_future *future, fa_kernel **out);

/* Drops the caller's hold; a compile under way ends by itself and fills the caches. NULL is
 * ignored. */
FA_API void fa_future_release(fa_future *future);

typedef enum fa_origin {
    FA_ORIGIN_COMPILED = 0,
    FA_ORIGIN_DISK = 1,
    FA_ORIGIN_MEMORY = 2,
} fa_origin;

typedef struct fa_kernel_info_t {
    size_t size; /* sizeof(fa_kernel_info_t), set by the caller */
    fa_op op;
    const char *name; /* operation and constants in short, "rope f32 half D64 ..." */
    const char *arch;
    const char *entry;    /* the function's name in the cubin; of several one a line */
    const char *plan;     /* tiles, threads, vector width: how the work is laid out */
    fa_origin origin;     /* how the latest fa_compile that gave this kernel was answered */
    uint64_t compile_ns;  /* time NVRTC took, whenever that was */
    int32_t registers;    /* per thread; this and what follows: the most of its functions */
    uint32_t spill_bytes; /* spill stores plus loads, per thread; 0 in every built-in instance */
    uint32_t smem_bytes;  /* static plus the largest dynamic shared memory of a block */
    uint32_t max_threads; /* of a block; 0 on an offline context */
    const char *source;   /* what NVRTC was given, without the headers */
    const char *log;      /* what NVRTC said */
    const void *cubin;
    size_t cubin_bytes;
    const char *key;      /* 32 hexadecimal digits: the entry's file name */
    const char *key_text; /* what the key is the hash of */
} fa_kernel_info_t;

/* Describes a kernel. Everything pointed to lives as long as the kernel. */
FA_API fa_status fa_kernel_info(const fa_kernel *kernel, fa_kernel_info_t *info);

/* Drops the caller's hold. Work already launched is not affected as long as the context holds the
 * kernel idle; destroy the context only after such work has ended. NULL is ignored. */
FA_API void fa_kernel_release(fa_kernel *kernel);

typedef enum fa_text {
    FA_TEXT_SOURCE = 0, /* the instantiated source; needs neither NVRTC nor a GPU */
    FA_TEXT_PTX = 1,    /* compiled to PTX; not cached */
} fa_text;

/* Renders what a spec becomes. The text belongs to the caller; release it with free(). */
FA_API fa_status fa_render(fa_context *ctx, const fa_spec *spec, fa_text what, char **out);

/* ------------------------------------------------------------------------------------------------
 * Launch
 * --------------------------------------------------------------------------------------------- */

/* Checks `args`, then queues the kernel, or the few launches of its plan, on `stream`. Never compiles, allocates device memory,
 * synchronizes or takes a lock; may be called while the stream is being captured.
 * The stream must belong to the kernel's CUDA context. With no context current, the kernel's is
 * used for the call; with another one current, a NULL stream is refused with WRONG_CONTEXT.
 * Errors: those of the args, OFFLINE, WRONG_CONTEXT, FORKED, CUDA. Errors of the kernel's own
 * execution appear, as always in CUDA, at a later call of the driver. */
FA_API fa_status fa_launch(const fa_kernel *kernel, const fa_args *args, fa_stream stream);

/* Device memory, in bytes, that a launch with these args needs in args->workspace: 0 for most
 * operations. What it must hold before the first launch says the operation's own text. Pointers in
 * args are not looked at. Errors: those of the sizes. */
FA_API fa_status fa_workspace_size(const fa_kernel *kernel, const fa_args *args, size_t *bytes);

/* ------------------------------------------------------------------------------------------------
 * Warm-up and manifests
 * --------------------------------------------------------------------------------------------- */

typedef struct fa_warm_result {
    fa_status status;
    fa_origin origin;
    uint64_t ns;     /* from taking up the entry to having its kernel */
    char error[256]; /* the beginning of the message when status is not FA_OK */
} fa_warm_result;

/* Called after each entry, one call at a time, on the thread that called fa_warm. Returning false
 * cancels what has not started (FA_ERR_CANCELLED). Must not call the library. */
typedef bool (*fa_warm_progress)(void *user, size_t done, size_t total, size_t index,
                                 const fa_warm_result *result);

typedef struct fa_warm_options {
    size_t size;   /* sizeof(fa_warm_options) */
    uint32_t jobs; /* entries at once; 0: the context's compile_jobs */
    fa_warm_progress progress;
    void *progress_user;
    fa_warm_result *results; /* NULL, or room for `results_capacity` results, in entry order */
    size_t results_capacity;
} fa_warm_options;

typedef struct fa_warm_report {
    size_t total, from_memory, from_disk, compiled, failed;
    uint64_t ns; /* wall time */
} fa_warm_report;

/* Compiles or loads every spec and keeps the kernels idle in the context, so that a later
 * fa_compile of the same spec is a memory hit. Every entry is tried. Returns the status of the
 * first entry, in order, that failed; FA_OK when none did. options and report may be NULL. */
FA_API fa_status fa_warm(fa_context *ctx, const fa_spec *specs, size_t count,
                         const fa_warm_options *options, fa_warm_report *report);

/* fa_warm over the entries of a JSON manifest: {"fajit_manifest": 1, "kernels": [{"op": "rope",
 * "dtype": "f32", "head_dim": 64}, ...]}, keys as in the parameter tables. The file is read and
 * checked whole before anything is compiled. Errors: IO; MANIFEST with line and column. */
FA_API fa_status fa_warm_manifest(fa_context *ctx, const char *path, const fa_warm_options *options,
                                  fa_warm_report *report);

/* Writes the manifest of every spec this context was successfully asked for, in the order of the
 * first requests. The file is replaced as one unit. Errors: IO, OUT_OF_MEMORY. */
FA_API fa_status fa_manifest_write(fa_context *ctx, const char *path);

/* ------------------------------------------------------------------------------------------------
 * Cache directories
 * --------------------------------------------------------------------------------------------- */

typedef struct fa_cache_entry {
    const char *path;
    const char *key;  /* 32 hexadecimal digits */
    const char *name; /* as in fa_kernel_info_t; "" when the entry is damaged */
    const char *arch;
    uint64_t bytes;
    int64_t used_unix_s; /* last use, seconds since 1970 */
    bool writable_layer;
    bool damaged;        /* fa_cache_verify only */
    const char *problem; /* what is wrong; "" when nothing is */
} fa_cache_entry;

/* Returning false ends the walk. The entry is valid during the call. Must not call the library. */
typedef bool (*fa_cache_visitor)(void *user, const fa_cache_entry *entry);

/* Visits every entry of every layer in use. verify also reads each one whole and checks it, and
 * removes damaged ones from the writable directory when `remove_damaged` is set. */
FA_API fa_status fa_cache_list(fa_context *ctx, fa_cache_visitor visitor, void *user);
FA_API fa_status fa_cache_verify(fa_context *ctx, bool remove_damaged, fa_cache_visitor visitor,
                                 void *user);

/* Entries and bytes in the writable directory. */
FA_API fa_status fa_cache_size(fa_context *ctx, uint64_t *entries, uint64_t *bytes);

/* Removes every entry from the writable directory; kernels in memory stay. */
FA_API fa_status fa_cache_clear(fa_context *ctx);

#ifdef __cplusplus
}
#endif
#endif /* FAJIT_H */
