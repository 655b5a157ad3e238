// The sanitizers of the process that runs the kernels. They are looked for by name, so that one
// build of the emulator serves every program; kernels are compiled with what is found.
#ifndef FAJIT_EMU_SANITIZER_H
#define FAJIT_EMU_SANITIZER_H

#include <cstddef>
#include <thread>

namespace fajit_emu {

struct address_sanitizer {
    void (*poison)(const volatile void *at, size_t bytes);
    void (*unpoison)(const volatile void *at, size_t bytes);
    void (*start_switch)(void **fake_stack, const void *bottom, size_t bytes);
    void (*finish_switch)(void *fake_stack, const void **bottom, size_t *bytes);
};

struct thread_sanitizer {
    void *(*create)(unsigned flags);
    void (*destroy)(void *fiber);
    void *(*current)();
    void (*switch_to)(void *fiber, unsigned flags);
    void (*set_name)(void *fiber, const char *name);
    void (*acquire)(void *of);
    void (*release)(void *of);
    void (*ignore_reads_begin)(const char *, int);
    void (*ignore_reads_end)(const char *, int);
    void (*ignore_writes_begin)(const char *, int);
    void (*ignore_writes_end)(const char *, int);
};

// Starts a thread of the operating system. The loader frees the thread-local memory of those that
// ended then, in which emulated threads have read, and ThreadSanitizer knows of no order between.
template <class F> std::thread start_thread(F run);

// Null: the process has none.
const address_sanitizer *under_address_sanitizer();
const thread_sanitizer *under_thread_sanitizer();
bool under_undefined_sanitizer();

// Whoever acts now does so without being looked at by ThreadSanitizer, until this ends.
class unwatched {
  public:
    unwatched() : by(under_thread_sanitizer())
    {
        if (!by)
            return;
        by->ignore_reads_begin(__FILE__, __LINE__);
        by->ignore_writes_begin(__FILE__, __LINE__);
    }
    ~unwatched()
    {
        if (!by)
            return;
        by->ignore_reads_end(__FILE__, __LINE__);
        by->ignore_writes_end(__FILE__, __LINE__);
    }
    unwatched(const unwatched &) = delete;
    unwatched &operator=(const unwatched &) = delete;

  private:
    const thread_sanitizer *by;
};

template <class F> std::thread start_thread(F run)
{
    const unwatched meanwhile;
    return std::thread(run);
}

} // namespace fajit_emu

#endif
