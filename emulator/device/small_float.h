// Formats of fewer bits than half precision, and tf32.

namespace fajit_emu {

template <int FRACTION_BITS, int BIAS> inline float float_from_code(unsigned code)
{
    const int exponent = static_cast<int>(code >> FRACTION_BITS),
              fraction = static_cast<int>(code & ((1u << FRACTION_BITS) - 1));
    if (exponent == 0)
        return ldexpf(static_cast<float>(fraction), 1 - BIAS - FRACTION_BITS);
    return ldexpf(static_cast<float>(fraction + (1 << FRACTION_BITS)),
                  exponent - BIAS - FRACTION_BITS);
}

// The code of `size`, a finite number that is not negative; to nearest, ties to even.
template <int FRACTION_BITS, int BIAS> inline unsigned code_from_float(float size)
{
    if (size == 0.0f)
        return 0;
    const int exponent = max(__builtin_ilogb(size), 1 - BIAS);
    const double units = __builtin_rint(ldexp(static_cast<double>(size), FRACTION_BITS - exponent));
    // The leading 1 of what is not subnormal adds the last unit to the exponent's field.
    return static_cast<unsigned>(units) +
           (static_cast<unsigned>(exponent + BIAS - 1) << FRACTION_BITS);
}

// cvt.rn.satfinite.*: what is too large, infinity too, becomes the largest number; NaN is 0x7f.
template <int FRACTION_BITS, int BIAS> inline unsigned saturated_code(float x, unsigned largest)
{
    if (__builtin_isnan(x))
        return 0x7f;
    const float size = __builtin_fabsf(x), limit = float_from_code<FRACTION_BITS, BIAS>(largest);
    return (__float_as_uint(x) >> 24 & 0x80u) |
           (size >= limit ? largest : code_from_float<FRACTION_BITS, BIAS>(size));
}

inline unsigned e4m3_from_float(float x)
{
    return saturated_code<3, 7>(x, 0x7e);
}

inline unsigned e5m2_from_float(float x)
{
    return saturated_code<2, 15>(x, 0x7b);
}

inline float float_from_e4m3(unsigned code)
{
    const unsigned size = code & 0x7fu;
    if (size == 0x7f)
        return __uint_as_float(0x7fffffffu);
    return __builtin_copysignf(float_from_code<3, 7>(size), code & 0x80u ? -1.0f : 1.0f);
}

inline float float_from_e5m2(unsigned code)
{
    const unsigned size = code & 0x7fu;
    if (size > 0x7c)
        return __uint_as_float(0x7fffffffu);
    const float value = size == 0x7c ? __builtin_inff() : float_from_code<2, 15>(size);
    return __builtin_copysignf(value, code & 0x80u ? -1.0f : 1.0f);
}

// cvt.rna.tf32.f32: to nearest, ties away from zero. A NaN loses its low bits as an H200's does,
// and with nothing but low bits it becomes infinity.
inline unsigned tf32_from_float(float x)
{
    const unsigned bits = __float_as_uint(x);
    if ((bits & 0x7f800000u) == 0x7f800000u)
        return bits & 0xffffe000u;
    return (bits + 0x1000u) & 0xffffe000u;
}

} // namespace fajit_emu
