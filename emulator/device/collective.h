// Operations of several threads: barriers, shuffles, votes. Each is one meeting of its group.

#define FAJIT_EMU_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace fajit_emu {

constexpr unsigned FULL_WARP = 0xffffffffu;

// --- block ---------------------------------------------------------------------------------------

inline void barrier(unsigned number, unsigned threads, FAJIT_EMU_HERE)
{
    host->meet({BLOCK, threads, number, true}, {"barrier", file, line}, nullptr, nullptr);
}

inline void barrier_arrive(unsigned number, unsigned threads, FAJIT_EMU_HERE)
{
    host->arrive({BLOCK, threads, number, true}, {"barrier", file, line});
}

struct counted {
    bool predicate;
    int yes, all;
};

inline void count_all(void *const *brought, unsigned count)
{
    int yes = 0, all = 0;
    for (unsigned i = 0; i < count; i++)
        if (brought[i]) {
            yes += static_cast<counted *>(brought[i])->predicate;
            all++;
        }
    for (unsigned i = 0; i < count; i++)
        if (brought[i]) {
            static_cast<counted *>(brought[i])->yes = yes;
            static_cast<counted *>(brought[i])->all = all;
        }
}

inline counted count(const group &who, const site &where, bool predicate)
{
    counted mine{predicate, 0, 0};
    host->meet(who, where, &mine, count_all);
    return mine;
}

// --- warp ----------------------------------------------------------------------------------------

inline unsigned lane()
{
    return current->linear % 32;
}

template <unsigned BYTES> struct carried;
template <> struct carried<4> {
    using type = unsigned;
};
template <> struct carried<8> {
    using type = unsigned long long;
};
template <unsigned BYTES> using carrier = typename carried<BYTES>::type;

// What a lane takes from lane `source`; its own value when it has none there.
template <class T> struct exchanged {
    T value, result;
    unsigned source;
    bool own;
};

template <class T> inline void exchange_all(void *const *brought, unsigned)
{
    for (unsigned i = 0; i < 32; i++)
        if (exchanged<T> *to = static_cast<exchanged<T> *>(brought[i])) {
            const exchanged<T> *from =
                static_cast<exchanged<T> *>(brought[to->own ? i : to->source]);
            if (from)
                to->result = from->value;
            else // undefined in CUDA: make it visible
                __builtin_memset(&to->result, 0xff, sizeof to->result);
        }
}

// As an int, a float, ... are shuffled, so is what is promoted to it. A shuffle moves bits: lanes may
// differ in the type, not in its size.
template <class T> using promoted = decltype(+T());

template <class T>
inline promoted<T> exchange(unsigned mask, const site &where, promoted<T> value, unsigned source,
                            bool own)
{
    using bits = carrier<sizeof value>;
    exchanged<bits> mine{0, 0, source, own};
    __builtin_memcpy(&mine.value, &value, sizeof value);
    mine.result = mine.value;
    host->meet({WARP, mask, 0}, where, &mine, exchange_all<bits>);
    __builtin_memcpy(&value, &mine.result, sizeof value);
    return value;
}

inline void check_width(int width, const site &where)
{
    if (width < 1 || width > 32 || (width & (width - 1)))
        fail(719, where, "the width of a shuffle is 1, 2, 4, 8, 16 or 32");
}

struct voted {
    bool predicate;
    unsigned ballot, members;
};

inline void vote_all(void *const *brought, unsigned)
{
    unsigned ballot = 0, members = 0;
    for (unsigned i = 0; i < 32; i++)
        if (brought[i]) {
            members |= 1u << i;
            ballot |= static_cast<unsigned>(static_cast<voted *>(brought[i])->predicate) << i;
        }
    for (unsigned i = 0; i < 32; i++)
        if (brought[i]) {
            static_cast<voted *>(brought[i])->ballot = ballot;
            static_cast<voted *>(brought[i])->members = members;
        }
}

inline voted vote(unsigned mask, const site &where, bool predicate)
{
    voted mine{predicate, 0, 0};
    host->meet({WARP, mask, 0}, where, &mine, vote_all);
    return mine;
}

// elect.sync. Any lane is right; the last is the one that nobody expects.
inline bool elect(const site &where)
{
    return lane() == 31u - static_cast<unsigned>(
                               __clz(static_cast<int>(vote(FULL_WARP, where, true).members)));
}

template <class T> struct matched {
    T value;
    unsigned same, members;
};

template <class T> inline void match_values(void *const *brought, unsigned)
{
    for (unsigned i = 0; i < 32; i++)
        if (matched<T> *to = static_cast<matched<T> *>(brought[i]))
            for (unsigned k = 0; k < 32; k++)
                if (const matched<T> *from = static_cast<matched<T> *>(brought[k])) {
                    to->members |= 1u << k;
                    to->same |= __builtin_memcmp(&from->value, &to->value, sizeof(T)) ? 0 : 1u << k;
                }
}

template <class T> inline matched<T> match(unsigned mask, const site &where, T value)
{
    matched<T> mine{value, 0, 0};
    host->meet({WARP, mask, 0}, where, &mine, match_values<T>);
    return mine;
}

template <class T, class JOIN> inline void reduce_all(void *const *brought, unsigned)
{
    T *result = nullptr, sum{};
    for (unsigned i = 0; i < 32; i++)
        if (T *value = static_cast<T *>(brought[i])) {
            sum = result ? JOIN::of(sum, *value) : *value;
            result = value;
        }
    for (unsigned i = 0; i < 32; i++)
        if (brought[i])
            *static_cast<T *>(brought[i]) = sum;
}

} // namespace fajit_emu

inline void __syncthreads(FAJIT_EMU_HERE)
{
    fajit_emu::host->meet({fajit_emu::BLOCK, 0, 0, true}, {"__syncthreads", file, line}, nullptr,
                          nullptr);
}
inline int __syncthreads_count(int predicate, FAJIT_EMU_HERE)
{
    return fajit_emu::count({fajit_emu::BLOCK, 0, 0, true}, {"__syncthreads_count", file, line},
                            predicate != 0)
        .yes;
}
inline int __syncthreads_and(int predicate, FAJIT_EMU_HERE)
{
    const fajit_emu::counted x = fajit_emu::count(
        {fajit_emu::BLOCK, 0, 0, true}, {"__syncthreads_and", file, line}, predicate != 0);
    return x.yes == x.all;
}
inline int __syncthreads_or(int predicate, FAJIT_EMU_HERE)
{
    return fajit_emu::count({fajit_emu::BLOCK, 0, 0, true}, {"__syncthreads_or", file, line},
                            predicate != 0)
               .yes != 0;
}

inline void __syncwarp(unsigned mask = fajit_emu::FULL_WARP, FAJIT_EMU_HERE)
{
    fajit_emu::host->meet({fajit_emu::WARP, mask, 0, true}, {"__syncwarp", file, line}, nullptr,
                          nullptr);
}

// Any set that holds the caller is right: nobody may count on more.
inline unsigned __activemask()
{
    return 1u << fajit_emu::lane();
}

template <class T>
inline fajit_emu::promoted<T> __shfl_sync(unsigned mask, T value, int source, int width = 32,
                                          FAJIT_EMU_HERE)
{
    const fajit_emu::site here{"__shfl_sync", file, line};
    fajit_emu::check_width(width, here);
    const unsigned w = static_cast<unsigned>(width), lane = fajit_emu::lane();
    return fajit_emu::exchange<T>(mask, here, value,
                                  lane / w * w + static_cast<unsigned>(source) % w, false);
}
template <class T>
inline fajit_emu::promoted<T> __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                                             FAJIT_EMU_HERE)
{
    const fajit_emu::site here{"__shfl_up_sync", file, line};
    fajit_emu::check_width(width, here);
    const unsigned w = static_cast<unsigned>(width), lane = fajit_emu::lane();
    delta %= 32; // the instruction reads no more bits
    return fajit_emu::exchange<T>(mask, here, value, lane - delta, delta > lane % w);
}
template <class T>
inline fajit_emu::promoted<T> __shfl_down_sync(unsigned mask, T value, unsigned delta,
                                               int width = 32, FAJIT_EMU_HERE)
{
    const fajit_emu::site here{"__shfl_down_sync", file, line};
    fajit_emu::check_width(width, here);
    const unsigned w = static_cast<unsigned>(width), lane = fajit_emu::lane();
    delta %= 32;
    return fajit_emu::exchange<T>(mask, here, value, lane + delta, delta >= w - lane % w);
}
template <class T>
inline fajit_emu::promoted<T> __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32,
                                              FAJIT_EMU_HERE)
{
    const fajit_emu::site here{"__shfl_xor_sync", file, line};
    fajit_emu::check_width(width, here);
    const unsigned w = static_cast<unsigned>(width), lane = fajit_emu::lane();
    const unsigned source = lane ^ static_cast<unsigned>(lanes) % 32;
    // A later group of lanes cannot be reached, an earlier one can.
    return fajit_emu::exchange<T>(mask, here, value, source, source >= lane / w * w + w);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, FAJIT_EMU_HERE)
{
    return fajit_emu::vote(mask, {"__ballot_sync", file, line}, predicate != 0).ballot;
}
inline int __any_sync(unsigned mask, int predicate, FAJIT_EMU_HERE)
{
    return fajit_emu::vote(mask, {"__any_sync", file, line}, predicate != 0).ballot != 0;
}
inline int __all_sync(unsigned mask, int predicate, FAJIT_EMU_HERE)
{
    const fajit_emu::voted x = fajit_emu::vote(mask, {"__all_sync", file, line}, predicate != 0);
    return x.ballot == x.members;
}
template <class T> inline unsigned __match_any_sync(unsigned mask, T value, FAJIT_EMU_HERE)
{
    return fajit_emu::match(mask, {"__match_any_sync", file, line}, value).same;
}
template <class T>
inline unsigned __match_all_sync(unsigned mask, T value, int *all, FAJIT_EMU_HERE)
{
    const fajit_emu::matched<T> x = fajit_emu::match(mask, {"__match_all_sync", file, line}, value);
    *all = x.same == x.members;
    return *all ? x.members : 0;
}

#if __CUDA_ARCH__ >= 800
#define FAJIT_EMU_REDUCE(NAME, TYPE, JOINED)                                                       \
    inline TYPE NAME(unsigned mask, TYPE value, FAJIT_EMU_HERE)                                    \
    {                                                                                              \
        struct join {                                                                              \
            static TYPE of(TYPE a, TYPE b)                                                         \
            {                                                                                      \
                return JOINED;                                                                     \
            }                                                                                      \
        };                                                                                         \
        fajit_emu::host->meet({fajit_emu::WARP, mask, 0}, {#NAME, file, line}, &value,             \
                              fajit_emu::reduce_all<TYPE, join>);                                  \
        return value;                                                                              \
    }
FAJIT_EMU_REDUCE(__reduce_add_sync, unsigned, a + b)
FAJIT_EMU_REDUCE(__reduce_min_sync, unsigned, b < a ? b : a)
FAJIT_EMU_REDUCE(__reduce_max_sync, unsigned, a < b ? b : a)
FAJIT_EMU_REDUCE(__reduce_and_sync, unsigned, a &b)
FAJIT_EMU_REDUCE(__reduce_or_sync, unsigned, a | b)
FAJIT_EMU_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
FAJIT_EMU_REDUCE(__reduce_add_sync, int,
                 static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b)))
FAJIT_EMU_REDUCE(__reduce_min_sync, int, b < a ? b : a)
FAJIT_EMU_REDUCE(__reduce_max_sync, int, a < b ? b : a)
#undef FAJIT_EMU_REDUCE
#endif

// ThreadSanitizer does not know fences: to it, every fence is ordered after those before it.
#ifdef __has_feature
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif
#ifdef __SANITIZE_THREAD__
extern "C" void __tsan_acquire(void *);
extern "C" void __tsan_release(void *);
namespace fajit_emu {
static char fences;
inline void fence()
{
    __tsan_acquire(&fences);
    __tsan_release(&fences);
}
} // namespace fajit_emu
#else
namespace fajit_emu {
inline void fence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
} // namespace fajit_emu
#endif

inline void __threadfence()
{
    fajit_emu::fence();
}
inline void __threadfence_block()
{
    fajit_emu::fence();
}
inline void __threadfence_system()
{
    fajit_emu::fence();
}
#undef FAJIT_EMU_HERE
