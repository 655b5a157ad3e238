// Where a function was called: what the emulator's reports of deadlocks and misuse show. A last
// parameter `place at = place::here()` takes it from the caller; on a GPU it is empty.
#ifndef FAJIT_PLACE_CUH
#define FAJIT_PLACE_CUH

namespace fajit {

struct place {
#ifdef FAJIT_EMULATED
    const char *file;
    int line;

    static constexpr place here(const char *file = __builtin_FILE(), int line = __builtin_LINE())
    {
        return {file, line};
    }
    fajit_emu::site site(const char *operation) const
    {
        return {operation, file, line};
    }
#else
    static __device__ __forceinline__ constexpr place here()
    {
        return {};
    }
#endif
};

} // namespace fajit

#endif
