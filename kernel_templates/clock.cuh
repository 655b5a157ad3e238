// Time, for kernels that measure themselves or give up waiting.
#ifndef FAJIT_CLOCK_CUH
#define FAJIT_CLOCK_CUH

namespace fajit {

// Nanoseconds since some fixed time, the same on the whole device; never goes back. How often it
// changes is up to the device: steps of a microsecond are common.
__device__ __forceinline__ unsigned long long nanoseconds()
{
#ifdef FAJIT_EMULATED
    return static_cast<unsigned long long>(fajit_emu::host->clock());
#else
    unsigned long long time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time)::"memory");
    return time;
#endif
}

} // namespace fajit

#endif
