// Named barriers: one warp hands rounds of numbers to three others; and barriers that count.
#include "fajit/sync.cuh"

using namespace fajit;

constexpr unsigned FULL = 1, EMPTY = 2, READERS = 3;

__global__ void k(const unsigned *inputs, unsigned *outputs)
{
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x, warp = threadIdx.x / 32;
    const unsigned x = inputs[row * IN];
    __shared__ unsigned handed[32], sums[96];
    unsigned *out = outputs + row * OUT, sum = 0;
    for (unsigned round = 0; round < 5; round++)
        if (warp == 0) {
            if (round > 0)
                barrier_sync(EMPTY, 128);
            handed[threadIdx.x] = x + round * 1000u;
            barrier_arrive(FULL, 128);
        } else {
            barrier_sync(FULL, 128);
            for (unsigned i = 0; i < 32; i++)
                sum = sum * 31u + handed[(i + warp) % 32];
            if (round < 4)
                barrier_arrive(EMPTY, 128);
        }
    *out++ = sum;
    if (warp > 0) {
        sums[threadIdx.x - 32] = sum;
        barrier_sync(READERS, 96);
        sum = sums[(threadIdx.x + 1) % 96];
    }
    *out++ = sum;
    *out++ = static_cast<unsigned>(__syncthreads_count(static_cast<int>(x & 2)));
    *out++ = __syncthreads_and(static_cast<int>(x | blockIdx.x)) != 0;
    *out++ = __syncthreads_or(row % 5 == 4 && x == 0xffffffffu) != 0;
}
