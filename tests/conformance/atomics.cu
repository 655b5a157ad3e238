// Atomic functions, each on a word of its own thread; float addition in global and in shared memory.
__global__ void k(const unsigned *inputs, unsigned *outputs)
{
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned a = inputs[row * IN], b = inputs[row * IN + 1], bits = inputs[row * IN + 2];
    const unsigned more = inputs[row * IN + 3];
    const int sb = static_cast<int>(b);
    unsigned *out = outputs + row * OUT;
    __shared__ float shared[256];
    __shared__ int sum;
    int at = 0;
    // Each leaves the old value and the new one.
    auto next = [&](unsigned start) {
        out[at + 1] = start;
        at += 2;
        return &out[at - 1];
    };
    auto signed_next = [&](unsigned start) { return reinterpret_cast<int *>(next(start)); };
    auto float_next = [&](unsigned start) { return reinterpret_cast<float *>(next(start)); };
    auto old = [&](unsigned x) { out[at - 2] = x; };
    unsigned *u = next(a);
    old(atomicAdd(u, b));
    u = next(a);
    old(atomicSub(u, b));
    u = next(a);
    old(atomicExch(u, b));
    u = next(a);
    old(atomicMin(u, b));
    u = next(a);
    old(atomicMax(u, b));
    int *s = signed_next(a);
    old(atomicMin(s, sb));
    s = signed_next(a);
    old(atomicMax(s, sb));
    u = next(a);
    old(atomicAnd(u, b));
    u = next(a);
    old(atomicOr(u, b));
    u = next(a);
    old(atomicXor(u, b));
    u = next(a);
    old(atomicInc(u, b));
    u = next(a);
    old(atomicDec(u, b));
    u = next(a);
    old(atomicCAS(u, row % 2 ? a : b, 17u));
    float *f = float_next(bits);
    old(__float_as_uint(atomicAdd(f, __uint_as_float(more))));
    f = float_next(bits);
    atomicAdd(f, __uint_as_float(more)); // its result is not used: another instruction
    old(0);
    shared[threadIdx.x] = __uint_as_float(bits);
    if (threadIdx.x == 0)
        sum = 0;
    __syncthreads();
    out[at++] = __float_as_uint(atomicAdd(&shared[threadIdx.x], __uint_as_float(more)));
    atomicAdd(&sum, sb);
    __syncthreads();
    out[at++] = __float_as_uint(shared[threadIdx.x]);
    out[at++] = static_cast<unsigned>(sum);
}
