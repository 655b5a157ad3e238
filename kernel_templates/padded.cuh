// Tiles in shared memory whose rows have padding behind them, for what tile.cuh has no place for:
// rows of any length, copies that may be as narrow as an element, and a right factor with one row
// for each k, as weights [in, out] lie. multiply.cuh takes steps of k from them as it does from its
// own tiles.
#ifndef FAJIT_PADDED_CUH
#define FAJIT_PADDED_CUH

#include "fajit/copy.cuh"
#include "fajit/dtype.cuh"
#include "fajit/ldmatrix.cuh"
#include "fajit/multiply.cuh"
#include "fajit/shared.cuh"
#include "fajit/tile.cuh"

namespace fajit {

// Elements from one row to the next, such that a warp's accesses meet no bank twice: ldmatrix reads
// rows of a left factor, whose columns are a multiple of 32 bytes.
template <class T> __host__ __device__ constexpr int padded_left(int columns)
{
    return columns + 16 / static_cast<int>(sizeof(T));
}

// Of a right factor, with a multiple of 8 columns, 8 neighbours of 4 rows are read at once in
// float32; in 16 bits ldmatrix reads 8 of 8 rows.
__host__ __device__ constexpr int padded_right(int columns)
{
    return columns % 16 ? columns : columns + 8;
}

// Rows of k, as a right factor of multiply.cuh: what tile.cuh's copies and load_step
// need of a tile.
template <class T, int ROWS, int COLUMNS> struct padded_tile {
    static constexpr int rows = ROWS, columns = COLUMNS;
    static constexpr int per_chunk = 16 / static_cast<int>(sizeof(T));
    static constexpr int chunks = COLUMNS / per_chunk, row_elements = padded_right(COLUMNS);
    static constexpr int row_bytes = row_elements * static_cast<int>(sizeof(T)),
                         bytes = ROWS * row_bytes;
    static constexpr int period = 1; // rows lie alike
    static_assert(COLUMNS % 16 == 0, "steps are taken two at a time");

    unsigned char *data;

    __device__ __forceinline__ void *at(int row, int chunk) const
    {
        return data + (row * row_bytes + chunk * 16);
    }

    __device__ __forceinline__ const T *element(int row, int column) const
    {
        return reinterpret_cast<const T *>(data) + row * row_elements + column;
    }
};

// --- copies --------------------------------------------------------------------------------------

__host__ __device__ constexpr int common_divisor(int a, int b)
{
    return b ? common_divisor(b, a % b) : a;
}

// BYTES to `to`, of which the first `valid` are read; the others become zero. 2 bytes go through a
// register.
template <int BYTES, class T>
__device__ __forceinline__ void copy_piece(T *to, const T *from, int valid)
{
    if constexpr (BYTES >= 4) {
        copy_async<BYTES>(to, from, static_cast<unsigned>(valid));
    } else {
        static_assert(BYTES == 2, "no such copy");
        chunk<BYTES> x{};
        if (valid)
            x = load_constant<BYTES>(from);
        *reinterpret_cast<unsigned short *>(to) = static_cast<unsigned short>(x.word[0]);
    }
}

// Starts to copy ROWS x COLUMNS elements in accesses of BYTES, by THREADS threads of which this is
// number `thread`. `source(row, column)` is a tile_source: where to read, and how many elements
// there are from there on: any number, negative ones too. copy_commit is left to the caller.
template <int BYTES, int ROWS, int COLUMNS, int THREADS, class T, class Source>
__device__ __forceinline__ void copy_padded_by(T *to, int row_elements, int thread, Source source)
{
    constexpr int width = BYTES / static_cast<int>(sizeof(T)), each = COLUMNS / width;
    constexpr int count = ROWS * each, rounds = (count + THREADS - 1) / THREADS;
    constexpr bool stays = THREADS % each == 0; // a thread in its column
#pragma unroll(BYTES == 16 ? 4 : 1)
    for (int i = 0; i < rounds; i++) {
        const int n = thread + i * THREADS;
        if (count % THREADS && n >= count)
            break;
        const int row = stays ? thread / each + i * (THREADS / each) : n / each;
        const int column = (stays ? thread : n) % each * width;
        const tile_source<T> x = source(row, column);
        const int valid = max(0, min(x.valid, width));
        copy_piece<BYTES>(to + row * row_elements + column, x.from,
                          valid * static_cast<int>(sizeof(T)));
    }
}

// The same in accesses of 16 bytes from rows `stride` elements apart, all of which exist. A
// thread's places come again every few rounds, some rows further down: so
// few addresses are computed.
template <int ROWS, int COLUMNS, int THREADS, class T>
__device__ __forceinline__ void copy_padded_whole(T *to, int row_elements, int thread,
                                                  const T *from, long long stride)
{
    constexpr int width = 16 / static_cast<int>(sizeof(T)), each = COLUMNS / width;
    constexpr int count = ROWS * each, rounds = (count + THREADS - 1) / THREADS;
    constexpr int period = each / common_divisor(each, THREADS), further = period * THREADS / each;
    constexpr int held = period < rounds ? period : rounds;
    const T *source[held];
    T *target[held];
#pragma unroll
    for (int i = 0; i < held; i++) {
        const int n = thread + i * THREADS, row = n / each, column = n % each * width;
        source[i] = from + row * stride + column;
        target[i] = to + row * row_elements + column;
    }
#pragma unroll
    for (int i = 0; i < rounds; i++) {
        if (count % THREADS && thread + i * THREADS >= count)
            break;
        copy_async<16>(target[i % period] + i / period * further * row_elements,
                       source[i % period]);
        source[i % period] += further * stride;
    }
}

// The same as copy_padded_by in accesses of `bytes`: 16, 4, or an element's.
template <int ROWS, int COLUMNS, int THREADS, class T, class Source>
__device__ __forceinline__ void copy_padded(T *to, int row_elements, int bytes, int thread,
                                            Source source)
{
    constexpr int element = sizeof(T);
    if (bytes == 16)
        copy_padded_by<16, ROWS, COLUMNS, THREADS>(to, row_elements, thread, source);
    else if (element == 4 || bytes == 4)
        copy_padded_by<4, ROWS, COLUMNS, THREADS>(to, row_elements, thread, source);
    else
        copy_padded_by<element, ROWS, COLUMNS, THREADS>(to, row_elements, thread, source);
}

// --- steps of k ----------------------------------------------------------------------------------

// 16 rows, from `from` on: its rows are `row_elements` apart, and the step begins in its column.
template <class T>
__device__ __forceinline__ void load_left(step_a<T> &to, const T *from, int row_elements)
{
    const lane_rows mine = lane_rows_of_a();
    ldmatrix(to.word,
             from + mine.row * row_elements + mine.chunk * (16 / static_cast<int>(sizeof(T))));
}

// 8 columns, from `from` on: its rows are those of the step.
template <class T>
__device__ __forceinline__ void load_right(step_b<T> &to, const T *from, int row_elements)
{
    const int lane = static_cast<int>(lane_index());
    if constexpr (sizeof(T) == 2) {
        ldmatrix_trans(to.word, from + lane % 16 * row_elements);
    } else {
#pragma unroll
        for (int i = 0; i < 2; i++)
            to.word[i] = __float_as_uint(from[(lane % 4 + 4 * i) * row_elements + lane / 4]);
    }
}

// 8 columns from column + further on, and the next 8.
template <class T, int ROWS, int COLUMNS>
__device__ __forceinline__ void load_step(step_b<T> &to, step_b<T> &next,
                                          const padded_tile<T, ROWS, COLUMNS> &from, int column,
                                          int further, int step)
{
    using Tile = padded_tile<T, ROWS, COLUMNS>;
    const T *first = from.element(0, column);
    // Known to the compiler, a constant of the instruction.
    const int behind = step * step_columns<T> * Tile::row_elements + further;
    if constexpr (sizeof(T) == 2) {
        const int lane = static_cast<int>(lane_index());
        unsigned word[4];
        const shared_place mine(first + lane % 16 * Tile::row_elements + lane / 16 * 8);
        ldmatrix_trans(word, mine.behind(behind * static_cast<int>(sizeof(T))));
        to.word[0] = word[0];
        to.word[1] = word[1];
        next.word[0] = word[2];
        next.word[1] = word[3];
    } else {
        load_right(to, first + behind, Tile::row_elements);
        load_right(next, first + behind + 8, Tile::row_elements);
    }
}

} // namespace fajit

#endif
