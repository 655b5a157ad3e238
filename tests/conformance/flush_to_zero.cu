// What --ftz=true changes.
__global__ void k(const unsigned *inputs, unsigned *outputs)
{
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    const float x = __uint_as_float(inputs[row * IN]), y = __uint_as_float(inputs[row * IN + 1]),
                z = __uint_as_float(inputs[row * IN + 2]);
    unsigned *out = outputs + row * OUT;
    int at = 0;
    auto put = [&](float r) { out[at++] = __float_as_uint(r); };
    put(x + y);
    put(x - y);
    put(__fmul_rn(x, y));
    put(__fmaf_rn(x, y, z));
    put(__fadd_rz(x, y));
    put(x / y);
    put(__frcp_rn(x));
    put(sqrtf(x));
    put(fminf(x, y));
    put(fmaxf(x, y));
    put(fabsf(x));
    put(floorf(x));
    put(ceilf(x));
    put(__saturatef(x));
    out[at++] = static_cast<unsigned>(__float2int_ru(x));
    out[at++] = (x < y) | (x == y) << 1 | (x != 0) << 2 | isnan(x) << 3;
}
