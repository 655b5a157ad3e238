// Tiles of matrices in shared memory: rows of 16-byte chunks, each row's chunks permuted so that
// what 8 neighbouring rows have in one column lies in different banks. ldmatrix then reads a tile,
// and copies write it, without bank conflicts, and no padding is needed.
//
// A row has CHUNKS chunks. With P the largest power of two that divides CHUNKS, at most 8, chunk c
// of row r lies in place c ^ (r / (8 / P) % P). Rows of an odd number of
// chunks need no permutation.
#ifndef FAJIT_TILE_CUH
#define FAJIT_TILE_CUH

#include "fajit/copy.cuh"
#include "fajit/dtype.cuh"
#include "fajit/ldmatrix.cuh"
#include "fajit/place.cuh"

namespace fajit {

template <int CHUNKS> struct tile_swizzle {
    static constexpr int group = CHUNKS % 8 == 0   ? 8
                                 : CHUNKS % 4 == 0 ? 4
                                 : CHUNKS % 2 == 0 ? 2
                                                   : 1;

    // What is XORed to the chunks of a row. The same for rows that are a multiple of 8 apart.
    static __device__ __forceinline__ constexpr int of(int row)
    {
        return row / (8 / group) % group;
    }
};

// ROWS x COLUMNS elements of T. `data` is a multiple of 16 bytes; of 128 for no bank conflicts.
template <class T, int ROWS, int COLUMNS> struct tile {
    static constexpr int rows = ROWS, columns = COLUMNS;
    static constexpr int per_chunk = 16 / static_cast<int>(sizeof(T));
    static constexpr int chunks = COLUMNS / per_chunk;
    static constexpr int row_bytes = chunks * 16, bytes = ROWS * row_bytes;
    static_assert(COLUMNS % per_chunk == 0, "a row is made of chunks of 16 bytes");
    using swizzle = tile_swizzle<chunks>;
    static constexpr int period = 8; // rows that are so far apart lie alike

    unsigned char *data;

    __device__ __forceinline__ void *at(int row, int chunk) const
    {
        return data + (row * row_bytes + (chunk ^ swizzle::of(row)) * 16);
    }

    // One element, for what is not read by ldmatrix.
    __device__ __forceinline__ T *element(int row, int column) const
    {
        return static_cast<T *>(at(row, column / per_chunk)) + column % per_chunk;
    }
};

// --- from global memory --------------------------------------------------------------------------

// Bytes of an access that base and stride allow, as the host found: 16, 4, or one element.
inline constexpr int TILE_COPY_WIDE = 16, TILE_COPY_WORD = 4;

// Starts the copy of a chunk in narrow accesses; the first `valid` elements of it exist, the others
// become zero, and nothing is read of them. What is narrower than 4 bytes goes through registers at
// once; in every case the chunk may be read after copy_wait and a barrier. FRESH: the source may
// have been written by the same launch.
template <bool FRESH = false, class T>
__device__ __forceinline__ void copy_chunk_narrow(void *to, const T *from, int valid, int width,
                                                  place at = place::here())
{
    constexpr int size = static_cast<int>(sizeof(T)), per_chunk = 16 / size;
    if (size == 4 || width == TILE_COPY_WORD) {
        constexpr int per_word = size < 4 ? 4 / size : 1;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int left = valid - i * per_word;
            const int here = left < 0 ? 0 : left < per_word ? left : per_word;
            copy_async<4>(static_cast<unsigned *>(to) + i, from + i * per_word,
                          static_cast<unsigned>(here * size), at);
        }
        return;
    }
    if constexpr (size < 4) {
        chunk<16> x{};
#pragma unroll
        for (int i = 0; i < per_chunk; i++)
            if (i < valid)
                x.word[i * size / 4] |= load_input<size, FRESH>(from + i, at).word[0]
                                        << i * size % 4 * 8;
        *static_cast<chunk<16> *>(to) = x;
    }
}

// The chunks that one of THREADS threads copies of a tile: thread i takes chunk i % chunks of every
// (THREADS / chunks) th row.
template <class Tile, int THREADS> struct tile_share {
    static constexpr int chunks = Tile::chunks, step = THREADS / chunks;
    static constexpr int count = (Tile::rows + step - 1) / step;
    static_assert(THREADS % chunks == 0, "threads share rows evenly");

    int row, chunk; // its first

    __device__ __forceinline__ explicit tile_share(int thread)
        : row(thread / chunks), chunk(thread % chunks)
    {
    }

    // Element of a row where the chunk begins.
    __device__ __forceinline__ int column() const
    {
        return chunk * Tile::per_chunk;
    }

    // Row number i of this thread; rows beyond the tile are none.
    __device__ __forceinline__ int row_of(int i) const
    {
        return row + i * step;
    }

    __device__ __forceinline__ bool has(int i) const
    {
        return (i + 1) * step <= Tile::rows || row_of(i) < Tile::rows;
    }

    // Where its chunk number i lies: if it can be, one address and constants.
    __device__ __forceinline__ void *place_in(const Tile &tile, int i) const
    {
        if constexpr (step % Tile::period == 0)
            return static_cast<unsigned char *>(tile.at(row, chunk)) + i * step * Tile::row_bytes;
        else
            return tile.at(row_of(i), chunk);
    }
};

// Starting to copy a tile: `source(i)` gives where a thread's chunk number i comes from and how
// many of its elements exist: the others become zeros, and nothing is read of them. copy_commit is
// left to the caller.
template <class T> struct tile_source {
    const T *from;
    int valid;
};

// Of a thread's chunks of a tile those of part `number`, of `of`: so that there is something
// between its copies. Both are constants where this is inlined.
struct tile_part {
    int number = 0, of = 1;

    __device__ __forceinline__ bool has(int chunk, int count) const
    {
        return chunk * of / count == number;
    }
};

// In copies of 16 bytes.
template <int THREADS, class Tile, class Source>
__device__ __forceinline__ void copy_tile_wide(const Tile &to, int thread, Source source,
                                               tile_part part = {}, place at = place::here())
{
    const tile_share<Tile, THREADS> mine(thread);
#pragma unroll
    for (int i = 0; i < mine.count; i++)
        if (part.has(i, mine.count) && mine.has(i)) {
            const auto x = source(i);
            copy_async<16>(mine.place_in(to, i), x.from,
                           static_cast<unsigned>(x.valid * 16 / Tile::per_chunk), at);
        }
}

// In copies of `width`, one chunk after the other: seldom, and much code. FRESH: the source may
// have been written by the same launch.
template <int THREADS, bool FRESH = false, class Tile, class Source>
__device__ __forceinline__ void copy_tile_by_chunks(const Tile &to, int width, int thread,
                                                    Source source, place at = place::here())
{
    const tile_share<Tile, THREADS> mine(thread);
#pragma unroll 1
    for (int i = 0; i < mine.count; i++)
        if (mine.has(i)) {
            const auto x = source(i);
            void *here = mine.place_in(to, i);
            if (width == TILE_COPY_WIDE)
                copy_async<16>(here, x.from, static_cast<unsigned>(x.valid * 16 / Tile::per_chunk),
                               at);
            else
                copy_chunk_narrow<FRESH>(here, x.from, x.valid, width, at);
        }
}

} // namespace fajit

#endif
