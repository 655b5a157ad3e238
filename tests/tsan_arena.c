/* Lets Criterion run under ThreadSanitizer. Criterion shares memory with the processes of its tests
 * at a fixed address: it asks mincore for a free one below the program and maps it. Below the
 * program ThreadSanitizer has reserved everything for itself, so that nothing ever looks free. Here
 * those addresses do look free, and what is mapped there is moved into the range that
 * ThreadSanitizer leaves to programs, below where the kernel loads them.
 * Linked into the tests of thread-sanitized builds alone. */
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ROOM_BEGIN UINT64_C(0x550000000000)
#define ROOM_END UINT64_C(0x555000000000)
#define SLOT_BITS 24
/* Not instrumented: called before ThreadSanitizer is ready. */
#define PLAIN __attribute__((no_sanitize("thread"), visibility("default")))

PLAIN int mincore(void *address, size_t length, unsigned char *pages)
{
    if ((uintptr_t)address < ROOM_BEGIN) {
        errno = ENOMEM;
        return -1;
    }
    return (int)syscall(SYS_mincore, address, length, pages);
}

PLAIN void *mmap64(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
    static void *(*next)(void *, size_t, int, int, int, off_t); /* ThreadSanitizer's own */
    if (next == NULL)
        next = (void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap64");
    const uint64_t wanted = (uintptr_t)address;
    if ((flags & MAP_SHARED) && (flags & MAP_FIXED) && wanted < ROOM_BEGIN) {
        const uint64_t slots = (ROOM_END - ROOM_BEGIN) >> SLOT_BITS;
        address = (void *)(uintptr_t)(ROOM_BEGIN + (((wanted >> SLOT_BITS) % slots) << SLOT_BITS));
        flags = (flags & ~MAP_FIXED) | MAP_FIXED_NOREPLACE;
    }
    return next(address, length, protection, flags, fd, offset);
}
