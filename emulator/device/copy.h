// Asynchronous copies to shared memory: they happen when they are waited for, which is as late as
// they may.

namespace fajit_emu {

template <int BYTES>
inline void check_copy(const void *to, const void *from, unsigned valid, const site &where)
{
    if (reinterpret_cast<unsigned long>(to) % BYTES ||
        reinterpret_cast<unsigned long>(from) % BYTES)
        fail(716, where, "misaligned address");
    if (valid > BYTES)
        fail(719, where, "more valid bytes than the copy has");
}

// In the thread that started the copy, and in the kernel's own code, where sanitizers see it.
inline void run_copy(const deferred &what)
{
    __builtin_memcpy(what.to, what.from, what.valid);
    __builtin_memset(static_cast<unsigned char *>(what.to) + what.valid, 0,
                     what.bytes - what.valid);
}

// Until the wait the target is poison: NaN in every floating-point type.
template <int BYTES>
inline void copy_later(void *to, const void *from, unsigned valid, const site &where)
{
    check_copy<BYTES>(to, from, valid, where);
    __builtin_memset(to, 0xff, BYTES);
    host->defer(COPIES, {run_copy, to, from, BYTES, valid, where});
}

} // namespace fajit_emu
