// How many lanes of a whole warp are chosen, and whether it is the same one again.
#include "fajit/sync.cuh"

using namespace fajit;

__global__ void k(const unsigned *, unsigned *outputs)
{
    unsigned *out = outputs + (blockIdx.x * blockDim.x + threadIdx.x) * OUT;
    const unsigned chosen = __ballot_sync(0xffffffffu, elect_one());
    out[0] = static_cast<unsigned>(__popc(chosen));
    out[1] = __ballot_sync(0xffffffffu, elect_one()) == chosen;
}
