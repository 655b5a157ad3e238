/* The JSON reader: recursive descent over bytes, nodes and text in one arena. */
#include "json.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json_text.h"
#include "status.h"

#define MAX_DEPTH 64u
#define MAX_BYTES ((size_t)256 << 20) /* keeps line and column within 32 bits */

typedef struct chunk {
    struct chunk *next;
    size_t used, size;
    max_align_t data[];
} chunk;

typedef struct document {
    fa__json root; /* first: a document is freed by its root */
    chunk *chunks;
} document;

typedef struct reader {
    const unsigned char *at, *end;
    uint32_t line, column; /* of `at` */
    unsigned depth;
    fa_status status; /* of a failure */
    document *doc;
} reader;

static void *arena_take(reader *r, size_t bytes)
{
    size_t need = (bytes + sizeof(max_align_t) - 1) & ~(sizeof(max_align_t) - 1);
    chunk *c = r->doc->chunks;

    if (!c || c->size - c->used < need) {
        size_t size = need > 8192 ? need : 8192;
        c = malloc(sizeof *c + size);
        if (!c) {
            r->status = fa__fail_memory(size);
            return NULL;
        }
        *c = (chunk){.next = r->doc->chunks, .size = size};
        r->doc->chunks = c;
    }
    void *taken = (char *)c->data + c->used;
    c->used += need;
    return taken;
}

/* Sets the error with the reader's position; false, so that a refusal is one return. */
static bool __attribute__((format(printf, 2, 3))) refuse(const reader *r, const char *format, ...)
{
    char text[256];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fa__fail(FA_ERR_MANIFEST, "line %u column %u: %s", r->line, r->column, text);
    return false;
}

static bool refuse_found(const reader *r, const char *expected)
{
    if (r->at == r->end)
        return refuse(r, "expected %s, found the end of the text", expected);
    if (*r->at > 0x20 && *r->at < 0x7f)
        return refuse(r, "expected %s, found '%c'", expected, *r->at);
    return refuse(r, "expected %s, found byte 0x%02x", expected, *r->at);
}

static int peek(const reader *r)
{
    return r->at < r->end ? *r->at : -1;
}

static void step(reader *r)
{
    unsigned char c = *r->at++;

    if (c == '\n') {
        r->line++;
        r->column = 1;
    } else if ((c & 0xc0) != 0x80) { /* columns count characters, not bytes */
        r->column++;
    }
}

static void skip_space(reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r'))
        step(r);
}

static bool read_hex4(reader *r, uint32_t *out)
{
    uint32_t value = 0;

    for (int i = 0; i < 4; i++) {
        int c = peek(r);
        uint32_t digit = 0;
        if (c >= '0' && c <= '9')
            digit = (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            digit = (uint32_t)(c - 'a') + 10;
        else if (c >= 'A' && c <= 'F')
            digit = (uint32_t)(c - 'A') + 10;
        else
            return refuse_found(r, "four hexadecimal digits after \\u");
        value = value << 4 | digit;
        step(r);
    }
    *out = value;
    return true;
}

/* After "\u": one escape, or the two that make a character outside the basic plane. */
static bool read_unicode_escape(reader *r, char **to)
{
    uint32_t code = 0, low = 0;

    if (!read_hex4(r, &code))
        return false;
    if (code == 0)
        return refuse(r, "\\u0000 is not allowed: texts here cannot hold a NUL");
    if (code >= 0xdc00 && code <= 0xdfff)
        return refuse(r, "\\u%04x is the second half of a surrogate pair without its first",
                      (unsigned)code);
    if (code >= 0xd800 && code <= 0xdbff) {
        if (r->end - r->at < 2 || r->at[0] != '\\' || r->at[1] != 'u')
            return refuse(r, "\\u%04x is the first half of a surrogate pair without its second",
                          (unsigned)code);
        step(r);
        step(r);
        if (!read_hex4(r, &low))
            return false;
        if (low < 0xdc00 || low > 0xdfff)
            return refuse(r, "\\u%04x\\u%04x is not a surrogate pair", (unsigned)code,
                          (unsigned)low);
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    *to += fa__utf8_encode(code, *to);
    return true;
}

static bool read_escape(reader *r, char **to)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";

    step(r); /* the backslash */
    int c = peek(r);
    if (c == 'u') {
        step(r);
        return read_unicode_escape(r, to);
    }
    const char *letter = c > 0 ? strchr(letters, c) : NULL;
    if (!letter)
        return refuse_found(r, "one of \" \\ / b f n r t u after a backslash");
    *(*to)++ = meanings[letter - letters];
    step(r);
    return true;
}

static bool read_string(reader *r, const char **text, size_t *len)
{
    const unsigned char *quote = r->at + 1;

    while (quote < r->end && *quote != '"')
        quote += *quote == '\\' && r->end - quote > 1 ? 2 : 1;
    /* Decoding never makes text longer. */
    char *start = arena_take(r, (size_t)(quote - r->at)), *to = start;
    if (!start)
        return false;
    step(r);
    for (;;) {
        int c = peek(r);
        if (c < 0)
            return refuse(r, "the text ends inside a string");
        if (c == '"')
            break;
        if (c < 0x20)
            return refuse(r, "control character 0x%02x inside a string: write it as an escape", c);
        if (c == '\\') {
            if (!read_escape(r, &to))
                return false;
            continue;
        }
        size_t bytes = fa__utf8_length(r->at, (size_t)(r->end - r->at));
        if (bytes == 0)
            return refuse(r, "byte 0x%02x is not valid UTF-8 here", c);
        while (bytes--) {
            *to++ = (char)*r->at;
            step(r);
        }
    }
    step(r);
    *to = '\0';
    *text = start;
    *len = (size_t)(to - start);
    return true;
}

static bool read_number(reader *r, fa__json *node)
{
    size_t len = fa__json_number_length((const char *)r->at, (size_t)(r->end - r->at));
    const unsigned char *after = r->at + len;

    /* A number that a digit, letter, sign or point follows is 01, 1.2.3, 0x10, 1e or the like. */
    if (len == 0 || (after < r->end && (*after == '+' || *after == '-' || *after == '.' ||
                                        (*after >= '0' && *after <= '9') ||
                                        ((*after | 0x20) >= 'a' && (*after | 0x20) <= 'z'))))
        return refuse(r,
                      "malformed number: JSON has no leading zeros, hexadecimal, NaN or "
                      "infinity, and wants digits on both sides of a point");
    char *text = arena_take(r, len + 1);
    if (!text)
        return false;
    memcpy(text, r->at, len);
    text[len] = '\0';
    while (r->at < after)
        step(r);
    node->type = FA__JSON_NUMBER;
    node->text = text;
    node->text_len = len;
    return true;
}

static bool read_word(reader *r, fa__json *node)
{
    static const struct {
        const char *text;
        fa__json_type type;
        bool boolean;
    } words[] = {{"true", FA__JSON_BOOL, true},
                 {"false", FA__JSON_BOOL, false},
                 {"null", FA__JSON_NULL, false}};

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t len = strlen(words[i].text);
        if ((size_t)(r->end - r->at) >= len && memcmp(r->at, words[i].text, len) == 0) {
            node->type = words[i].type;
            node->boolean = words[i].boolean;
            while (len--)
                step(r);
            return true;
        }
    }
    return refuse_found(r, "a value");
}

static int compare_keys(const void *left, const void *right)
{
    const fa__json *a = *(fa__json *const *)left, *b = *(fa__json *const *)right;
    int order = strcmp(a->key, b->key);

    if (order != 0)
        return order;
    if (a->key_line != b->key_line)
        return a->key_line < b->key_line ? -1 : 1;
    return a->key_column < b->key_column ? -1 : a->key_column > b->key_column;
}

/* Sorted, so that an object of many members costs n log n. */
static bool check_duplicates(reader *r, const fa__json *object)
{
    bool unique = true;
    size_t n = 0;

    if (object->count < 2)
        return true;
    const fa__json **members = malloc(object->count * sizeof *members);
    if (!members) {
        r->status = fa__fail_memory(object->count * sizeof *members);
        return false;
    }
    for (const fa__json *m = object->child; m; m = m->next)
        members[n++] = m;
    qsort(members, n, sizeof *members, compare_keys);
    for (size_t i = 1; i < n && unique; i++) {
        if (strcmp(members[i - 1]->key, members[i]->key) == 0) {
            fa__fail(FA_ERR_MANIFEST, "line %u column %u: key \"%.80s\" is there twice",
                     members[i]->key_line, members[i]->key_column, members[i]->key);
            unique = false;
        }
    }
    free(members);
    return unique;
}

static bool read_value(reader *r, fa__json *node);

static bool read_key(reader *r, fa__json *item)
{
    size_t len = 0;

    if (peek(r) != '"')
        return refuse_found(r, "a key in quotes");
    item->key_line = r->line;
    item->key_column = r->column;
    if (!read_string(r, &item->key, &len))
        return false;
    skip_space(r);
    if (peek(r) != ':')
        return refuse_found(r, "':' after the key");
    step(r);
    skip_space(r);
    return true;
}

static bool read_container(reader *r, fa__json *node, bool object)
{
    const int close = object ? '}' : ']';
    fa__json **tail = &node->child;

    node->type = object ? FA__JSON_OBJECT : FA__JSON_ARRAY;
    if (r->depth == MAX_DEPTH)
        return refuse(r, "nested deeper than %u levels", MAX_DEPTH);
    r->depth++;
    step(r);
    skip_space(r);
    while (node->count > 0 || peek(r) != close) {
        fa__json *item = arena_take(r, sizeof *item);
        if (!item)
            return false;
        *item = (fa__json){0};
        if ((object && !read_key(r, item)) || !read_value(r, item))
            return false;
        *tail = item;
        tail = &item->next;
        node->count++;
        skip_space(r);
        if (peek(r) == close)
            break;
        if (peek(r) != ',')
            return refuse_found(r, object ? "',' or '}'" : "',' or ']'");
        step(r);
        skip_space(r);
    }
    step(r);
    r->depth--;
    return !object || check_duplicates(r, node);
}

static bool read_value(reader *r, fa__json *node)
{
    int c = peek(r);

    node->line = r->line;
    node->column = r->column;
    if (c == '{' || c == '[')
        return read_container(r, node, c == '{');
    if (c == '"') {
        node->type = FA__JSON_STRING;
        return read_string(r, &node->text, &node->text_len);
    }
    if (c == '-' || (c >= '0' && c <= '9'))
        return read_number(r, node);
    return read_word(r, node);
}

fa_status fa__json_parse(const char *text, size_t len, fa__json **out)
{
    reader r = {.line = 1, .column = 1, .status = FA_ERR_MANIFEST};

    *out = NULL;
    r.at = (const unsigned char *)text;
    r.end = r.at ? r.at + len : NULL;
    if (len > MAX_BYTES) {
        refuse(&r, "the text has %zu bytes; the limit is %zu", len, MAX_BYTES);
        return r.status;
    }
    if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        refuse(&r, "the text begins with a byte order mark: save it as UTF-8 without one");
        return r.status;
    }
    r.doc = calloc(1, sizeof *r.doc);
    if (!r.doc)
        return fa__fail_memory(sizeof *r.doc);
    skip_space(&r);
    if (!read_value(&r, &r.doc->root))
        goto fail;
    skip_space(&r);
    if (r.at != r.end) {
        refuse_found(&r, "the end of the text");
        goto fail;
    }
    *out = &r.doc->root;
    return FA_OK;
fail:
    fa__json_free(&r.doc->root);
    return r.status;
}

void fa__json_free(fa__json *root)
{
    document *doc = (document *)(void *)root;

    if (!doc)
        return;
    for (chunk *c = doc->chunks, *next = NULL; c; c = next) {
        next = c->next;
        free(c);
    }
    free(doc);
}

const fa__json *fa__json_get(const fa__json *object, const char *key)
{
    if (!object || object->type != FA__JSON_OBJECT)
        return NULL;
    for (const fa__json *m = object->child; m; m = m->next)
        if (strcmp(m->key, key) == 0)
            return m;
    return NULL;
}
