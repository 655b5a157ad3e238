// Atomic functions. Relaxed, as CUDA's are.

namespace fajit_emu {

// Threads poll with atomics, and what they wait for another thread of the block may have to do.
inline void count_atomic()
{
    if (++current->atomics % 1024 == 0)
        host->yield();
}

// The memory's own adder flushes subnormal numbers, where it is not that of shared memory.
inline float add_in_memory(const float *at, float a, float b)
{
    const float sum = a + b;
    const bool subnormal = without_subnormal(a) != a || without_subnormal(b) != b ||
                           (sum == sum && without_subnormal(sum) != sum);
    if (!subnormal || host->is_shared(at))
        return sum;
    return without_subnormal(opaque(without_subnormal(a) + without_subnormal(b)));
}

// Replaces *at by JOIN(*at, value) and gives what was there.
template <class T, class JOIN> inline T update(T *at, JOIN join)
{
    T old, next;
    count_atomic();
    __atomic_load(at, &old, __ATOMIC_RELAXED);
    do
        next = join(old);
    while (!__atomic_compare_exchange(at, &old, &next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}

} // namespace fajit_emu

#define FAJIT_EMU_ATOMIC(NAME, TYPE, NEXT)                                                         \
    inline TYPE NAME(TYPE *address, TYPE value)                                                    \
    {                                                                                              \
        return fajit_emu::update(address, [=](TYPE old) -> TYPE { return NEXT; });                 \
    }                                                                                              \
    inline TYPE NAME##_block(TYPE *address, TYPE value)                                            \
    {                                                                                              \
        return NAME(address, value);                                                               \
    }                                                                                              \
    inline TYPE NAME##_system(TYPE *address, TYPE value)                                           \
    {                                                                                              \
        return NAME(address, value);                                                               \
    }
#define FAJIT_EMU_ATOMIC_INTEGERS(NAME, NEXT)                                                      \
    FAJIT_EMU_ATOMIC(NAME, int, NEXT)                                                              \
    FAJIT_EMU_ATOMIC(NAME, unsigned, NEXT)                                                         \
    FAJIT_EMU_ATOMIC(NAME, unsigned long long, NEXT)

FAJIT_EMU_ATOMIC(atomicAdd, int,
                 static_cast<int>(static_cast<unsigned>(old) + static_cast<unsigned>(value)))
FAJIT_EMU_ATOMIC(atomicAdd, unsigned, old + value)
FAJIT_EMU_ATOMIC(atomicAdd, unsigned long long, old + value)
FAJIT_EMU_ATOMIC(atomicAdd, float, fajit_emu::add_in_memory(address, old, value))
FAJIT_EMU_ATOMIC(atomicAdd, double, old + value)
FAJIT_EMU_ATOMIC(atomicSub, int,
                 static_cast<int>(static_cast<unsigned>(old) - static_cast<unsigned>(value)))
FAJIT_EMU_ATOMIC(atomicSub, unsigned, old - value)
FAJIT_EMU_ATOMIC_INTEGERS(atomicExch, ((void)old, value))
FAJIT_EMU_ATOMIC(atomicExch, float, ((void)old, value))
FAJIT_EMU_ATOMIC_INTEGERS(atomicMin, value < old ? value : old)
FAJIT_EMU_ATOMIC(atomicMin, long long, value < old ? value : old)
FAJIT_EMU_ATOMIC_INTEGERS(atomicMax, old < value ? value : old)
FAJIT_EMU_ATOMIC(atomicMax, long long, old < value ? value : old)
FAJIT_EMU_ATOMIC_INTEGERS(atomicAnd, old &value)
FAJIT_EMU_ATOMIC_INTEGERS(atomicOr, old | value)
FAJIT_EMU_ATOMIC_INTEGERS(atomicXor, old ^ value)
FAJIT_EMU_ATOMIC(atomicInc, unsigned, old >= value ? 0 : old + 1)
FAJIT_EMU_ATOMIC(atomicDec, unsigned, old == 0 || old > value ? value : old - 1)
#undef FAJIT_EMU_ATOMIC_INTEGERS
#undef FAJIT_EMU_ATOMIC

#define FAJIT_EMU_CAS(TYPE)                                                                        \
    inline TYPE atomicCAS(TYPE *address, TYPE compare, TYPE value)                                 \
    {                                                                                              \
        fajit_emu::count_atomic();                                                                 \
        __atomic_compare_exchange(address, &compare, &value, false, __ATOMIC_RELAXED,              \
                                  __ATOMIC_RELAXED);                                               \
        return compare;                                                                            \
    }
FAJIT_EMU_CAS(int)
FAJIT_EMU_CAS(unsigned)
FAJIT_EMU_CAS(unsigned long long)
FAJIT_EMU_CAS(unsigned short)
#undef FAJIT_EMU_CAS
