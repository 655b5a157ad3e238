// From integers to floating point, in every direction of rounding.
__global__ void k(const unsigned *inputs, unsigned *outputs)
{
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned a = inputs[row * IN], b = inputs[row * IN + 1];
    const int sa = static_cast<int>(a);
    const unsigned long long wide = static_cast<unsigned long long>(a) << 32 | b;
    const long long swide = static_cast<long long>(wide);
    unsigned *out = outputs + row * OUT;
    int at = 0;
    auto put = [&](float r) { out[at++] = __float_as_uint(r); };
    auto put_double = [&](double r) {
        out[at++] = static_cast<unsigned>(__double2loint(r));
        out[at++] = static_cast<unsigned>(__double2hiint(r));
    };
    put(__int2float_rn(sa));
    put(__int2float_rz(sa));
    put(__int2float_rd(sa));
    put(__int2float_ru(sa));
    put(__uint2float_rn(a));
    put(__uint2float_rz(a));
    put(__uint2float_rd(a));
    put(__uint2float_ru(a));
    put(__ll2float_rn(swide));
    put(__ll2float_rz(swide));
    put(__ull2float_rn(wide));
    put(__ull2float_ru(wide));
    put(static_cast<float>(sa));
    put(static_cast<float>(wide));
    put_double(__int2double_rn(sa));
    put_double(__uint2double_rn(a));
    put_double(__ll2double_rn(swide));
    put_double(__ll2double_rd(swide));
    put_double(__ull2double_rn(wide));
}
