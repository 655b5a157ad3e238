// What --fmad=false changes.
__global__ void k(const unsigned *inputs, unsigned *outputs)
{
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    const float x = __uint_as_float(inputs[row * IN]), y = __uint_as_float(inputs[row * IN + 1]),
                z = __uint_as_float(inputs[row * IN + 2]);
    unsigned *out = outputs + row * OUT;
    out[0] = __float_as_uint(x * y + z);
    out[1] = __float_as_uint(z - x * y);
    out[2] = __float_as_uint(fmaf(x, y, z));
}
