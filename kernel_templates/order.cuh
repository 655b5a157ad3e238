// Programmatic dependent launch: a kernel's blocks may start while its predecessor in the stream is
// still ending, which hides the time that a launch takes (sm_90 and later; elsewhere these do
// nothing). A kernel that is launched so must call wait_for_predecessor before it touches global memory.
#ifndef FAJIT_ORDER_CUH
#define FAJIT_ORDER_CUH

namespace fajit {

// Returns when every kernel that this one depends on has ended and its writes can be seen.
__device__ __forceinline__ void wait_for_predecessor()
{
#ifdef FAJIT_EMULATED
    fajit_emu::wait_for_grid();
#elif __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the blocks of the next kernel take the place of this one's. Only a hint: that kernel waits.
__device__ __forceinline__ void let_successor_start()
{
#ifdef FAJIT_EMULATED
    fajit_emu::let_next_grid();
#elif __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

} // namespace fajit

#endif
