/* A growable run of bytes that is always NUL-terminated. Allocation failure is remembered, so that
 * a writer checks once at the end. Depends on nothing. */
#ifndef FA_BUF_H
#define FA_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct fa__buf {
    char *data; /* NULL when empty */
    size_t len, capacity;
    bool failed;
    bool borrowed; /* data is the caller's (the stack): not freed, left behind when outgrown */
} fa__buf;

/* An empty buf that begins in `memory`. */
fa__buf fa__buf_on(void *memory, size_t size);

void fa__buf_free(fa__buf *buf);  /* also makes it empty and usable again */
void fa__buf_reset(fa__buf *buf); /* len = 0, memory kept */
void fa__buf_bytes(fa__buf *buf, const void *bytes, size_t len);
void fa__buf_text(fa__buf *buf, const char *text);
/* printf without floating-point conversions: they follow the locale. */
void fa__buf_format(fa__buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* `value` (finite) as a C++17 hexadecimal literal, "0x1.8p+3": exact and the same in every locale.
 */
void fa__buf_hexfloat(fa__buf *buf, double value);
void fa__buf_u32le(fa__buf *buf, uint32_t value);
void fa__buf_u64le(fa__buf *buf, uint64_t value);

#endif
