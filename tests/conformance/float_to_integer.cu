// From floating point to integers: out of range, infinite, NaN.
__global__ void k(const unsigned *inputs, unsigned *outputs)
{
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    const float x = __uint_as_float(inputs[row * IN]);
    const double d = __hiloint2double(static_cast<int>(inputs[row * IN + 2]),
                                      static_cast<int>(inputs[row * IN + 1]));
    unsigned *out = outputs + row * OUT;
    int at = 0;
    auto put = [&](long long r) { out[at++] = static_cast<unsigned>(r); };
    auto put_wide = [&](unsigned long long r) {
        out[at++] = static_cast<unsigned>(r);
        out[at++] = static_cast<unsigned>(r >> 32);
    };
    put(__float2int_rn(x));
    put(__float2int_rz(x));
    put(__float2int_rd(x));
    put(__float2int_ru(x));
    put(__float2uint_rn(x));
    put(__float2uint_rz(x));
    put(__float2uint_rd(x));
    put(__float2uint_ru(x));
    put(__double2int_rn(d));
    put(__double2int_rz(d));
    put(__double2int_rd(d));
    put(__double2int_ru(d));
    put(__double2uint_rn(d));
    put(__double2uint_rz(d));
    put_wide(static_cast<unsigned long long>(__float2ll_rn(x)));
    put_wide(static_cast<unsigned long long>(__float2ll_rz(x)));
    put_wide(static_cast<unsigned long long>(__float2ll_rd(x)));
    put_wide(static_cast<unsigned long long>(__float2ll_ru(x)));
    put_wide(__float2ull_rn(x));
    put_wide(__float2ull_rz(x));
    put_wide(static_cast<unsigned long long>(__double2ll_rn(d)));
    put_wide(static_cast<unsigned long long>(__double2ll_rz(d)));
    put_wide(__double2ull_rn(d));
    put_wide(__double2ull_rz(d));
}
