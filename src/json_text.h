/* The characters of JSON, shared by its reader and its writer. */
#ifndef FA_JSON_TEXT_H
#define FA_JSON_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the UTF-8 character at `p`, of which `available` may be read; 0 when it is not one
 * (overlong forms, surrogates and values over U+10FFFF included). */
size_t fa__utf8_length(const unsigned char *p, size_t available);

/* Writes a code point that is no surrogate; returns its length, 1 to 4. */
size_t fa__utf8_encode(uint32_t code, char *to);

/* Length of the longest JSON number at the beginning of `text`; 0: none. */
size_t fa__json_number_length(const char *text, size_t len);

#endif
