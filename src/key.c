#include "key.h"

#include <string.h>

#include "digest.h"
#include "status.h"
#include "template_text.h"

/* Bumped when the meaning of a key, of what is stored under it, or the options that every compile
 * gets (compiler.c) change. */
#define KEY_VERSION 1

static void digest(const char *text, size_t len, uint8_t out[16], char name[33])
{
    fa__digest(text, len, out);
    fa__digest_hex(out, 16, name);
}

/* One line; a newline inside `value` would let one field pose as two. */
static void line(fa__buf *out, const char *field, const char *value)
{
    fa__buf_format(out, "%s ", field);
    for (const char *c = value; *c; c++) {
        if (*c == '\n' || *c == '\\')
            fa__buf_text(out, *c == '\n' ? "\\n" : "\\\\");
        else
            fa__buf_bytes(out, c, 1);
    }
    fa__buf_text(out, "\n");
}

static void digest_line(fa__buf *out, const char *field, const char *name, const char *text)
{
    uint8_t hash[16];
    char digits[33];
    size_t len = strlen(text);
    digest(text, len, hash, digits);
    fa__buf_format(out, "%s %s %zu ", field, digits, len);
    line(out, "as", name);
}

/* The prologue's declarations, one a line, for those who read a key; the digest of the source
 * covers them as well. */
static void constant_lines(fa__buf *out, const char *source)
{
    while (*source && strncmp(source, "#line ", 6) != 0) {
        const char *newline = strchr(source, '\n');
        size_t len = newline ? (size_t)(newline - source) : strlen(source);
        fa__buf_text(out, "prologue ");
        fa__buf_bytes(out, source, len);
        fa__buf_text(out, "\n");
        source += len + (newline ? 1 : 0);
    }
}

fa_status fa__key_make(const fa__op *op, const fa__program *program, const fa__target *target,
                       const char *compiler, fa__key *key)
{
    *key = (fa__key){0};
    fa__buf *out = &key->text;
    fa__buf_format(out, "fajit key %d\n", KEY_VERSION);
    line(out, "op", op->name);
    line(out, "label", program->label.data ? program->label.data : "");
    line(out, "arch", target->arch);
    line(out, "compiler", compiler);
    line(out, "entry", program->entry);
    for (size_t i = 0; program->further_entries[i]; i++)
        line(out, "entry", program->further_entries[i]);
    constant_lines(out, program->source.data ? program->source.data : "");
    digest_line(out, "source", program->file, program->source.data ? program->source.data : "");
    for (size_t i = 0; i < program->header_count; i++)
        digest_line(out, "header", program->headers[i].name, program->headers[i].text);
    for (size_t i = 0; i < program->option_count; i++)
        if (!fa__template_option_only_logs(program->options[i]))
            line(out, "option", program->options[i]);
    if (out->failed) {
        fa__key_free(key);
        return fa__fail_memory(1024);
    }
    digest(out->data, out->len, key->hash, key->name);
    return FA_OK;
}

void fa__key_free(fa__key *key)
{
    fa__buf_free(&key->text);
    *key = (fa__key){0};
}

void fa__key_field(const char *text, size_t len, const char *field, char *out, size_t size)
{
    size_t field_len = strlen(field);
    out[0] = '\0';
    for (const char *at = text, *end = text + len; at < end;) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const char *stop = newline ? newline : end;
        if ((size_t)(stop - at) > field_len && at[field_len] == ' ' &&
            memcmp(at, field, field_len) == 0) {
            size_t n = (size_t)(stop - at) - field_len - 1;
            if (n >= size)
                n = size - 1;
            memcpy(out, at + field_len + 1, n);
            out[n] = '\0';
            return;
        }
        at = stop + 1;
    }
}
