// What threads of a block and lanes of a warp wait for beyond __syncthreads and __syncwarp.
#ifndef FAJIT_SYNC_CUH
#define FAJIT_SYNC_CUH

#include "fajit/place.cuh"

namespace fajit {

// The number of the calling lane in its warp.
__device__ __forceinline__ unsigned lane_index()
{
#ifdef FAJIT_EMULATED
    return fajit_emu::lane();
#else
    unsigned lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    __builtin_assume(lane < 32); // what is made of it has no sign
    return lane;
#endif
}

// Named barriers: `number` is 0 to 15, and 0 is that of __syncthreads. `threads` counts all that
// sync or arrive, a multiple of 32; whole warps come together. What a thread wrote before it came,
// every thread sees that barrier_sync lets go.
__device__ __forceinline__ void barrier_sync(unsigned number, unsigned threads,
                                             place at = place::here())
{
#ifdef FAJIT_EMULATED
    fajit_emu::barrier(number, threads, at.file, at.line);
#else
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
#endif
}

// Counts as having come, and does not wait: for the side that only hands over.
__device__ __forceinline__ void barrier_arrive(unsigned number, unsigned threads,
                                               place at = place::here())
{
#ifdef FAJIT_EMULATED
    fajit_emu::barrier_arrive(number, threads, at.file, at.line);
#else
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
#endif
}

// True in one lane of the warp, in the same one each time; which one it is is not promised. All 32
// lanes call it together.
__device__ __forceinline__ bool elect_one(place at = place::here())
{
#ifdef FAJIT_EMULATED
    return fajit_emu::elect(at.site("elect.sync"));
#elif __CUDA_ARCH__ >= 900
    unsigned elected;
    asm volatile(
        "{\n"
        "    .reg .pred p;\n"
        "    elect.sync _|p, 0xffffffff;\n"
        "    selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(elected));
    return elected != 0;
#else
    return lane_index() == 0;
#endif
}

// Orders what this thread reads and writes in shared and global memory before the fence against
// what it does after, as other threads of the block see it.
__device__ __forceinline__ void fence_block()
{
#ifdef FAJIT_EMULATED
    __threadfence_block();
#else
    asm volatile("fence.acq_rel.cta;" ::: "memory");
#endif
}

// The same, as all threads of the device see it.
__device__ __forceinline__ void fence_device()
{
#ifdef FAJIT_EMULATED
    __threadfence();
#else
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
#endif
}

} // namespace fajit

#endif
