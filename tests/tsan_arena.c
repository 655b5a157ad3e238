/* Lets Criterion run under ThreadSanitizer. Criterion shares memory with the processes of its tests
 * by mapping it at a fixed address that it picks below the program; ThreadSanitizer reserves those
 * addresses and refuses. This moves such mappings into the range that it leaves to programs, below
 * where the kernel loads them. Linked into the tests of thread-sanitized builds alone. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#define ROOM_BEGIN UINT64_C(0x550000000000)
#define ROOM_END UINT64_C(0x555000000000)
#define SLOT_BITS 24

typedef void *(*mmap_function)(void *, size_t, int, int, int, off_t);

/* Not instrumented: it is called before ThreadSanitizer is ready. */
__attribute__((no_sanitize("thread"))) void *mmap(void *address, size_t length, int protection,
                                                  int flags, int fd, off_t offset)
{
    static mmap_function next; /* ThreadSanitizer's own; found once, before there are threads */
    if (next == NULL)
        next = (mmap_function)dlsym(RTLD_NEXT, "mmap");
    const uint64_t wanted = (uintptr_t)address;
    if ((flags & MAP_SHARED) && (flags & MAP_FIXED) && wanted < ROOM_BEGIN) {
        const uint64_t slots = (ROOM_END - ROOM_BEGIN) >> SLOT_BITS;
        address = (void *)(uintptr_t)(ROOM_BEGIN + (((wanted >> SLOT_BITS) % slots) << SLOT_BITS));
        flags = (flags & ~MAP_FIXED) | MAP_FIXED_NOREPLACE;
    }
    return next(address, length, protection, flags, fd, offset);
}
