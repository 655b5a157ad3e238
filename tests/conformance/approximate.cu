// The fast functions, which the hardware approximates.
#include "fajit/approx.cuh"

__global__ void k(const unsigned *inputs, unsigned *outputs)
{
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    const float x = __uint_as_float(inputs[row * IN]), y = __uint_as_float(inputs[row * IN + 1]),
                m = __uint_as_float(inputs[row * IN + 2]),
                p = __uint_as_float(inputs[row * IN + 3]);
    unsigned *out = outputs + row * OUT;
    int at = 0;
    auto put = [&](float r) { out[at++] = __float_as_uint(r); };
    put(__expf(x));
    put(__expf(m));
    put(__exp10f(m));
    put(exp2f(x));
    put(exp2f(m));
    put(__logf(x));
    put(__log2f(x));
    put(__log2f(p));
    put(__log10f(p));
    put(__sinf(m));
    put(__cosf(m));
    put(__sinf(x));
    put(__powf(p, m));
    put(__powf(x, y));
    put(__fdividef(x, y));
    put(__fdividef(m, p));
    put(rsqrtf(x));
    put(rsqrtf(p));
    put(fajit::exp2_approx(x));
    put(fajit::log2_approx(x));
    put(fajit::rcp_approx(x));
    put(fajit::rcp_approx(m));
    put(fajit::rsqrt_approx(x));
    put(fajit::sqrt_approx(x));
    put(fajit::tanh_approx(x));
    put(fajit::tanh_approx(m));
    // Subnormal operands are scaled.
    const float a = __uint_as_float(inputs[row * IN] & 0x807fffffu),
                b = __uint_as_float(inputs[row * IN + 1] & 0x007fffffu);
    put(__fdividef(a, b));
    put(rsqrtf(b));
    put(__log2f(b));
}
