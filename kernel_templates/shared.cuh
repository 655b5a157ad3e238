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

} // namespace fajit

#endif
