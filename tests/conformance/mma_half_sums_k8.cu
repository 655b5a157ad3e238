// The rule by which tensor cores add: f16 with K = 8, sums in f16.
#include "fajit/mma.cuh"

using namespace fajit;

__global__ void k(const unsigned *inputs, unsigned *outputs)
{
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x, *in = inputs + row * IN;
    fragment_a<f16, 8> a;
    fragment_b<f16, 8> b;
    fragment_c<f16> c;
    for (unsigned &w : a.word)
        w = *in++;
    for (unsigned &w : b.word)
        w = *in++;
    for (unsigned &w : c.word)
        w = *in++;
    c = mma(a, b, c);
    for (int i = 0; i < OUT; i++)
        outputs[row * OUT + i] = c.word[i];
}
