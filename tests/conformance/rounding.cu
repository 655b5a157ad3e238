// Functions with exact results.
__global__ void k(const unsigned *inputs, unsigned *outputs)
{
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    const float x = __uint_as_float(inputs[row * IN]), y = __uint_as_float(inputs[row * IN + 1]);
    unsigned *out = outputs + row * OUT;
    int at = 0, power = 0;
    auto put = [&](float r) { out[at++] = __float_as_uint(r); };
    put(floorf(x));
    put(ceilf(x));
    put(truncf(x));
    put(rintf(x));
    put(nearbyintf(x));
    put(roundf(x));
    put(fabsf(x));
    put(fmodf(x, y));
    put(remainderf(x, y));
    put(nextafterf(x, y));
    put(ldexpf(x, static_cast<int>(row % 400) - 200));
    put(frexpf(x, &power));
    out[at++] = isfinite(x) ? static_cast<unsigned>(power) : 0;
    put(modff(x, &(float &)(out[at + 1])));
    at++;
}
