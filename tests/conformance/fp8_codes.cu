// Every code of the 8-bit types, and pairs of them.
#include "fajit/dtype.cuh"

__global__ void k(const unsigned *inputs, unsigned *outputs)
{
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x, code = inputs[row * IN];
    unsigned *out = outputs + row * OUT;
    int at = 0;
    auto put = [&](float x) { out[at++] = __float_as_uint(x); };
    float low, high;
    put(fajit::to_float(fajit::fp8_e4m3{static_cast<unsigned char>(code)}));
    put(fajit::to_float(fajit::fp8_e5m2{static_cast<unsigned char>(code)}));
    fajit::unpack_pair(fajit::fp8_e4m3{}, code, low, high);
    put(low);
    put(high);
    out[at++] = fajit::pack_pair(fajit::fp8_e4m3{}, low, high);
    fajit::unpack_pair(fajit::fp8_e5m2{}, code, low, high);
    put(low);
    put(high);
    out[at++] = fajit::pack_pair(fajit::fp8_e5m2{}, low, high);
}
