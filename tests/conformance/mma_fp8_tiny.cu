// Subnormal factors, and zeros as sums: fp8_e4m3 times fp8_e5m2 with K = 32.
#include "fajit/mma.cuh"

using namespace fajit;

__global__ void k(const unsigned *inputs, unsigned *outputs)
{
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x, *in = inputs + row * IN;
    fragment_a<fp8_e4m3, 32> a;
    fragment_b<fp8_e5m2, 32> b;
    fragment_c<f32> c;
    for (unsigned &w : a.word)
        w = *in++;
    for (unsigned &w : b.word)
        w = *in++;
    for (float &x : c.value)
        x = __uint_as_float(*in++);
    c = mma(a, b, c);
    for (int i = 0; i < OUT; i++)
        outputs[row * OUT + i] = __float_as_uint(c.value[i]);
}
