// Programmatic dependent launch: a kernel's blocks may start while its predecessor in the stream is
// still ending, which hides the time that a launch takes (sm_90 and later; elsewhere these do
// nothing). A kernel that is launched so must call wait_for_predecessor before it reads what an
// earlier kernel may write, or writes what one may read or write.
#ifndef FAJIT_ORDER_CUH
#define FAJIT_ORDER_CUH

#include "fajit/place.cuh"

namespace fajit {

// Returns when every kernel that this one depends on has ended and its writes can be seen.
__device__ __forceinline__ void wait_for_predecessor(place at = place::here())
{
#ifdef FAJIT_EMULATED
    fajit_emu::host->wait_for_grid(at.site("griddepcontrol.wait"));
#else
    (void)at;
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
#endif
}

// Lets the blocks of the next kernel take the place of this one's. Only a hint: that kernel waits.
__device__ __forceinline__ void let_successor_start(place at = place::here())
{
#ifdef FAJIT_EMULATED
    fajit_emu::host->let_next_grid(at.site("griddepcontrol.launch_dependents"));
#else
    (void)at;
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
#endif
}

} // namespace fajit

#endif
