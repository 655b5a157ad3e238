/* One cache entry as bytes: what a compile produced. Pure. Layout, all integers little-endian:
 *
 *     offset  bytes
 *          0      8   magic "FAJITENT"
 *          8      4   format version
 *         12      4   registers per thread
 *         16      4   spill bytes
 *         20      4   static shared memory bytes
 *         24      8   compile time, ns
 *         32      8   length of key text
 *         40      8   length of entry-function name
 *         48      8   length of compile log
 *         56      8   length of cubin
 *         64          key text, function name, log, cubin: without separators
 *        end - 16     XXH3-128 of everything before, canonical (big-endian)
 */
#ifndef FA_ENTRY_H
#define FA_ENTRY_H

#include "buf.h"
#include "fajit.h"

#define FA__ENTRY_VERSION 1u

typedef struct fa__entry {
    uint32_t registers, spill_bytes, smem_static_bytes;
    uint64_t compile_ns;
    /* Lowered name, NUL-terminated; of several functions one a line, the entry first. */
    char *function;
    char *log; /* NUL-terminated */
    unsigned char *cubin;
    size_t cubin_bytes;
    void *memory; /* one allocation that holds all of the above */
} fa__entry;

/* Builds an entry that owns copies. */
fa_status fa__entry_make(fa__entry *entry, const char *function, const char *log, const void *cubin,
                         size_t cubin_bytes);
void fa__entry_free(fa__entry *entry);

void fa__entry_encode(const fa__entry *entry, const char *key_text, size_t key_len, fa__buf *out);

/* Checks everything: lengths, magic, version, checksum and, when key_text is not NULL, that it is
 * this key's. On success the entry owns copies (and adds NULs). On failure returns a static text
 * that says what is wrong and leaves *entry zeroed; NULL means success. Out of memory is such a
 * text too. */
const char *fa__entry_decode(const void *bytes, size_t len, const char *key_text, size_t key_len,
                             fa__entry *entry);

/* The key text inside valid-looking bytes, without checking the checksum; false when malformed. */
bool fa__entry_key_text(const void *bytes, size_t len, const char **text, size_t *text_len);

#endif
