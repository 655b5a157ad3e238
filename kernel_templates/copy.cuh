// Asynchronous copies from global to shared memory (cp.async).
//
// A thread starts copies, closes groups of them, and waits until all but its newest groups have
// ended. It then sees what its own copies brought; a barrier shows it to other threads. Until the
// wait the target holds nothing that may be read, and the source must stay as it is.
//
// sm_75 has no such copies: there the data goes through registers when the copy is started, and the
// waits have nothing to wait for.
#ifndef FAJIT_COPY_CUH
#define FAJIT_COPY_CUH

#include "fajit/place.cuh"
#include "fajit/shared.cuh"

namespace fajit {

#if __CUDA_ARCH__ < 800
template <int BYTES>
__device__ __forceinline__ void copy_through_registers(void *to_shared, const void *from,
                                                       unsigned valid, place at)
{
#ifdef FAJIT_EMULATED
    fajit_emu::check_copy<BYTES>(to_shared, from, valid, at.site("copy_async"));
#endif
    shared_piece<BYTES> x{};
    if (valid == BYTES) {
        x = *static_cast<const shared_piece<BYTES> *>(from);
    } else {
        const unsigned char *bytes = static_cast<const unsigned char *>(from) + valid / 4 * 4;
        unsigned last = 0; // what of a word is there
        for (unsigned i = 0; i < 3; i++)
            if (i < valid % 4)
                last |= static_cast<unsigned>(bytes[i]) << i * 8;
        for (unsigned i = 0; i < BYTES / 4; i++)
            x.word[i] = i < valid / 4    ? static_cast<const unsigned *>(from)[i]
                        : i == valid / 4 ? last
                                         : 0;
    }
    *static_cast<shared_piece<BYTES> *>(to_shared) = x;
}
#endif

// Starts a copy of BYTES (4, 8 or 16); both addresses are multiples of it. Only the first `valid`
// bytes are read; the others of the target become zero. Copies of 16 bytes pass by the L1 cache.
template <int BYTES>
__device__ __forceinline__ void copy_async(void *to_shared, const void *from, unsigned valid,
                                           place at = place::here())
{
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "copy_async moves 4, 8 or 16 bytes");
#if __CUDA_ARCH__ < 800
    copy_through_registers<BYTES>(to_shared, from, valid, at);
#elif defined FAJIT_EMULATED
    fajit_emu::copy_later<BYTES>(to_shared, from, valid, at.site("cp.async"));
#else
    if constexpr (BYTES == 16)
        asm volatile(
            "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to_shared)),
            "l"(from), "r"(valid)
            : "memory");
    else
        asm volatile(
            "cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to_shared)),
            "l"(from), "n"(BYTES), "r"(valid)
            : "memory");
#endif
}

// The whole of it.
template <int BYTES>
__device__ __forceinline__ void copy_async(void *to_shared, const void *from,
                                           place at = place::here())
{
    copy_async<BYTES>(to_shared, from, BYTES, at);
}

// Closes the group of the copies started since the last.
__device__ __forceinline__ void copy_commit()
{
#ifdef FAJIT_EMULATED
    fajit_emu::host->commit(fajit_emu::COPIES);
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Returns when all closed groups of this thread but the newest LEFT have ended.
template <int LEFT> __device__ __forceinline__ void copy_wait()
{
    static_assert(LEFT >= 0, "how many groups may stay open");
#ifdef FAJIT_EMULATED
    fajit_emu::host->complete(fajit_emu::COPIES, LEFT);
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

// Returns when every copy that this thread has started has ended, also of the group not yet closed.
__device__ __forceinline__ void copy_wait_all()
{
#ifdef FAJIT_EMULATED
    fajit_emu::host->commit(fajit_emu::COPIES);
    fajit_emu::host->complete(fajit_emu::COPIES, 0);
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

} // namespace fajit

#endif
