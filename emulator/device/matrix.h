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

constexpr int OF_ZERO = -10000, OF_INFINITY = 30000; // exponents that no sum with others hides

// What the units make of an element. Its exponent is as the format stores it: that of a subnormal
// number is the least normal one's.
struct element {
    double value;
    int exponent;
};

inline double power_of_two(int exponent)
{
    return __longlong_as_double(static_cast<long long>(exponent + 1023) << 52);
}

// From a code with FRACTION bits below its exponent, which is BIAS for 1. All is done in integers
// and double, since --ftz=true does not change mma.
template <int FRACTION, int BIAS> inline element element_of(unsigned code)
{
    constexpr unsigned ONE = 1u << FRACTION, HIGHEST = 2 * BIAS + 1;
    const unsigned field = code >> FRACTION & HIGHEST, fraction = code & (ONE - 1);
    const double sign = code >> FRACTION & (HIGHEST + 1) ? -1.0 : 1.0;
    if (field == HIGHEST)
        return {sign * (fraction ? __builtin_nan("") : __builtin_inf()), OF_INFINITY};
    if ((field | fraction) == 0)
        return {sign * 0.0, OF_ZERO};
    const int exponent = static_cast<int>(field ? field : 1) - BIAS;
    return {sign * static_cast<int>(field ? fraction | ONE : fraction) *
                power_of_two(exponent - FRACTION),
            exponent};
}

// A number of C and D, and of a sum between them.
struct half_sum {
    using code = unsigned short;
    static constexpr int FRACTION = 10, BIAS = 15;
    static constexpr bool TO_NEAREST = true;
};
struct float_sum {
    using code = unsigned;
    static constexpr int FRACTION = 23, BIAS = 127;
    static constexpr bool TO_NEAREST = false;
};

template <class SUM> inline element element_of(unsigned code)
{
    return element_of<SUM::FRACTION, SUM::BIAS>(code);
}

inline unsigned half_from_e4m3(unsigned code)
{
    const unsigned sign = (code & 0x80u) << 8, size = code & 0x7fu;
    if (size == 0)
        return sign;
    if (size < 8 || size == 0x7f) // subnormal, NaN
        return half_from_float(float_from_e4m3(code));
    return sign | (size << 7) + (8u << 10); // the biases are 8 apart
}

// Element `index` of a register. On sm_90 fp8 is converted to half, and multiplied as such.
template <format OF> inline element decode(unsigned word, int index)
{
    const unsigned bits = word >> index * bits_of(OF) % 32;
    if constexpr (OF == format::f16)
        return element_of<half_sum>(bits);
    else if constexpr (OF == format::bf16)
        return element_of<float_sum>(bits << 16);
    else if constexpr (OF == format::tf32)
        return element_of<float_sum>(bits & 0xffffe000u); // the rest is ignored
    else if constexpr (OF == format::fp8_e4m3)
        return element_of<half_sum>(half_from_e4m3(bits & 0xffu));
    else
        return element_of<half_sum>((bits & 0xffu) << 8); // the same number
}

// The code of units * 2^exponent, to nearest even or cut toward zero. What becomes zero has no sign
// any more.
template <class SUM, bool TO_NEAREST = SUM::TO_NEAREST>
inline unsigned code_of(long long units, int exponent)
{
    constexpr unsigned INFINITE = (2u * SUM::BIAS + 1) << SUM::FRACTION;
    unsigned long long size = static_cast<unsigned long long>(units < 0 ? -units : units);
    if (size == 0)
        return 0;
    const int first = max(63 - __builtin_clzll(size) + exponent, 1 - SUM::BIAS),
              last = first - SUM::FRACTION, dropped = last - exponent;
    if (dropped > 62)
        size = 0;
    else if (dropped > 0)
        size = (size + (TO_NEAREST ? (1ull << (dropped - 1)) - 1 + (size >> dropped & 1) : 0)) >>
               dropped;
    else
        size <<= -dropped;
    if (size == 0)
        return 0;
    if (first > SUM::BIAS)
        size = INFINITE;
    else // the leading 1 of what is not subnormal adds the last unit to the exponent's field
        size += static_cast<unsigned long long>(first + SUM::BIAS - 1) << SUM::FRACTION;
    return static_cast<unsigned>(size) | (units < 0 ? INFINITE + (1u << SUM::FRACTION) : 0);
}

// Of infinity or NaN.
template <class SUM> inline unsigned code_of_infinity(double x)
{
    constexpr unsigned INFINITE = (2u * SUM::BIAS + 1) << SUM::FRACTION;
    if (__builtin_isnan(x))
        return INFINITE | (INFINITE - 1);
    return INFINITE | (x < 0.0 ? INFINITE + (1u << SUM::FRACTION) : 0);
}

// K elements of a row of A or of a column of B.
template <int K> struct elements {
    double value[K];
    int exponent[K];
};

// How a tensor core adds: found in what an H200 gave, documented nowhere;
// tests/conformance/accumulation.py shows that it explains what was recorded. The products and c are
// aligned to the greatest of their exponents, a product's being the sum of its factors'. What lies
// more than KEPT bits below it is cut off, of each toward zero. What is left is added exactly, and
// the sum rounded once.
constexpr int KEPT = 25;

template <class SUM, int K>
inline unsigned add_products(const elements<K> &a, const elements<K> &b, element c)
{
    int top = c.exponent;
    for (int k = 0; k < K; k++)
        top = max(top, a.exponent[k] + b.exponent[k]);
    if (top < OF_ZERO / 2)
        return 0;
    if (top > OF_INFINITY / 2) {
        for (int k = 0; k < K; k++)
            c.value += a.value[k] * b.value[k];
        return code_of_infinity<SUM>(c.value);
    }
    const double scale = power_of_two(KEPT - top);
    long long sum = static_cast<long long>(c.value * scale);
    for (int k = 0; k < K; k++)
        sum += static_cast<long long>(a.value[k] * b.value[k] * scale);
    return code_of<SUM>(sum, top - KEPT);
}

// To nearest even, subnormal numbers included.
inline unsigned add_floats(element a, element b)
{
    const double sum = a.value + b.value; // to float32 it rounds as the exact one
    const long long bits = __double_as_longlong(sum), fraction = bits & ((1ll << 52) - 1);
    if (a.exponent == OF_INFINITY || b.exponent == OF_INFINITY)
        return code_of_infinity<float_sum>(sum);
    if (sum == 0.0)
        return static_cast<unsigned>(bits >> 32);
    const long long size = fraction | 1ll << 52;
    return code_of<float_sum, true>(bits < 0 ? -size : size,
                                    static_cast<int>(bits >> 52 & 0x7ff) - 1075);
}

// A lane's four elements of C and D.
template <class SUM> struct mma_share {
    bool whole;
    const unsigned *a, *b;
    typename SUM::code c[4], d[4];
};

// The products are added in this many groups of K elements; k % 4 of fp8 decides on the group.
constexpr int groups_of(format of)
{
    return bits_of(of) == 8 ? 2 : 1;
}

template <int GROUPS, int K> struct operand {
    elements<K> group[GROUPS];

    void put(int k, element x)
    {
        elements<K> &to = group[GROUPS == 1 ? 0 : k % 4 / 2];
        const int at = GROUPS == 1 ? k : k / 4 * 2 + k % 2;
        to.value[at] = x.value;
        to.exponent[at] = x.exponent;
    }
};

// c joins the products; on sm_90 that is otherwise for fp8, whose second group adds to the first,
// and an ordinary addition comes last.
template <class SUM, int GROUPS, int K>
inline unsigned multiply_add(const operand<GROUPS, K> &a, const operand<GROUPS, K> &b, unsigned c)
{
    if constexpr (GROUPS == 1)
        return add_products<SUM>(a.group[0], b.group[0], element_of<SUM>(c));
    unsigned sum = 0;
    for (int i = 0; i < GROUPS; i++)
        sum = add_products<SUM>(a.group[i], b.group[i], element_of<SUM>(sum));
    return add_floats(element_of<SUM>(sum), element_of<SUM>(c));
}

template <format A, format B, int K, class SUM> inline void multiply(void *const *brought, unsigned)
{
    constexpr int IN_A = 32 / bits_of(A), IN_B = 32 / bits_of(B); // elements of a register
    constexpr int GROUPS = groups_of(A);
    mma_share<SUM> *const *shares = reinterpret_cast<mma_share<SUM> *const *>(brought);
    operand<GROUPS, K / GROUPS> a[16], b[8];
    if (!is_whole_warp(brought))
        return;
    for (int l = 0; l < 32; l++) {
        shares[l]->whole = true;
        const int group = l / 4, member = l % 4;
        for (int i = 0; i < K / 2; i++) {
            const int word = i / IN_A, index = i % IN_A;
            a[group + word % 2 * 8].put(word / 2 * 4 * IN_A + member * IN_A + index,
                                        decode<A>(shares[l]->a[word], index));
        }
        for (int i = 0; i < K / 4; i++)
            b[group].put(i / IN_B * 4 * IN_B + member * IN_B + i % IN_B,
                         decode<B>(shares[l]->b[i / IN_B], i % IN_B));
    }
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++) {
            const int row = l / 4 + i / 2 * 8, column = l % 4 * 2 + i % 2;
            shares[l]->d[i] = static_cast<typename SUM::code>(
                multiply_add<SUM>(a[row], b[column], shares[l]->c[i]));
        }
}

// `from` and `to` point at a lane's registers of C and D.
template <format A, format B, int K, class SUM>
inline void mma(const unsigned *a, const unsigned *b, const void *from, void *to, const site &where)
{
    mma_share<SUM> mine{false, a, b, {}, {}};
    __builtin_memcpy(mine.c, from, sizeof mine.c);
    host->meet({WARP, FULL_WARP, 0}, where, &mine, multiply<A, B, K, SUM>);
    need_whole_warp(mine.whole, where);
    __builtin_memcpy(to, mine.d, sizeof mine.d);
}

} // namespace fajit_emu
