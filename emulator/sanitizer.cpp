#include "sanitizer.h"

#include <dlfcn.h>

namespace fajit_emu {

namespace {

template <class F> bool find(F *&function, const char *name)
{
    function = reinterpret_cast<F *>(dlsym(RTLD_DEFAULT, name));
    return function != nullptr;
}

bool find_address(address_sanitizer *a)
{
    return find(a->poison, "__asan_poison_memory_region") &&
           find(a->unpoison, "__asan_unpoison_memory_region") &&
           find(a->start_switch, "__sanitizer_start_switch_fiber") &&
           find(a->finish_switch, "__sanitizer_finish_switch_fiber");
}

bool find_thread(thread_sanitizer *t)
{
    return find(t->create, "__tsan_create_fiber") && find(t->destroy, "__tsan_destroy_fiber") &&
           find(t->current, "__tsan_get_current_fiber") &&
           find(t->switch_to, "__tsan_switch_to_fiber") &&
           find(t->set_name, "__tsan_set_fiber_name") && find(t->acquire, "__tsan_acquire") &&
           find(t->release, "__tsan_release") &&
           find(t->ignore_reads_begin, "AnnotateIgnoreReadsBegin") &&
           find(t->ignore_reads_end, "AnnotateIgnoreReadsEnd") &&
           find(t->ignore_writes_begin, "AnnotateIgnoreWritesBegin") &&
           find(t->ignore_writes_end, "AnnotateIgnoreWritesEnd");
}

} // namespace

const address_sanitizer *under_address_sanitizer()
{
    static address_sanitizer functions;
    static const bool found = find_address(&functions);
    return found ? &functions : nullptr;
}

const thread_sanitizer *under_thread_sanitizer()
{
    static thread_sanitizer functions;
    static const bool found = find_thread(&functions);
    return found ? &functions : nullptr;
}

bool under_undefined_sanitizer()
{
    return dlsym(RTLD_DEFAULT, "__ubsan_handle_type_mismatch_v1") != nullptr;
}

} // namespace fajit_emu
