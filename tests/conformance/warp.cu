// Shuffles, votes, matches and reductions of a warp, whole and in part.
__global__ void k(const unsigned *inputs, unsigned *outputs)
{
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    const unsigned a = inputs[row * IN], b = inputs[row * IN + 1], all = 0xffffffffu;
    const int width = 1 << blockIdx.x % 6, sa = static_cast<int>(a);
    const unsigned few = b % 4;
    unsigned *out = outputs + row * OUT;
    int at = 0;
    auto put = [&](unsigned x) { out[at++] = x; };
    const unsigned by = __shfl_sync(all, b, 0); // the same in all lanes
    put(by);
    put(__shfl_sync(all, a, static_cast<int>(b)));
    put(__shfl_sync(all, a, static_cast<int>(b), width));
    put(__shfl_up_sync(all, a, by % 40, width));
    put(__shfl_down_sync(all, a, by % 40, width));
    put(__shfl_up_sync(all, a, by % 33));
    put(__shfl_down_sync(all, a, by % 33));
    put(__shfl_xor_sync(all, a, static_cast<int>(by % 64), width));
    put(__shfl_xor_sync(all, a, static_cast<int>(by % 32)));
    put(__float_as_uint(__shfl_xor_sync(all, __uint_as_float(a), 5)));
    const unsigned long long both = static_cast<unsigned long long>(a) << 32 | b;
    put(static_cast<unsigned>(__shfl_sync(all, both, 7) >> 32));
    put(__ballot_sync(all, a & 1));
    put(__any_sync(all, a == by));
    put(__all_sync(all, a != by));
    put(__match_any_sync(all, few));
    int same = 5;
    put(__match_all_sync(all, few % 2 ? few : 0, &same));
    put(same);
    put(__match_all_sync(all, by, &same));
    put(same);
#if __CUDA_ARCH__ >= 800
    put(__reduce_add_sync(all, a));
    put(__reduce_min_sync(all, a));
    put(__reduce_max_sync(all, sa));
    put(__reduce_xor_sync(all, a));
#endif
    const unsigned mask = __shfl_sync(all, a * 2654435761u, 3) | 1;
    unsigned part[9] = {};
    if (mask >> lane & 1) {
        part[0] = __shfl_sync(mask, a, 0);
        part[1] = __ballot_sync(mask, b & 1);
        part[2] = __any_sync(mask, few == 3);
        part[3] = __all_sync(mask, few != 3);
        part[4] = __match_any_sync(mask, few);
#if __CUDA_ARCH__ >= 800
        part[5] = __reduce_add_sync(mask, a);
        part[6] = static_cast<unsigned>(__reduce_min_sync(mask, sa));
        part[7] = __reduce_and_sync(mask, a | 0xffff);
        part[8] = __reduce_or_sync(mask, few);
#endif
    }
    __syncwarp();
    for (unsigned x : part)
        put(x);
}
