// The approximations that the hardware has an instruction for. All take subnormal numbers for zero
// and give zero for subnormal results, tanh_approx aside.
#ifndef FAJIT_APPROX_CUH
#define FAJIT_APPROX_CUH

namespace fajit {

#ifdef FAJIT_EMULATED
#define FAJIT_APPROX(NAME, INSTRUCTION, EMULATED)                                                  \
    __device__ __forceinline__ float NAME(float x)                                                 \
    {                                                                                              \
        return fajit_emu::EMULATED(x);                                                             \
    }
#else
#define FAJIT_APPROX(NAME, INSTRUCTION, EMULATED)                                                  \
    __device__ __forceinline__ float NAME(float x)                                                 \
    {                                                                                              \
        float y;                                                                                   \
        asm(INSTRUCTION " %0, %1;" : "=f"(y) : "f"(x));                                            \
        return y;                                                                                  \
    }
#endif

// Greatest errors: 2^-22 of the result; of a logarithm in (0.5, 2) 2^-22; of a tangent 2^-11 of it.
FAJIT_APPROX(exp2_approx, "ex2.approx.ftz.f32", ex2_approx_ftz)
FAJIT_APPROX(log2_approx, "lg2.approx.ftz.f32", lg2_approx_ftz)
FAJIT_APPROX(rcp_approx, "rcp.approx.ftz.f32", rcp_approx_ftz)
FAJIT_APPROX(rsqrt_approx, "rsqrt.approx.ftz.f32", rsqrt_approx_ftz)
FAJIT_APPROX(sqrt_approx, "sqrt.approx.ftz.f32", sqrt_approx_ftz)
FAJIT_APPROX(tanh_approx, "tanh.approx.f32", tanh_approx)
#undef FAJIT_APPROX

} // namespace fajit

#endif
