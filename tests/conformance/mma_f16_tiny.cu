// Subnormal factors, and zeros as sums: f16 with K = 16.
#include "fajit/mma.cuh"

using namespace fajit;

__global__ void k(const unsigned *inputs, unsigned *outputs)
{
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x, *in = inputs + row * IN;
    fragment_a<f16, 16> a;
    fragment_b<f16, 16> b;
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
