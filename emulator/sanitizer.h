// The sanitizers of the process that runs the kernels. They are looked for by name, so that one build
// of the emulator serves every program; kernels are compiled with what is found.
#ifndef FAJIT_EMU_SANITIZER_H
#define FAJIT_EMU_SANITIZER_H

#include <cstddef>

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

// Null: the process has none.
const address_sanitizer *under_address_sanitizer();
const thread_sanitizer *under_thread_sanitizer();
bool under_undefined_sanitizer();

} // namespace fajit_emu

#endif
