// What all blocks of a grid wait for. They must all run at once, as those of
// a cooperative launch do.
#ifndef FAJIT_GRID_CUH
#define FAJIT_GRID_CUH

#include "fajit/sync.cuh"

namespace fajit {

// What another block wrote, as it is now.
__device__ __forceinline__ unsigned load_now(unsigned *from)
{
#ifdef FAJIT_EMULATED
    __nanosleep(100); // lets the thread of another block run
    return atomicAdd(from, 0u);
#else
    unsigned x;
    asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
#endif
}

// What any thread of the grid wrote before, every thread sees behind it. `state` is zero before the
// first launch that uses it, and left for the next: all that one barrier adds to it is its highest
// bit, which thereby turns.
__device__ __forceinline__ void grid_sync(unsigned *state)
{
    __syncthreads(); // the whole block has come
    if (threadIdx.x == 0) {
        constexpr unsigned TURN = 0x80000000u;
        fence_device(); // whoever sees the count sees what the block wrote
        const unsigned before = atomicAdd(state, blockIdx.x == 0 ? TURN - (gridDim.x - 1) : 1u);
        while (((load_now(state) ^ before) & TURN) == 0)
            ;
        fence_device(); // and the other way round
    }
    __syncthreads(); // nobody goes on before
}

} // namespace fajit

#endif
