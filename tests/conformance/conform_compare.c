/* Compares outputs with a record, word by word or digest by digest. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"

static void add(char *message, size_t size, const char *format, ...)
{
    const size_t used = strlen(message);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message + used, size - used, format, arguments);
    va_end(arguments);
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Neighbouring floats have neighbouring numbers. */
static int64_t place(uint32_t bits)
{
    const int64_t size = bits & 0x7fffffff;
    return bits >> 31 ? -size : size;
}

static bool agree(conform_column column, uint32_t given, uint32_t recorded)
{
    if (given == recorded)
        return true;
    const float x = float_of(given), y = float_of(recorded);
    if (column.rule != CONFORM_CLOSE || isnan(x) || isnan(y))
        return false;
    if (fabs((double)(place(given) - place(recorded))) <= column.ulp)
        return true;
    return isfinite(x) && isfinite(y) && fabs((double)x - (double)y) <= column.near;
}

static void describe_row(const conform_case *c, const uint32_t *in, uint32_t row, char *message,
                         size_t size)
{
    for (uint32_t i = 0; i < conform_words_in(c) && i < 6; i++) {
        const uint32_t word = in[(size_t)row * conform_words_in(c) + i];
        add(message, size, " %08x(%a)", word, (double)float_of(word));
    }
}

/* One word of each row, or of each group of rows. */
static bool compare_word(const conform_case *c, uint32_t word, const uint32_t *in,
                         const uint32_t *out, const uint32_t *given, const conform_record *r,
                         char *message, size_t size)
{
    const conform_column column = conform_column_of(c, word);
    const uint32_t words = conform_words_out(c), items = conform_record_words(c) / words;
    uint32_t bad = 0, first = 0;
    for (uint32_t i = 0; i < items; i++)
        if (!agree(column, given[(size_t)i * words + word], r->data[(size_t)i * words + word]) &&
            bad++ == 0)
            first = i;
    if (bad == 0)
        return true;
    const uint32_t row = first * (c->digest_rows ? c->digest_rows : 1);
    add(message, size, "\n  %s (word %u): %u of %u wrong;", column.name, word, bad, items);
    if (c->digest_rows)
        add(message, size, " rows %u to %u, of which %u of", row, row + c->digest_rows - 1, row);
    else
        add(message, size, " row %u of", row);
    describe_row(c, in, row, message, size);
    const uint32_t here = out[(size_t)row * words + word];
    add(message, size, " gives %08x(%a)", here, (double)float_of(here));
    if (!c->digest_rows)
        add(message, size, ", recorded %08x(%a)", r->data[(size_t)first * words + word],
            (double)float_of(r->data[(size_t)first * words + word]));
    return false;
}

bool conform_compare(const conform_case *c, const uint32_t *in, const uint32_t *out,
                     const conform_record *r, char *message, size_t size)
{
    bool ok = true;
    uint32_t *given = calloc(r->words, sizeof *given);
    if (!given)
        abort();
    message[0] = '\0';
    conform_record_data(c, out, given);
    for (uint32_t word = 0; word < conform_words_out(c); word++)
        ok = compare_word(c, word, in, out, given, r, message, size) && ok;
    free(given);
    return ok;
}
