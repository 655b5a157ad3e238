/* XXH3-128 in canonical (big-endian) form: names of entries, checksums, digests of sources. */
#ifndef FA_DIGEST_H
#define FA_DIGEST_H

#include <stddef.h>
#include <stdint.h>

void fa__digest(const void *bytes, size_t len, uint8_t out[16]);
/* `count` bytes as lower-case hexadecimal; `out` has room for 2 * count + 1. */
void fa__digest_hex(const uint8_t *bytes, size_t count, char *out);

#endif
