// The mathematical functions of CUDA's library, whose greatest errors are documented.
__global__ void k(const unsigned *inputs, unsigned *outputs)
{
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    const float x = __uint_as_float(inputs[row * IN]), m = __uint_as_float(inputs[row * IN + 1]),
                p = __uint_as_float(inputs[row * IN + 2]);
    unsigned *out = outputs + row * OUT;
    int at = 0;
    auto put = [&](float r) { out[at++] = __float_as_uint(r); };
    put(expf(x));
    put(expf(m));
    put(exp10f(m));
    put(expm1f(x));
    put(logf(x));
    put(log2f(x));
    put(log10f(x));
    put(log1pf(x));
    put(sinf(x));
    put(cosf(x));
    put(tanf(m));
    put(asinf(m));
    put(atanf(x));
    put(sinhf(m));
    put(tanhf(x));
    put(tanhf(m));
    put(erff(x));
    put(erfcf(m));
    put(powf(p, m));
    put(powf(x, 2.5f));
    put(cbrtf(x));
    put(hypotf(x, m));
    put(atan2f(x, m));
    put(sinpif(m));
    put(cospif(m));
    float s, c;
    sincosf(m, &s, &c);
    put(s);
    put(c);
}
