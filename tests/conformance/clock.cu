// Clocks do not run backwards.
__global__ void k(const unsigned *inputs, unsigned *outputs)
{
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    const long long before = clock64();
    unsigned x = inputs[row * IN];
    for (int i = 0; i < 100; i++)
        x = x * 1664525u + 1013904223u;
    const long long after = clock64();
    outputs[row * OUT] = after >= before;
    outputs[row * OUT + 1] = x;
}
