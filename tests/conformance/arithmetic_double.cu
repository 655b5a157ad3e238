// Arithmetic in double precision.
__global__ void k(const unsigned *inputs, unsigned *outputs)
{
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    double in[3];
    for (int i = 0; i < 3; i++)
        in[i] = __hiloint2double(static_cast<int>(inputs[row * IN + 2 * i + 1]),
                                 static_cast<int>(inputs[row * IN + 2 * i]));
    const double x = in[0], y = in[1], z = in[2];
    unsigned *out = outputs + row * OUT;
    int at = 0;
    auto put = [&](double r) {
        out[at++] = static_cast<unsigned>(__double2loint(r));
        out[at++] = static_cast<unsigned>(__double2hiint(r));
    };
    put(__dadd_rn(x, y));
    put(__dadd_rz(x, y));
    put(__dmul_rn(x, y));
    put(__dmul_rd(x, y));
    put(__fma_rn(x, y, z));
    put(__fma_ru(x, y, z));
    put(__ddiv_rn(x, y));
    put(__drcp_rn(x));
    put(__dsqrt_rn(x));
    put(fmin(x, y));
    put(fmax(x, y));
    put(floor(x));
    put(rint(x));
    put(trunc(x));
    out[at++] = __float_as_uint(__double2float_rn(x));
    out[at++] = __float_as_uint(__double2float_rz(x));
    out[at++] = __float_as_uint(__double2float_rd(x));
    out[at++] = __float_as_uint(__double2float_ru(x));
}
