// Half precision and bfloat16: the conversions that kernel_templates/dtype.cuh stands on.

namespace fajit_emu {

// cvt.rn.f16.f32: to nearest, ties to even; too large is infinity, NaN is 0x7fff.
inline unsigned short half_from_float(float x)
{
    const unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u,
                   size = bits & 0x7fffffffu;
    if (size > 0x7f800000u)
        return 0x7fff;
    if (size >= 0x477ff000u) // 65520: half way from the largest to the next
        return static_cast<unsigned short>(sign | 0x7c00u);
    if (size < 0x38800000u) { // below 2^-14: subnormal, in units of 2^-24; adding 0.5 rounds
        const float y = __builtin_fabsf(x) + 0.5f; // 0.5f has an ulp of 2^-24
        return static_cast<unsigned short>(sign | (__float_as_uint(y) - 0x3f000000u));
    }
    const unsigned odd = size >> 13 & 1u;
    return static_cast<unsigned short>(sign | ((size - 0x38000000u + 0xfffu + odd) >> 13));
}

// cvt.f32.f16: exact; NaN is 0x7fffffff.
inline float float_from_half(unsigned short x)
{
    const unsigned sign = static_cast<unsigned>(x & 0x8000u) << 16, size = x & 0x7fffu;
    if (size > 0x7c00u)
        return __uint_as_float(0x7fffffffu);
    if (size == 0x7c00u)
        return __uint_as_float(sign | 0x7f800000u);
    if (size < 0x400u) {
        const float y = static_cast<float>(size) * 0x1p-24f;
        return __uint_as_float(sign | __float_as_uint(y));
    }
    return __uint_as_float(sign | ((size << 13) + 0x38000000u));
}

// cvt.rn.bf16.f32: to nearest, ties to even; NaN is 0x7fff.
inline unsigned short bfloat_from_float(float x)
{
    const unsigned bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return 0x7fff;
    return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

} // namespace fajit_emu
