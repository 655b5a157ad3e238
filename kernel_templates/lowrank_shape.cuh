// What all of lowrank_kv.cu works on, made of the constants C of a kernel: the launch parameters,
// sizes, and where tokens and columns lie.
#ifndef FAJIT_LOWRANK_SHAPE_CUH
#define FAJIT_LOWRANK_SHAPE_CUH

#include "fajit/angles.cuh"
#include "fajit/dtype.cuh"
#include "fajit/phase.cuh"
#include "fajit/token_rows.cuh"

namespace fajit {

// A step of STEPS: both products with the latent in shared memory, hidden to latent, latent to K
// and V, or the norm of a latent where it lies.
inline constexpr int LOWRANK_WHOLE = 0, LOWRANK_DOWN = 1, LOWRANK_UP = 2, LOWRANK_NORM = 3;

inline constexpr int LOWRANK_WARPS = 8; // of a block, unless it is one of linear.cuh's

// [outer, token, row] and [outer, head, token, row]; strides in elements. Outer is a
// batch or a page.
template <class Element> struct lowrank_rows {
    Element *data;
    i64 outer, token;

    __device__ __forceinline__ Element *at(i64 at_outer, i64 at_token) const
    {
        return data + (at_outer * outer + at_token * token);
    }
};

template <class Element> struct lowrank_heads {
    Element *data;
    i64 outer, head, token;

    __device__ __forceinline__ Element *at(i64 at_outer, i64 at_head, i64 at_token) const
    {
        return data + (at_outer * outer + at_head * head + at_token * token);
    }
};

// Mirrored by lowrank_params in src/ops/lowrank_kv.h.
template <class Element> struct lowrank_params {
    lowrank_rows<Element> hidden;     // [batch, seqlen, model_dim]
    lowrank_rows<Element> w_down;     // [model_dim, RANK]; token: a row
    lowrank_heads<Element> w_up[2];   // of K, of V: [RANK, heads, head_dim]; token: a row
    lowrank_rows<Element> latent_in;  // of the second product: [batch, seqlen, RANK]
    lowrank_rows<Element> latent_out; // of the first: the same, or a cache of it
    lowrank_heads<Element> out[2];    // of K, of V
    lowrank_rows<Element> rope;       // [batch, seqlen, ROPE_DIM]
    lowrank_rows<Element> rope_out;   // ROPE_ONCE
    const void *norm;                 // [RANK]
    const void *positions;            // may be null unless TO_CACHE
    i64 positions_stride;
    const void *slots;
    i64 slot_count;
    const int *block_table;
    i64 block_table_stride;
    const float *cos, *sin; // [max_position, ROPE_DIM / 2]
    const float *inv_freq;
    unsigned *errors;
    unsigned char *superseded; // of two launches: tokens that a later one supersedes
    frequency_rule rule;       // unless RULE_BAKED
    int batch, seqlen, model_dim, heads, head_dim, head_dim_v;
    int position_offset, max_position;
    int entries, pages, max_pages; // of the cache; entries of a row or of a page
    // Bytes of an access: 16, 4, or an element.
    int hidden_bytes, w_down_bytes, w_up_bytes[2], latent_bytes;
    // Elements of a store: what rows, heads and their places are multiples of, up to 16 bytes.
    int latent_width, out_width[2];
};

// S of everything below and in the other headers.
template <class C> struct lowrank_shape : C {
    using Element = typename C::Element;
    using params = lowrank_params<Element>;
    static constexpr int ELEMENT = sizeof(Element);
    static constexpr bool HAS_DOWN = C::STEP == LOWRANK_WHOLE || C::STEP == LOWRANK_DOWN,
                          HAS_UP = C::STEP == LOWRANK_WHOLE || C::STEP == LOWRANK_UP;
    // Tokens go where they go for good, and are no rows of the workspace.
    static constexpr bool PLACES = C::FORM == C::STEP || C::STEP == LOWRANK_UP ||
                                   (C::FORM == LOWRANK_DOWN && C::STEP == LOWRANK_NORM);
    static constexpr bool MAY_REPEAT =
        C::TO_CACHE && !C::UNIQUE && (C::CACHE == CACHE_SLOTS || C::SEQLEN != 1);
    // Each block of LOWRANK_UP would search all tokens behind its own: the launch
    // before does it once.
    static constexpr bool MARKS = MAY_REPEAT && C::FORM == LOWRANK_WHOLE && C::STEP == LOWRANK_DOWN,
                          IS_MARKED =
                              MAY_REPEAT && C::FORM == LOWRANK_WHOLE && C::STEP == LOWRANK_UP;

    static __device__ __forceinline__ int seqlen_of(const params &p)
    {
        return C::SEQLEN ? C::SEQLEN : p.seqlen;
    }

    static __device__ __forceinline__ i64 tokens_of(const params &p)
    {
        return static_cast<i64>(C::BATCH ? C::BATCH : p.batch) * seqlen_of(p);
    }

    static __device__ __forceinline__ int model_dim_of(const params &p)
    {
        return C::MODEL_DIM ? C::MODEL_DIM : p.model_dim;
    }

    static __device__ __forceinline__ int heads_of(const params &p)
    {
        return C::HEADS ? C::HEADS : p.heads;
    }

    // Part 0 is K, 1 is V.
    static __device__ __forceinline__ int head_dim_of(const params &p, int part)
    {
        return part ? (C::HEAD_DIM_V ? C::HEAD_DIM_V : p.head_dim_v)
                    : (C::HEAD_DIM ? C::HEAD_DIM : p.head_dim);
    }

    static __device__ __forceinline__ int columns_of(const params &p, int part)
    {
        return heads_of(p) * head_dim_of(p, part);
    }

    // Elements that a batch's rows lie apart besides.
    static __device__ __forceinline__ i64 jump_of(const params &p, const lowrank_rows<Element> &x)
    {
        return (C::BATCH ? C::BATCH : p.batch) == 1 ? 0 : x.outer - seqlen_of(p) * x.token;
    }

    // K or V from column `column` on, counted through the heads: rows of tokens.
    static __device__ __forceinline__ lowrank_rows<Element> output_from(const params &p, int part,
                                                                        int column)
    {
        const lowrank_heads<Element> &out = p.out[part];
        const int dim = head_dim_of(p, part), head = column / dim;
        return {out.data + head * out.head + (column - head * dim), out.outer, out.token};
    }

    static __device__ __forceinline__ Element *out_at(const params &p, int part,
                                                      const token_row &to, int column)
    {
        return output_from(p, part, column).at(to.outer, to.entry);
    }

    struct token_rule {
        static constexpr int cache = C::CACHE;
        static constexpr bool positions_wide = C::POSITIONS_WIDE, slots_wide = C::SLOTS_WIDE;
        static constexpr bool needs_position = C::ROTATION != 0;
        static constexpr bool table_limits = C::ROTATION != 0 && C::ANGLES == ANGLES_TABLES;
        static constexpr bool into_cache = C::TO_CACHE;
        static constexpr bool may_repeat = MAY_REPEAT, is_marked = IS_MARKED;

        static __device__ __forceinline__ int batches(const params &p)
        {
            return C::BATCH ? C::BATCH : p.batch;
        }
        static __device__ __forceinline__ int tokens(const params &p)
        {
            return seqlen_of(p);
        }
        static __device__ __forceinline__ int entries(const params &p)
        {
            return p.entries;
        }
    };

    // Shared memory for the tokens of a block, and for what is needed to find them.
    static constexpr int TOKEN_BYTES = 56;
    static_assert(sizeof(token_row) + TOKEN_ROOM_BYTES <= TOKEN_BYTES, "room for both");

    // Where the ROWS tokens from `first` on go: all threads of the block come together. `counts`:
    // this is the first of the blocks that have these tokens.
    template <int ROWS>
    static __device__ __forceinline__ void find_rows(const params &p, i64 first, bool counts,
                                                     token_row *rows)
    {
        unsigned char *room = reinterpret_cast<unsigned char *>(rows + ROWS);
        find_token_rows<token_rule, PLACES, ROWS>(p, first, counts, rows, room);
        if constexpr (MARKS)
            if (counts)
                mark_token_rows<token_rule, ROWS>(p, first, room);
    }
};

} // namespace fajit

#endif
