// Asking for memory before it may be read, while a kernel waits for the one before it (order.cuh).
//
// Only the L2 cache gets it. What the other kernel still writes goes through that cache, so that
// nothing older is read from there afterwards.
#ifndef FAJIT_PREFETCH_CUH
#define FAJIT_PREFETCH_CUH

namespace fajit {

// Asks for the cache line that `from` is in. Nothing happens where kernels do not overlap.
__device__ __forceinline__ void prefetch(const void *from)
{
#if __CUDA_ARCH__ >= 900 && !defined FAJIT_EMULATED
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
#else
    (void)from;
#endif
}

// Asks for `rows` rows of `bytes` bytes, each from a multiple of 128 on, by THREADS threads of which
// this is number `thread`; elsewhere the last line may be missed. row(i): where row i begins; null:
// there is none.
template <int THREADS, class Row>
__device__ __forceinline__ void prefetch_rows(int rows, int bytes, int thread, Row row)
{
    const int lines = (bytes + 127) / 128;
    for (int i = thread; i < rows * lines; i += THREADS)
        if (const void *first = row(i / lines))
            prefetch(static_cast<const unsigned char *>(first) + i % lines * 128);
}

} // namespace fajit

#endif
