/* Canonical key text and its 128-bit name. Pure. */
#ifndef FA_KEY_H
#define FA_KEY_H

#include "op.h"

typedef struct fa__key {
    fa__buf text;
    uint8_t hash[16]; /* XXH3-128 of text, canonical (big-endian) */
    char name[33];    /* the hash in hexadecimal */
} fa__key;

/* `compiler` is e.g. "nvrtc 13.0 build 65be0db3...". */
fa_status fa__key_make(const fa__op *op, const fa__program *program, const fa__target *target,
                       const char *compiler, fa__key *key);
void fa__key_free(fa__key *key);

/* The value of line `field` ("label", "arch") of a key text; "" when absent. Writes at most size.
 */
void fa__key_field(const char *text, size_t len, const char *field, char *out, size_t size);

#endif
