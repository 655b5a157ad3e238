// Tiles of tile.cuh, filled from rows of global memory that may lie anywhere, and written out as
// rows.
#ifndef FAJIT_ROW_TILE_CUH
#define FAJIT_ROW_TILE_CUH

#include "fajit/anew.cuh"
#include "fajit/copy.cuh"
#include "fajit/dtype.cuh"
#include "fajit/shared.cuh"
#include "fajit/tile.cuh"

namespace fajit {

// Places in a tile as offsets, in elements: from one that is computed once, others are one or two
// instructions away. Rows that are a multiple of 8 apart are row_elements each apart.
template <class Tile> struct tile_offset {
    static constexpr int group = Tile::swizzle::group, row_elements = Tile::columns;

    static __device__ __forceinline__ int of(int row, int chunk)
    {
        return row * row_elements + (chunk ^ Tile::swizzle::of(row)) * Tile::per_chunk;
    }

    // Of what is `further` chunks behind an element of chunk 0; where `further` is even, also
    // behind one of chunk 1.
    static __device__ __forceinline__ int behind(int offset, int further)
    {
        return (offset ^ further % group * Tile::per_chunk) +
               further / group * group * Tile::per_chunk;
    }
};

// Rows in global memory, one after another: what a tile is filled from. Anything else that has
// the type and these two functions does as well.
template <class T> struct strided_rows {
    using element = T;

    const T *data;
    long long stride; // elements

    __device__ __forceinline__ const T *row(int n) const
    {
        return data + n * stride;
    }

    // A place in row n + `steps`, from the same place in row n.
    __device__ __forceinline__ const T *after(const T *place, int n, int steps) const
    {
        return place + steps * stride;
    }
};

// A word of shared memory. Unlike a plain access it stays where it stands in the program: a
// compiler that brings loads of long unrolled loops together runs out of registers.
__device__ __forceinline__ unsigned load_word(const void *address)
{
#ifdef FAJIT_EMULATED
    return *static_cast<const unsigned *>(address);
#else
    unsigned x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(shared_address(address)) : "memory");
    return x;
#endif
}

__device__ __forceinline__ constexpr int power_of_two_from(int n)
{
    return n <= 1 ? 1 : 2 * power_of_two_from((n + 1) / 2);
}

// Starts to copy rows first, first + 1, ... in accesses of 16 bytes. What lies past `end` rows or
// COLUMNS_READ columns becomes zero and is not read. A thread keeps its chunk and goes down.
template <int COLUMNS_READ, int THREADS, class Tile, class Rows>
__device__ __forceinline__ void start_rows_of_chunks(const Tile &to, const Rows &from, int first,
                                                     int end, int thread)
{
    constexpr int ABREAST = power_of_two_from(Tile::chunks), STEP = THREADS / ABREAST;
    const int chunk = thread % ABREAST, row = thread / ABREAST, count = end - first;
    const auto *source = from.row(first + row) + chunk * Tile::per_chunk;
    const bool read = chunk * Tile::per_chunk < COLUMNS_READ;
    static_assert(STEP > 0, "more chunks in a row than threads");
    if (Tile::chunks != ABREAST && chunk >= Tile::chunks)
        return;
#pragma unroll
    for (int i = 0; i < (Tile::rows + STEP - 1) / STEP; i++) {
        const int n = row + i * STEP;
        if (Tile::rows % STEP && n >= Tile::rows)
            break;
        copy_async<16>(to.at(n, chunk), source, read && n < count ? 16 : 0);
        source = from.after(source, first + n, STEP);
    }
}

// The same in smaller accesses of BYTES. FRESH: the rows may have been written by the same launch.
template <int BYTES, int COLUMNS_READ, int THREADS, bool FRESH, class Tile, class Rows>
__device__ __forceinline__ void start_rows_of_pieces(const Tile &to, const Rows &from, int first,
                                                     int end, int thread)
{
    constexpr int COUNT = BYTES / static_cast<int>(sizeof(typename Rows::element));
    constexpr int PIECES = Tile::chunks * 16 / BYTES;
#pragma unroll 1
    for (int n = thread; n < Tile::rows * PIECES; n += THREADS) {
        const int row = n / PIECES, column = (n - row * PIECES) * COUNT;
        const bool exists = row < end - first && column < COLUMNS_READ;
        auto *target = to.element(row, column);
        const auto *source = from.row(first + row) + column;
        if constexpr (BYTES >= 4)
            copy_async<BYTES>(target, source, exists ? BYTES : 0);
        else
            *reinterpret_cast<unsigned short *>(target) =
                exists ? static_cast<unsigned short>(load_input<2, FRESH>(source).word[0]) : 0;
    }
}

// WIDEST: bytes of an access that the sizes allow; `width`: that addresses allow too. The same in
// all threads.
template <int WIDEST, int COLUMNS_READ, int THREADS, bool FRESH = false, class Tile, class Rows>
__device__ __forceinline__ void start_rows(const Tile &to, const Rows &from, int first, int end,
                                           int width)
{
    if constexpr (WIDEST / 2 >= static_cast<int>(sizeof(typename Rows::element))) {
        if (width < WIDEST) {
            start_rows<WIDEST / 2, COLUMNS_READ, THREADS, FRESH>(to, from, first, end, width);
            return;
        }
    }
    const int thread = thread_index_anew();
    if constexpr (WIDEST == 16 && power_of_two_from(Tile::chunks) <= THREADS)
        start_rows_of_chunks<COLUMNS_READ, THREADS>(to, from, first, end, thread);
    else
        start_rows_of_pieces<WIDEST, COLUMNS_READ, THREADS, FRESH>(to, from, first, end, thread);
}

// Writes COLUMNS_WRITTEN columns of the tile's rows row0 up to row0 + ROWS, the first to `to`;
// those from `count` on are left out. `lane` of a warp.
template <int BYTES, int ROWS, int COLUMNS_WRITTEN, class Tile, class T>
__device__ __forceinline__ void store_rows_by(T *to, long long stride, const Tile &from, int row0,
                                              int count, int lane)
{
    constexpr int COUNT = BYTES / static_cast<int>(sizeof(T)), PIECES = COLUMNS_WRITTEN / COUNT;
#pragma unroll(BYTES == 16 ? 4 : 1)
    for (int n = lane; n < ROWS * PIECES; n += 32) {
        const int row = n / PIECES, column = (n - row * PIECES) * COUNT;
        if (row >= count)
            break;
        const auto piece =
            *reinterpret_cast<const shared_piece<BYTES> *>(from.element(row0 + row, column));
        chunk<BYTES> x;
#pragma unroll
        for (int i = 0; i < (BYTES + 3) / 4; i++)
            x.word[i] = piece.word[i];
        store(to + row * stride + column, x);
    }
}

template <int WIDEST, int ROWS, int COLUMNS_WRITTEN, class Tile, class T>
__device__ __forceinline__ void store_rows(T *to, long long stride, const Tile &from, int row0,
                                           int count, int width, int lane)
{
    if constexpr (WIDEST / 2 >= static_cast<int>(sizeof(T))) {
        if (width < WIDEST) {
            store_rows<WIDEST / 2, ROWS, COLUMNS_WRITTEN>(to, stride, from, row0, count, width,
                                                          lane);
            return;
        }
    }
    store_rows_by<WIDEST, ROWS, COLUMNS_WRITTEN>(to, stride, from, row0, count, lane);
}

} // namespace fajit

#endif
