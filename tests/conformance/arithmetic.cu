// Arithmetic in float32, in every direction of rounding.
__global__ void k(const unsigned *inputs, unsigned *outputs)
{
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    const float x = __uint_as_float(inputs[row * IN]), y = __uint_as_float(inputs[row * IN + 1]),
                z = __uint_as_float(inputs[row * IN + 2]);
    unsigned *out = outputs + row * OUT;
    int at = 0;
    auto put = [&](float r) { out[at++] = __float_as_uint(r); };
    put(__fadd_rn(x, y));
    put(__fadd_rz(x, y));
    put(__fadd_rd(x, y));
    put(__fadd_ru(x, y));
    put(__fsub_rn(x, y));
    put(__fsub_rz(x, y));
    put(__fmul_rn(x, y));
    put(__fmul_rz(x, y));
    put(__fmul_rd(x, y));
    put(__fmul_ru(x, y));
    put(__fmaf_rn(x, y, z));
    put(__fmaf_rz(x, y, z));
    put(__fmaf_rd(x, y, z));
    put(__fmaf_ru(x, y, z));
    put(__fdiv_rn(x, y));
    put(__fdiv_rz(x, y));
    put(__frcp_rn(x));
    put(__frcp_rd(x));
    put(__fsqrt_rn(x));
    put(__fsqrt_ru(x));
    put(__fadd_rn(__fmul_rn(x, y), z)); // never joined
    put(x * y + z);                     // joined
    put(x / y);
    put(sqrtf(x));
    put(fminf(x, y));
    put(fmaxf(x, y));
    put(min(y, x));
    put(max(y, x));
    put(fdimf(x, y));
    put(copysignf(x, y));
    put(__saturatef(x));
    out[at++] = isnan(x) | isinf(x) << 1 | isfinite(x) << 2 | signbit(x) << 3 | (x < y) << 4 |
                (x <= y) << 5 | (x == y) << 6 | (x != y) << 7;
}
