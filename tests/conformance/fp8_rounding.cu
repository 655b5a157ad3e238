// Rounding to the 8-bit types and to tf32.
#include "fajit/mma.cuh"

__global__ void k(const unsigned *inputs, unsigned *outputs)
{
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    const float x = __uint_as_float(inputs[row * IN]), y = __uint_as_float(inputs[row * IN + 1]);
    unsigned *out = outputs + row * OUT;
    out[0] = fajit::from_float<fajit::fp8_e4m3>(x).bits;
    out[1] = fajit::from_float<fajit::fp8_e5m2>(x).bits;
    out[2] = fajit::pack_pair(fajit::fp8_e4m3{}, x, y);
    out[3] = fajit::pack_pair(fajit::fp8_e5m2{}, x, y);
    out[4] = fajit::to_tf32(x).bits;
}
