// Numbers that a compiler is to forget: it keeps what it can compute once in a register for as long
// as it may be needed, also where every register has something better to do.
#ifndef FAJIT_ANEW_CUH
#define FAJIT_ANEW_CUH

namespace fajit {

// threadIdx.x, read anew: what is made of it inside a loop is made again each time, instead of
// occupying registers all through the loop.
__device__ __forceinline__ int thread_index_anew()
{
#ifdef FAJIT_EMULATED
    return static_cast<int>(threadIdx.x);
#else
    int x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    __builtin_assume(x >= 0 && x < 1024); // divisions by powers of two are shifts
    return x;
#endif
}

// The same number, which the compiler takes for another: what is made of it is made again.
__device__ __forceinline__ int anew(int x)
{
#ifndef FAJIT_EMULATED
    asm volatile("" : "+r"(x));
#endif
    return x;
}

} // namespace fajit

#endif
