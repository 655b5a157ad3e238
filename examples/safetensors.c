/* SPDX-License-Identifier: MIT */
#include "safetensors.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_HEADER 100000000 /* bytes: the format's own limit */

/* 0: no type of this name. */
static size_t dtype_bytes(const char *name)
{
    static const struct {
        const char *name;
        size_t bytes;
    } types[] = {
        {"F64", 8}, {"I64", 8}, {"U64", 8},     {"F32", 4},     {"I32", 4},
        {"U32", 4}, {"F16", 2}, {"I16", 2},     {"U16", 2},     {"BF16", 2},
        {"I8", 1},  {"U8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"BOOL", 1},
    };
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(name, types[i].name) == 0)
            return types[i].bytes;
    return 0;
}

/* Bytes of a tensor by its type and shape; false when they cannot be counted. */
static bool count_bytes(const safetensor *t, size_t *bytes)
{
    *bytes = dtype_bytes(t->dtype);
    for (size_t i = 0; i < t->rank; i++)
        if (__builtin_mul_overflow(*bytes, t->shape[i], bytes))
            return false;
    return true;
}

/* --- the header: as much of JSON as it may hold. After a failure every step does nothing --- */

typedef struct scanner {
    safetensors *file;
    const char *begin, *end;
    char *at; /* strings are decoded where they stand */
} scanner;

static bool fail(safetensors *file, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Keeps the first problem. */
static bool fail(safetensors *file, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    if (!file->problem[0])
        vsnprintf(file->problem, sizeof file->problem, format, list);
    va_end(list);
    return false;
}

static bool failed(const scanner *s)
{
    return s->file->problem[0] != 0;
}

static bool malformed(scanner *s, const char *what)
{
    return fail(s->file, "byte %td of the header: %s", s->at - s->begin, what);
}

static void skip_spaces(scanner *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r'))
        s->at++;
}

/* Whether `c` comes next, behind spaces; it is then passed. */
static bool accept(scanner *s, char c)
{
    skip_spaces(s);
    if (failed(s) || s->at == s->end || *s->at != c)
        return false;
    s->at++;
    return true;
}

static void expect(scanner *s, char c)
{
    if (!accept(s, c))
        malformed(s, c == '"' ? "a string is missing" : "punctuation is missing");
}

/* Before each element of a list; false at its end, which is passed. */
static bool has_element(scanner *s, char close, size_t done)
{
    if (accept(s, close))
        return false;
    if (done > 0)
        expect(s, ',');
    return !failed(s);
}

/* What follows a backslash: writes what it means to `to` and returns the end of that. \uXXXX stays
 * as it is: the writers of this format have no need of it. */
static char *scan_escape(scanner *s, char *to)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    const char letter = s->at < s->end ? *s->at++ : 0;
    const char *known = letter ? strchr(letters, letter) : NULL;
    if (!known && letter != 'u')
        malformed(s, "an escape that means nothing");
    if (letter == 'u')
        *to++ = '\\';
    *to++ = known ? meanings[known - letters] : letter;
    return to;
}

/* "" after a failure. */
static char *scan_string(scanner *s)
{
    static char nothing[1];
    expect(s, '"');
    char *const begin = s->at, *to = begin;
    while (!failed(s) && s->at < s->end && *s->at != '"') {
        const char c = *s->at++;
        if ((unsigned char)c < 0x20)
            malformed(s, "a control character");
        if (c == '\\')
            to = scan_escape(s, to);
        else
            *to++ = c;
    }
    if (!failed(s) && s->at == s->end)
        malformed(s, "a string does not end");
    if (failed(s))
        return nothing;
    s->at++;
    *to = 0;
    return begin;
}

static size_t scan_number(scanner *s)
{
    size_t value = 0;
    skip_spaces(s);
    const char *begin = s->at;
    for (; !failed(s) && s->at < s->end && isdigit((unsigned char)*s->at); s->at++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (size_t)(*s->at - '0'), &value))
            malformed(s, "the number is too large");
    if (s->at == begin || (*begin == '0' && s->at - begin > 1))
        malformed(s, "a whole number is missing");
    return value;
}

/* Returns how many; those beyond `most` are not kept. */
static size_t scan_numbers(scanner *s, size_t *numbers, size_t most)
{
    size_t count = 0;
    expect(s, '[');
    for (; has_element(s, ']', count); count++) {
        const size_t number = scan_number(s);
        if (count < most)
            numbers[count] = number;
    }
    return count;
}

/* {"KEY": "TEXT", ...}, whose texts are of no use here */
static void scan_metadata(scanner *s)
{
    expect(s, '{');
    for (size_t done = 0; has_element(s, '}', done); done++) {
        scan_string(s);
        expect(s, ':');
        scan_string(s);
    }
}

/* {"dtype": ..., "shape": ..., "data_offsets": ...} in any order */
static void scan_tensor(scanner *s, safetensor *t, size_t offsets[2])
{
    unsigned seen = 0;
    t->dtype = "";
    expect(s, '{');
    for (size_t done = 0; has_element(s, '}', done); done++) {
        const char *key = scan_string(s);
        unsigned member = 0;
        expect(s, ':');
        if (strcmp(key, "dtype") == 0) {
            member = 1;
            t->dtype = scan_string(s);
        } else if (strcmp(key, "shape") == 0) {
            member = 2;
            t->rank = scan_numbers(s, t->shape, SAFETENSORS_MAX_RANK);
        } else if (strcmp(key, "data_offsets") == 0) {
            member = 4;
            if (scan_numbers(s, offsets, 2) != 2)
                malformed(s, "data_offsets are not two");
        }
        if (member == 0 || (seen & member))
            malformed(s, "a member that is not known, or one twice");
        seen |= member;
    }
    if (seen != 7)
        malformed(s, "dtype, shape or data_offsets is missing");
}

/* Whether what the header says of a tensor fits together; gives its place. */
static bool place_tensor(safetensors *file, safetensor *t, const size_t offsets[2],
                         size_t data_bytes)
{
    if (dtype_bytes(t->dtype) == 0)
        return fail(file, "%s: dtype %s is not known", t->name, t->dtype);
    if (t->rank > SAFETENSORS_MAX_RANK)
        return fail(file, "%s has %zu dimensions, more than %d", t->name, t->rank,
                    SAFETENSORS_MAX_RANK);
    if (offsets[0] > offsets[1] || offsets[1] > data_bytes)
        return fail(file, "%s: offsets %zu to %zu in %zu bytes of data", t->name, offsets[0],
                    offsets[1], data_bytes);
    if (!count_bytes(t, &t->bytes) || t->bytes != offsets[1] - offsets[0])
        return fail(file, "%s: %zu bytes do not fit its shape and type", t->name,
                    offsets[1] - offsets[0]);
    t->data = file->data + offsets[0];
    return true;
}

static bool scan_header(safetensors *file, size_t header_bytes, size_t data_bytes)
{
    scanner s = {file, file->header, file->header + header_bytes, file->header};
    size_t room = 0, metadata = 0;
    expect(&s, '{');
    for (size_t done = 0; has_element(&s, '}', done); done++) {
        safetensor tensor = {.name = scan_string(&s)};
        size_t offsets[2] = {0};
        expect(&s, ':');
        if (strcmp(tensor.name, "__metadata__") == 0 && metadata++ == 0) {
            scan_metadata(&s);
            continue;
        }
        scan_tensor(&s, &tensor, offsets);
        if (failed(&s) || !place_tensor(file, &tensor, offsets, data_bytes))
            return false;
        if (file->count == room) {
            room = room ? 2 * room : 64;
            safetensor *more = realloc(file->tensors, room * sizeof *more);
            if (!more)
                return fail(file, "out of memory");
            file->tensors = more;
        }
        file->tensors[file->count++] = tensor;
    }
    skip_spaces(&s);
    if (!failed(&s) && s.at != s.end)
        malformed(&s, "something follows the end");
    return !failed(&s);
}

/* --- reading --- */

static int by_place(const void *a, const void *b)
{
    const safetensor *x = a, *y = b;
    if (x->data != y->data)
        return (const char *)x->data < (const char *)y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty ones first */
}

static int by_name(const void *a, const void *b)
{
    const safetensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Every byte of the data belongs to one tensor, and every name too. Leaves the tensors in order. */
static bool check_tensors(safetensors *file, size_t data_bytes)
{
    const char *end = file->data;
    if (file->count > 0)
        qsort(file->tensors, file->count, sizeof *file->tensors, by_place);
    for (size_t i = 0; i < file->count; i++) {
        if (file->tensors[i].data != end)
            return fail(file, "%s: its data overlap others or leave a gap", file->tensors[i].name);
        end += file->tensors[i].bytes;
    }
    if (end != file->data + data_bytes)
        return fail(file, "data that belong to no tensor at the end");
    if (file->count > 0)
        qsort(file->tensors, file->count, sizeof *file->tensors, by_name);
    for (size_t i = 1; i < file->count; i++)
        if (strcmp(file->tensors[i - 1].name, file->tensors[i].name) == 0)
            return fail(file, "%s is there twice", file->tensors[i].name);
    return true;
}

/* `count` bytes and a NUL; NULL when they are not there. */
static char *read_bytes(FILE *stream, size_t count)
{
    char *bytes = malloc(count + 1);
    if (bytes && fread(bytes, 1, count, stream) != count) {
        free(bytes);
        return NULL;
    }
    if (bytes)
        bytes[count] = 0;
    return bytes;
}

static bool read_stream(safetensors *file, FILE *stream)
{
    unsigned char length[8];
    uint64_t header_bytes = 0;
    long size = -1;
    if (fseek(stream, 0, SEEK_END) == 0)
        size = ftell(stream);
    if (size < 0 || fseek(stream, 0, SEEK_SET) != 0)
        return fail(file, "not a file that can be read: %s", strerror(errno));
    if (fread(length, 1, sizeof length, stream) != sizeof length)
        return fail(file, "the file has %ld bytes, fewer than 8", size);
    for (int i = 0; i < 8; i++)
        header_bytes |= (uint64_t)length[i] << 8 * i;
    if (header_bytes > MAX_HEADER || header_bytes > (uint64_t)size - 8)
        return fail(file, "a header of %ju bytes in a file of %ld", (uintmax_t)header_bytes, size);
    const size_t data_bytes = (size_t)size - 8 - (size_t)header_bytes;
    file->header = read_bytes(stream, (size_t)header_bytes);
    file->data = file->header ? read_bytes(stream, data_bytes) : NULL;
    if (!file->data)
        return fail(file, "%ld bytes cannot be read", size);
    return scan_header(file, (size_t)header_bytes, data_bytes) && check_tensors(file, data_bytes);
}

bool safetensors_read(safetensors *file, const char *path)
{
    *file = (safetensors){0};
    FILE *stream = fopen(path, "rb");
    if (!stream)
        return fail(file, "%s: %s", path, strerror(errno));
    const bool read = read_stream(file, stream);
    fclose(stream);
    return read;
}

void safetensors_close(safetensors *file)
{
    free(file->tensors);
    free(file->header);
    free(file->data);
    *file = (safetensors){0};
}

const safetensor *safetensors_find(const safetensors *file, const char *name)
{
    const safetensor key = {.name = name};
    if (file->count == 0)
        return NULL;
    return bsearch(&key, file->tensors, file->count, sizeof key, by_name);
}

/* --- writing --- */

/* false: a control character, which names have no use for. */
static bool put_string(FILE *to, const char *text)
{
    fputc('"', to);
    for (; *text; text++) {
        if ((unsigned char)*text < 0x20)
            return false;
        if (*text == '"' || *text == '\\')
            fputc('\\', to);
        fputc(*text, to);
    }
    fputc('"', to);
    return true;
}

static bool put_header(FILE *to, const safetensor *tensors, size_t count)
{
    size_t offset = 0, bytes;
    fputc('{', to);
    for (size_t i = 0; i < count; i++) {
        const safetensor *t = &tensors[i];
        if (t->rank > SAFETENSORS_MAX_RANK || dtype_bytes(t->dtype) == 0 || !count_bytes(t, &bytes))
            return false;
        fputs(i ? "," : "", to);
        if (!put_string(to, t->name))
            return false;
        fprintf(to, ":{\"dtype\":\"%s\",\"shape\":[", t->dtype);
        for (size_t d = 0; d < t->rank; d++)
            fprintf(to, "%s%zu", d ? "," : "", t->shape[d]);
        fprintf(to, "],\"data_offsets\":[%zu,%zu]}", offset, offset + bytes);
        offset += bytes;
    }
    fputc('}', to);
    while (ftell(to) % 8) /* so that the data are aligned */
        fputc(' ', to);
    return true;
}

bool safetensors_write(const char *path, const safetensor *tensors, size_t count)
{
    char *header = NULL;
    size_t header_bytes = 0;
    FILE *memory = open_memstream(&header, &header_bytes), *to = NULL;
    bool right = memory && put_header(memory, tensors, count);
    if (memory && !right)
        errno = EINVAL;
    const int reason = errno;
    if (memory && fclose(memory) != 0)
        right = false;
    errno = reason;
    if (right && (to = fopen(path, "wb"))) {
        for (int i = 0; i < 8; i++)
            fputc((int)((uint64_t)header_bytes >> 8 * i & 0xff), to);
        fwrite(header, 1, header_bytes, to);
        for (size_t i = 0; i < count; i++) {
            size_t bytes = 0;
            count_bytes(&tensors[i], &bytes);
            fwrite(tensors[i].data, 1, bytes, to);
        }
        right = !ferror(to);
        right = fclose(to) == 0 && right;
    }
    free(header);
    return right && to;
}
