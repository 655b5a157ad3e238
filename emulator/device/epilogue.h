// Comes after the kernel's text: what the driver look-alike needs to know of its functions. Each
// name that was asked for becomes a FAJIT_EMU_KERNEL.
#undef asm
#undef __shared__

namespace fajit_emu {

template <class... T> struct layout {
    static constexpr unsigned count = sizeof...(T);
    parameter at[count + 1]; // the last: where all end

    constexpr layout() : at()
    {
        constexpr unsigned size[count + 1] = {sizeof(T)..., 0};
        constexpr unsigned align[count + 1] = {alignof(T)..., 1};
        unsigned offset = 0;
        for (unsigned i = 0; i <= count; i++) {
            offset = (offset + align[i] - 1) / align[i] * align[i];
            at[i] = {offset, size[i]};
            offset += size[i];
        }
    }
};

template <unsigned... I> struct numbers {
};
template <unsigned N, unsigned... I> struct up_to : up_to<N - 1, N - 1, I...> {
};
template <unsigned... I> struct up_to<0, I...> {
    using type = numbers<I...>;
};

// --ftz=true: the processor takes subnormal operands for zero, and gives zero for such results, of
// float and, which a GPU does not, of double.
struct flushes_to_zero {
#if defined FAJIT_EMU_FTZ && !defined __x86_64__
#error "emulator does not implement --ftz=true on this processor"
#elif defined FAJIT_EMU_FTZ
    unsigned before = __builtin_ia32_stmxcsr();

    flushes_to_zero()
    {
        __builtin_ia32_ldmxcsr(before | 0x8040u);
    }
    ~flushes_to_zero()
    {
        __builtin_ia32_ldmxcsr(before);
    }
#endif
};

// BOUNDS: the type of the parameter that stands for __launch_bounds__; void: there is none.
template <auto FUNCTION, unsigned MAX_THREADS, class BOUNDS, class... T> struct described_as {
    static constexpr layout<T...> parameters{};

    template <unsigned... I> static void call_with(const unsigned char *bytes, numbers<I...>)
    {
        (void)bytes;
        if constexpr (__is_same(BOUNDS, void))
            FUNCTION(*reinterpret_cast<const T *>(bytes + parameters.at[I].offset)...);
        else
            FUNCTION(BOUNDS{}, *reinterpret_cast<const T *>(bytes + parameters.at[I].offset)...);
    }

    static void call(const unsigned char *bytes)
    {
        const flushes_to_zero while_it_runs;
        (void)while_it_runs;
        call_with(bytes, typename up_to<sizeof...(T)>::type{});
    }

    static constexpr kernel as(const char *name)
    {
        return {name,          sizeof...(T), parameters.at[sizeof...(T)].offset,
                parameters.at, call,         MAX_THREADS};
    }
};

template <class TYPE> struct signature;
template <class... T> struct signature<void (*)(T...)> {
    template <auto FUNCTION> using described = described_as<FUNCTION, 0, void, T...>;
};
template <unsigned N, class... T> struct signature<void (*)(bounds<N>, T...)> {
    template <auto FUNCTION> using described = described_as<FUNCTION, N, bounds<N>, T...>;
};
template <auto FUNCTION>
struct described : signature<decltype(FUNCTION)>::template described<FUNCTION> {
};

static const thread_view **view_slot()
{
    return &current;
}

} // namespace fajit_emu

extern "C" __attribute__((weak, visibility("hidden"))) unsigned char *fajit_emu_dynamic_shared();
#define FAJIT_EMU_KERNEL(NAME, ...) fajit_emu::described<__VA_ARGS__>::as(NAME)
