// Which lane holds which element of a product: small integers, so that every sum is exact.
#include "fajit/mma.cuh"

using namespace fajit;

// Small integers, others for each number asked for.
struct integers {
    unsigned seed;

    __device__ float next()
    {
        seed = seed * 1664525u + 1013904223u;
        return static_cast<float>(static_cast<int>(seed >> 20) % 9 - 4);
    }
};

__device__ unsigned word(integers &from, f16 type)
{
    const float low = from.next();
    return pack_pair(type, low, from.next());
}
__device__ unsigned word(integers &from, bf16 type)
{
    const float low = from.next();
    return pack_pair(type, low, from.next());
}
__device__ unsigned word(integers &from, tf32)
{
    return to_tf32(from.next()).bits;
}
template <class T> __device__ unsigned word(integers &from, T type)
{
    float x[4];
    for (float &one : x)
        one = from.next();
    return pack_pair(type, x[0], x[1]) | pack_pair(type, x[2], x[3]) << 16;
}

template <class A, class B, int K> __device__ void product(unsigned *&out, integers &from)
{
    fragment_a<A, K> a;
    fragment_b<B, K> b;
    fragment_c<f32> c;
    for (unsigned &w : a.word)
        w = word(from, A{});
    for (unsigned &w : b.word)
        w = word(from, B{});
    for (float &x : c.value)
        x = from.next() * 100.0f;
    c = mma(a, b, c);
    for (float x : c.value)
        *out++ = __float_as_uint(x);
}

template <int K> __device__ void half_product(unsigned *&out, integers &from)
{
    fragment_a<f16, K> a;
    fragment_b<f16, K> b;
    fragment_c<f16> c;
    for (unsigned &w : a.word)
        w = word(from, f16{});
    for (unsigned &w : b.word)
        w = word(from, f16{});
    for (unsigned &w : c.word)
        w = word(from, f16{});
    c = mma(a, b, c);
    for (unsigned w : c.word)
        *out++ = w;
}

__global__ void k(const unsigned *inputs, unsigned *outputs)
{
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned *out = outputs + row * OUT;
    integers from{inputs[row * IN] * 2654435761u + row};
    product<f16, f16, 8>(out, from);
    product<f16, f16, 16>(out, from);
    product<bf16, bf16, 8>(out, from);
    product<bf16, bf16, 16>(out, from);
    product<tf32, tf32, 4>(out, from);
    product<tf32, tf32, 8>(out, from);
    product<fp8_e4m3, fp8_e4m3, 32>(out, from);
    product<fp8_e4m3, fp8_e5m2, 32>(out, from);
    product<fp8_e5m2, fp8_e4m3, 32>(out, from);
    product<fp8_e5m2, fp8_e5m2, 32>(out, from);
    half_product<8>(out, from);
    half_product<16>(out, from);
}
