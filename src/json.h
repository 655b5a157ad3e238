/* A small strict JSON reader and writer (RFC 8259; UTF-8; nesting at most 64; duplicate keys are an
 * error; numbers keep their text, so that reading is exact and free of the locale). Own code
 * because the library's load-time dependencies are libc and libxxhash alone. */
#ifndef FA_JSON_H
#define FA_JSON_H

#include "buf.h"
#include "fajit.h"

typedef enum fa__json_type {
    FA__JSON_NULL,
    FA__JSON_BOOL,
    FA__JSON_NUMBER,
    FA__JSON_STRING,
    FA__JSON_ARRAY,
    FA__JSON_OBJECT,
} fa__json_type;

typedef struct fa__json {
    fa__json_type type;
    uint32_t line, column; /* where it begins, from 1 */
    bool boolean;
    const char *text; /* STRING: decoded, NUL-terminated; NUMBER: as written */
    size_t text_len;
    const char *key;               /* of this member, when inside an object */
    uint32_t key_line, key_column; /* where the key begins */
    struct fa__json *child, *next; /* first element or member; next sibling */
    size_t count;                  /* elements or members */
} fa__json;

/* Parses a whole document. FA_ERR_MANIFEST ("line L column C: ...") when malformed, *out is then
 * NULL. Free with fa__json_free. */
fa_status fa__json_parse(const char *text, size_t len, fa__json **out);
void fa__json_free(fa__json *document);
const fa__json *fa__json_get(const fa__json *object, const char *key); /* NULL: absent */

/* Writes a string with quotes and escapes. What is not UTF-8 becomes U+FFFD; a writer whose text
 * must come back unchanged asks fa__json_is_utf8 first. */
void fa__json_string(fa__buf *out, const char *text);
bool fa__json_is_utf8(const char *text);
/* The shortest decimal that reads back as `value`, with '.' in every locale; null when not finite.
 */
void fa__json_real(fa__buf *out, double value);
/* Text of a JSON number as double or integer; false when it is not exactly one: other text, a
 * fraction or exponent for an integer, a value out of range (a double that would become infinite,
 * or zero without being zero). Locale-free. */
bool fa__json_to_real(const char *text, double *out);
bool fa__json_to_int(const char *text, int64_t *out);

#endif
