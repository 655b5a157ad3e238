// ldmatrix and stmatrix, with rows in an order of their own.
#include "fajit/ldmatrix.cuh"

using namespace fajit;

template <int COUNT> __device__ void put(unsigned *&out, const unsigned (&words)[COUNT])
{
    for (unsigned w : words)
        *out++ = w;
}

__global__ void k(const unsigned *inputs, unsigned *outputs)
{
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x;
    __shared__ __align__(16) unsigned memory[32 * 4];
    unsigned *out = outputs + row * OUT;
    const unsigned turn = __shfl_sync(0xffffffffu, inputs[row * IN], 0) % 32;
    // Rows of eight elements, each row once.
    unsigned *mine = memory + (lane * 5 + turn) % 32 * 4;
    for (unsigned i = 0; i < 4; i++)
        memory[lane * 4 + i] = inputs[row * IN] + i * 0x10001u;
    __syncwarp();
    unsigned one[1], two[2], four[4];
    ldmatrix(one, mine);
    ldmatrix(two, mine);
    ldmatrix(four, mine);
    put(out, one);
    put(out, two);
    put(out, four);
    ldmatrix_trans(one, mine);
    ldmatrix_trans(two, mine);
    ldmatrix_trans(four, mine);
    put(out, one);
    put(out, two);
    put(out, four);
    auto show = [&] {
        __syncwarp();
        for (unsigned i = 0; i < 4; i++)
            *out++ = memory[lane * 4 + i];
        __syncwarp();
    };
    __syncwarp();
    stmatrix(mine, one);
    show();
    stmatrix(mine, two);
    show();
    stmatrix_trans(mine, one);
    show();
    stmatrix_trans(mine, two);
    show();
    stmatrix(mine, four);
    show();
    stmatrix_trans(mine, four);
    show();
}
