// Asynchronous copies of every size with every number of valid bytes, and several groups of them.
#include "fajit/copy.cuh"

using namespace fajit;

template <int BYTES>
__device__ void copy_each(unsigned *&out, unsigned *target, const unsigned *from)
{
    for (unsigned valid = 0; valid <= BYTES; valid++) {
        copy_async<BYTES>(target, from, valid);
        copy_commit();
        copy_wait<0>();
        for (int i = 0; i < BYTES / 4; i++)
            *out++ = target[i];
    }
}

__global__ void k(const unsigned *inputs, unsigned *outputs)
{
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned *in = inputs + row * IN;
    unsigned *out = outputs + row * OUT;
    __shared__ __align__(16) unsigned memory[32][12];
    unsigned *mine = memory[threadIdx.x];
    copy_each<4>(out, mine, in + 1);
    copy_each<8>(out, mine, in + 2);
    copy_each<16>(out, mine, in);
    // Three groups, of which the waits let two, one, none be under way; then one that is not closed.
    copy_async<16>(mine, in);
    copy_commit();
    copy_async<8>(mine + 4, in + 2);
    copy_async<4>(mine + 6, in, in[0] % 5);
    copy_commit();
    copy_async<4>(mine + 7, in + 3);
    copy_commit();
    copy_wait<2>();
    for (int i = 0; i < 4; i++)
        *out++ = mine[i];
    copy_wait<1>();
    for (int i = 4; i < 7; i++)
        *out++ = mine[i];
    copy_wait<0>();
    *out++ = mine[7];
    copy_async<16>(mine + 8, in);
    copy_wait_all();
    for (int i = 8; i < 12; i++)
        *out++ = mine[i];
    // What one thread copied, another sees behind a barrier.
    __syncthreads();
    *out++ = memory[(threadIdx.x + 7) % 32][8 + row % 4];
}
