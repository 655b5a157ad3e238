// Every code of the 16-bit types.
#include "fajit/dtype.cuh"

__global__ void k(const unsigned *inputs, unsigned *outputs)
{
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned short code = static_cast<unsigned short>(inputs[row * IN]);
    unsigned *out = outputs + row * OUT;
    const float half = fajit::to_float(fajit::f16{code}),
                bfloat = fajit::to_float(fajit::bf16{code});
    out[0] = __float_as_uint(half);
    out[1] = __float_as_uint(bfloat);
    out[2] = fajit::pack_pair(fajit::f16{}, half, bfloat);
    out[3] = fajit::pack_pair(fajit::bf16{}, half, bfloat);
}
