// One of lowrank_kv.cu's products as linear_block makes it: of many tokens, or of many columns. S
// is a lowrank_shape, whose STEP is LOWRANK_DOWN or LOWRANK_UP and whose PRODUCT is laid out as a
// linear_step.
//
// Blocks count the tiles of the latent, or those of K and then those of V.
#ifndef FAJIT_LOWRANK_PRODUCT_CUH
#define FAJIT_LOWRANK_PRODUCT_CUH

#include "fajit/linear.cuh"
#include "fajit/lowrank_finish.cuh"
#include "fajit/lowrank_shape.cuh"
#include "fajit/order.cuh"

namespace fajit {

template <class S> struct lowrank_product_constants {
    using Element = typename S::Element;
    using Addend = Element;
    using Output = Element;
    using Jumps = linear_jumps_by_k;
    static constexpr i64 TOKENS = static_cast<i64>(S::BATCH) * S::SEQLEN;
    static constexpr int M = TOKENS < 0x7fff0000 ? static_cast<int>(TOKENS) : 0,
                         K = S::STEP == LOWRANK_DOWN ? S::MODEL_DIM : S::RANK,
                         N = S::STEP == LOWRANK_DOWN        ? S::RANK
                             : S::HEAD_DIM == S::HEAD_DIM_V ? S::HEADS * S::HEAD_DIM
                                                            : 0;
    static constexpr int ARITHMETIC = S::PRODUCT.arithmetic, TILE_M = S::PRODUCT.tile_m,
                         TILE_N = S::PRODUCT.tile_n, STAGES = S::PRODUCT.stages,
                         WARPS_M = S::PRODUCT.warps_m, WARPS_N = S::PRODUCT.warps_n,
                         WARPS_K = S::PRODUCT.warps_k, VECTOR_WIDTH = S::PRODUCT.vector_width;
    static constexpr bool WEIGHTS_BY_K = true, FRESH = false, MAY_SPLIT = false;
    // Tokens of the caller's lie as batches do, those of the workspace without a gap.
    static constexpr bool X_JUMPS = S::STEP == LOWRANK_DOWN || S::FORM == LOWRANK_UP,
                          Y_JUMPS = false; // finishes by itself
    // Of the launch before it, the second of two steps reads the latent, and marks of tokens if
    // there are any: these are looked at before the first loads.
    static constexpr bool WAITS_LATE =
        S::FORM == LOWRANK_WHOLE && S::STEP == LOWRANK_UP && !S::IS_MARKED;
    static constexpr int WAIT = WAITS_LATE ? LINEAR_WAITS_FOR_X : LINEAR_WAITS_NOT;
    static constexpr int ROTATION = 0, HEAD_DIM = 0, ROTARY_DIM = 0, ROTATED = 0;
};

template <class S> struct lowrank_product {
    using Element = typename S::Element;
    using params = typename S::params;
    using block = linear_block<lowrank_product_constants<S>>;
    using memory = typename block::memory;
    static constexpr bool DOWN = S::STEP == LOWRANK_DOWN;
    static constexpr int TILE_M = S::PRODUCT.tile_m, TILE_N = S::PRODUCT.tile_n,
                         THREADS = block::THREADS;
    // The tokens behind what linear_block needs.
    static constexpr int ROWS_AT = (block::SHARED_BYTES + 15) / 16 * 16,
                         SHARED_BYTES = ROWS_AT + TILE_M * S::TOKEN_BYTES;
    static_assert(SHARED_BYTES == S::PRODUCT.shared_bytes,
                  "host and kernel disagree about shared memory");

    const params &p;
    const token_row *rows;
    int part; // 0: the latent, or K; 1: V

    // What linear_block works on.
    __device__ __forceinline__ typename block::params product() const
    {
        typename block::params q{};
        const lowrank_rows<Element> &x = DOWN ? p.hidden : p.latent_in;
        q.x = {x.data, x.token};
        if constexpr (lowrank_product_constants<S>::X_JUMPS)
            q.x_jumps = {S::seqlen_of(p), S::jump_of(p, x)};
        q.x_width = DOWN ? p.hidden_bytes : p.latent_bytes;
        q.m = static_cast<int>(S::tokens_of(p));
        q.k = DOWN ? S::model_dim_of(p) : S::RANK;
        if constexpr (DOWN) {
            q.w = {p.w_down.data, p.w_down.token};
            q.w_width = p.w_down_bytes;
            q.n = S::RANK;
        } else {
            const int dim = S::head_dim_of(p, part);
            q.w = {p.w_up[part].data, p.w_up[part].token};
            q.w_jumps = {dim, p.w_up[part].head - dim};
            q.w_width = p.w_up_bytes[part];
            q.n = S::columns_of(p, part);
        }
        return q;
    }

    // Stores sums as they are (linear_each_unit).
    template <int V> struct finisher {
        static constexpr int unit_columns = V, rows_at_once = V == 1 ? 1 : LINEAR_ROWS_AT_ONCE;

        struct columns {
            int column;
            bool exist;
            lowrank_rows<Element> to; // where they lie in the rows of tokens
        };

        struct unit {
            bool exists;
            Element *to;
            chunk<V *static_cast<int>(sizeof(Element))> x;
        };

        const lowrank_product &product;
        const memory &sums;
        int first, n; // column where the tile begins, and how many there are of all

        __device__ __forceinline__ columns at(int column) const
        {
            const int n_in_all = first + column;
            return {column, n_in_all < n, product.output_from(n_in_all)};
        }

        __device__ __forceinline__ void make(const columns &c, unit &mine, int row) const
        {
            const token_row &token = product.rows[row];
            float x[V];
            mine.exists = c.exist && token.is_written();
            mine.to = c.to.at(token.outer, token.entry);
            read_sums(x, sums, row, c.column);
            mine.x = pack<Element, V>(x);
        }

        __device__ __forceinline__ void put(const columns &, const unit &mine) const
        {
            if (mine.exists)
                store(mine.to, mine.x);
        }
    };

    // The latent, K or V from column `column` on.
    __device__ __forceinline__ lowrank_rows<Element> output_from(int column) const
    {
        if constexpr (DOWN)
            return {p.latent_out.data + column, p.latent_out.outer, p.latent_out.token};
        else
            return S::output_from(p, part, column);
    }

    template <int V>
    __device__ __forceinline__ void finish(const linear_place &b, const memory &sums, int n) const
    {
        linear_each_unit<typename block::shape>(finisher<V>{*this, sums, b.n, n});
    }

    static __device__ __forceinline__ int tiles_of(const params &p, int columns)
    {
        return static_cast<int>((S::tokens_of(p) + TILE_M - 1) / TILE_M) *
               ((columns + TILE_N - 1) / TILE_N);
    }

    static __device__ __forceinline__ void run(const params &p, unsigned char *shared)
    {
        constexpr int V = S::PRODUCT.vector_width;
        if constexpr (!lowrank_product_constants<S>::WAITS_LATE) {
            // It may have written what is read here, or read what is written.
            wait_for_predecessor();
            let_successor_start();
        }
        token_row *rows = reinterpret_cast<token_row *>(shared + ROWS_AT);
        int tile = static_cast<int>(blockIdx.x), part = 0;
        if constexpr (!DOWN) {
            const int of_k = tiles_of(p, S::columns_of(p, 0));
            part = tile >= of_k;
            tile -= part ? of_k : 0;
        }
        const lowrank_product mine{p, rows, part};
        const typename block::params q = mine.product();
        const linear_place b = block::shape::place_of(q, tile, 0);
        const bool first = b.n == 0 && part == 0; // of the blocks that have these tokens
        S::template find_rows<TILE_M>(p, b.m, first, rows);
        if constexpr (S::ROPE_DIM != 0 && S::PLACES)
            if (first)
                lowrank_rope<S>::template put_all<TILE_M, THREADS>(p, rows);
        block::run(q, tile, 0, shared, [&](const linear_place &at, const memory &sums) {
            if (V > 1 && (DOWN ? p.latent_width : p.out_width[part]) >= V)
                mine.template finish<V>(at, sums, q.n);
            else
                mine.template finish<1>(at, sums, q.n);
        });
    }
};

} // namespace fajit

#endif
