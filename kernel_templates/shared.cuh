// Addresses of shared memory, as instructions take them.
#ifndef FAJIT_SHARED_CUH
#define FAJIT_SHARED_CUH

namespace fajit {

// The emulator has one kind of address and no instructions: there is nothing to convert.
#ifndef FAJIT_EMULATED
// Where in the block's shared memory `address` points, which must point there.
__device__ __forceinline__ unsigned shared_address(const void *address)
{
    return static_cast<unsigned>(__cvta_generic_to_shared(address));
}
#endif

// The bytes of one access to shared memory, and to global memory where they come from there.
template <int BYTES> struct alignas(BYTES) shared_piece {
    unsigned word[BYTES / 4];
};
template <> struct alignas(2) shared_piece<2> {
    unsigned short word[1];
};

// A place in shared memory from which others are constants away: the compiler takes it as it is,
// and the constants go into the instructions. Left to itself it makes an address of each place, out
// of parts that several have.
struct shared_place {
#ifdef FAJIT_EMULATED
    const unsigned char *address;

    __device__ __forceinline__ explicit shared_place(const void *at)
        : address(static_cast<const unsigned char *>(at))
    {
    }

    __device__ __forceinline__ const void *behind(int bytes) const
    {
        return address + bytes;
    }
#else
    unsigned address;

    __device__ __forceinline__ explicit shared_place(const void *at) : address(shared_address(at))
    {
        asm("" : "+r"(address));
    }

    __device__ __forceinline__ unsigned behind(int bytes) const
    {
        return address + bytes;
    }
#endif
};

} // namespace fajit

#endif
