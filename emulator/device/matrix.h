// Operations of a whole warp on matrices: ldmatrix, stmatrix, mma. Each lane brings and takes its
// share; the last lane to arrive moves or computes everything.

namespace fajit_emu {

inline bool is_whole_warp(void *const *brought)
{
    for (unsigned i = 0; i < 32; i++)
        if (!brought[i])
            return false;
    return true;
}

// Said after the meeting, in whose last part nothing may fail.
inline void need_whole_warp(bool whole, const site &where)
{
    if (!whole)
        fail(719, where, "all 32 lanes of the warp have to take part");
}

// --- 8x8 matrices of 16-bit elements -------------------------------------------------------------

// A row is read and written by the lane that gives its address, in its own code.
struct matrix_share {
    bool whole; // set in all when every lane has come
    unsigned word[4];
    unsigned short row[8];
};

struct element_place {
    unsigned lane, shift;
};

// Which lane holds element (row, column), and in which half of its register.
inline element_place place_of(unsigned row, unsigned column)
{
    return {row * 4 + column / 2, column % 2 * 16};
}

template <int COUNT, bool TRANSPOSED, bool STORE>
inline void exchange_rows(void *const *brought, unsigned)
{
    matrix_share *const *shares = reinterpret_cast<matrix_share *const *>(brought);
    if (!is_whole_warp(brought))
        return;
    for (unsigned i = 0; i < 32; i++)
        shares[i]->whole = true;
    for (unsigned m = 0; m < COUNT; m++)
        for (unsigned row = 0; row < 8; row++)
            for (unsigned column = 0; column < 8; column++) {
                const element_place at = TRANSPOSED ? place_of(column, row) : place_of(row, column);
                unsigned short *in_row = &shares[8 * m + row]->row[column];
                unsigned *word = &shares[at.lane]->word[m];
                if (STORE)
                    *in_row = static_cast<unsigned short>(*word >> at.shift);
                else
                    *word = (*word & ~(0xffffu << at.shift)) | static_cast<unsigned>(*in_row)
                                                                   << at.shift;
            }
}

inline void check_row(const void *row, const site &where)
{
    if (reinterpret_cast<unsigned long>(row) % 16)
        fail(716, where, "misaligned address: rows begin at multiples of 16 bytes");
}

template <int COUNT, bool TRANSPOSED>
inline void load_matrices(unsigned *to, const void *row, const site &where)
{
    matrix_share mine{};
    // The others' addresses do not count, but sm_75 wants valid ones.
    if (lane() < 8 * COUNT || __CUDA_ARCH__ < 800) {
        check_row(row, where);
        __builtin_memcpy(mine.row, row, sizeof mine.row);
    }
    host->meet({WARP, FULL_WARP, 0}, where, &mine, exchange_rows<COUNT, TRANSPOSED, false>);
    need_whole_warp(mine.whole, where);
    __builtin_memcpy(to, mine.word, COUNT * sizeof *to);
}

template <int COUNT, bool TRANSPOSED>
inline void store_matrices(void *row, const unsigned *from, const site &where)
{
    matrix_share mine{};
    if (lane() < 8 * COUNT)
        check_row(row, where);
    __builtin_memcpy(mine.word, from, COUNT * sizeof *from);
    host->meet({WARP, FULL_WARP, 0}, where, &mine, exchange_rows<COUNT, TRANSPOSED, true>);
    need_whole_warp(mine.whole, where);
    if (lane() < 8 * COUNT)
        __builtin_memcpy(row, mine.row, sizeof mine.row);
}

// --- mma: D = A B + C, A of 16 x K, B of K x 8 ---------------------------------------------------

enum class format { f16, bf16, tf32, fp8_e4m3, fp8_e5m2 };

constexpr int bits_of(format of)
{
    return of == format::tf32 ? 32 : of == format::f16 || of == format::bf16 ? 16 : 8;
}

// Element `index` of a register.
template <format OF> inline double decode(unsigned word, int index)
{
    const unsigned bits = word >> index * bits_of(OF) % 32;
    if constexpr (OF == format::f16)
        return static_cast<double>(float_from_half(static_cast<unsigned short>(bits)));
    else if constexpr (OF == format::bf16)
        return static_cast<double>(__uint_as_float(bits << 16));
    else if constexpr (OF == format::tf32)
        return static_cast<double>(__uint_as_float(bits & 0xffffe000u)); // the rest is ignored
    else if constexpr (OF == format::fp8_e4m3)
        return static_cast<double>(float_from_e4m3(bits & 0xffu));
    else
        return static_cast<double>(float_from_e5m2(bits & 0xffu));
}

// a + b = sum + error, exactly (Knuth).
struct exact_pair {
    double sum, error;
};

inline exact_pair add_exactly(double a, double b)
{
    const double sum = a + b, part = sum - a;
    return {sum, (a - (sum - part)) + (b - part)};
}

// The last bit of a double set, on the side of zero: such a number rounds further as the exact one
// would that is `error` away from it.
inline double to_odd(double sum, double error)
{
    unsigned long long bits;
    if (error == 0.0)
        return sum;
    __builtin_memcpy(&bits, &sum, sizeof bits);
    if ((error < 0.0) != (sum < 0.0))
        bits--;
    bits |= 1;
    __builtin_memcpy(&sum, &bits, sizeof sum);
    return sum;
}

// The sum of `count` numbers, any cancellation included, rounded to odd.
inline double sum_exactly(const double *terms, int count)
{
    double parts[64]; // do not overlap; the largest is the last
    int used = 0;
    for (int i = 0; i < count; i++) {
        double x = terms[i];
        int kept = 0;
        for (int k = 0; k < used; k++) {
            const exact_pair y = add_exactly(x, parts[k]);
            if (y.error != 0.0)
                parts[kept++] = y.error;
            x = y.sum;
        }
        parts[kept++] = x;
        used = kept;
    }
    exact_pair top{parts[used - 1], 0.0};
    for (int k = used - 2; k >= 0 && top.error == 0.0; k--)
        top = add_exactly(top.sum, parts[k]);
    return to_odd(top.sum, top.error);
}

// Toward zero. `odd` sets the last bit of what is not exact.
inline float cut(double x, bool odd)
{
    float y = static_cast<float>(x);
    unsigned bits = __float_as_uint(y);
    if (__builtin_isnan(x))
        return __uint_as_float(0x7fffffffu);
    if (__builtin_fabs(static_cast<double>(y)) > __builtin_fabs(x))
        bits--;
    if (odd && static_cast<double>(y) != x)
        bits |= 1;
    return __uint_as_float(bits);
}

// The one step that is a model. Taken here: the products and their sum with c are exact, and the
// sum is rounded once, toward zero to float32, to nearest even to float16. Tensor cores align the
// terms to the largest and cut off what then lies below some bit, which is not documented; their
// rule belongs in this function alone.
template <int K, bool TO_HALF>
inline float accumulate(const double (&a)[K], const double (&b)[K], float c)
{
    double terms[K + 1], sum = terms[K] = static_cast<double>(c);
    bool lost = false;
    for (int k = 0; k < K; k++) {
        terms[k] = a[k] * b[k];
        const exact_pair next = add_exactly(sum, terms[k]);
        sum = next.sum;
        lost |= next.error != 0.0;
    }
    if (lost && __builtin_isfinite(sum))
        sum = sum_exactly(terms, K + 1);
    return cut(sum, TO_HALF);
}

// A lane's four elements of C and D.
struct halves {
    unsigned short at[4];
};
struct floats {
    float at[4];
};

inline float get_element(const halves &from, int i)
{
    return float_from_half(from.at[i]);
}
inline float get_element(const floats &from, int i)
{
    return from.at[i];
}
inline void put_element(halves &to, int i, float x)
{
    to.at[i] = half_from_float(x);
}
inline void put_element(floats &to, int i, float x)
{
    to.at[i] = x;
}

template <class T> struct mma_share {
    bool whole;
    const unsigned *a, *b;
    T c, d;
};

template <format A, format B, int K, class T> inline void multiply(void *const *brought, unsigned)
{
    constexpr int IN_A = 32 / bits_of(A), IN_B = 32 / bits_of(B); // elements of a register
    mma_share<T> *const *shares = reinterpret_cast<mma_share<T> *const *>(brought);
    double a[16][K], b[8][K];
    if (!is_whole_warp(brought))
        return;
    for (int l = 0; l < 32; l++) {
        shares[l]->whole = true;
        const int group = l / 4, member = l % 4;
        for (int i = 0; i < K / 2; i++) {
            const int word = i / IN_A, index = i % IN_A;
            a[group + word % 2 * 8][word / 2 * 4 * IN_A + member * IN_A + index] =
                decode<A>(shares[l]->a[word], index);
        }
        for (int i = 0; i < K / 4; i++)
            b[group][i / IN_B * 4 * IN_B + member * IN_B + i % IN_B] =
                decode<B>(shares[l]->b[i / IN_B], i % IN_B);
    }
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++) {
            const int row = l / 4 + i / 2 * 8, column = l % 4 * 2 + i % 2;
            put_element(shares[l]->d, i,
                        accumulate<K, sizeof(T) == sizeof(halves)>(a[row], b[column],
                                                                   get_element(shares[l]->c, i)));
        }
}

// T is floats or halves; `from` and `to` point at a lane's registers of C and D.
template <format A, format B, int K, class T>
inline void mma(const unsigned *a, const unsigned *b, const void *from, void *to, const site &where)
{
    mma_share<T> mine{false, a, b, {}, {}};
    __builtin_memcpy(&mine.c, from, sizeof mine.c);
    host->meet({WARP, FULL_WARP, 0}, where, &mine, multiply<A, B, K, T>);
    need_whole_warp(mine.whole, where);
    __builtin_memcpy(to, &mine.d, sizeof mine.d);
}

} // namespace fajit_emu
