// What --use_fast_math makes of the mathematical functions.
__global__ void k(const unsigned *inputs, unsigned *outputs)
{
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    const float x = __uint_as_float(inputs[row * IN]), y = __uint_as_float(inputs[row * IN + 1]),
                m = __uint_as_float(inputs[row * IN + 2]),
                p = __uint_as_float(inputs[row * IN + 3]);
    unsigned *out = outputs + row * OUT;
    int at = 0;
    auto put = [&](float r) { out[at++] = __float_as_uint(r); };
    put(expf(x));
    put(expf(m));
    put(exp10f(m));
    put(exp2f(x));
    put(logf(p));
    put(log2f(x));
    put(log10f(p));
    put(sinf(m));
    put(cosf(m));
    float s, c;
    sincosf(m, &s, &c);
    put(s);
    put(c);
    put(powf(p, m));
    put(sqrtf(x));
    put(sqrtf(p));
    put(rsqrtf(x));
    put(tanhf(m));
    put(fdividef(x, y));
    put(m / p);
    put(x + y);
    put(__fmul_rn(x, y));
}
