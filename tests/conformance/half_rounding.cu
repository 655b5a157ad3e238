// Rounding to the 16-bit types.
#include "fajit/dtype.cuh"

__global__ void k(const unsigned *inputs, unsigned *outputs)
{
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    const float x = __uint_as_float(inputs[row * IN]), y = __uint_as_float(inputs[row * IN + 1]);
    unsigned *out = outputs + row * OUT;
    out[0] = fajit::from_float<fajit::f16>(x).bits;
    out[1] = fajit::from_float<fajit::bf16>(x).bits;
    out[2] = fajit::pack_pair(fajit::f16{}, x, y);
    out[3] = fajit::pack_pair(fajit::bf16{}, x, y);
}
