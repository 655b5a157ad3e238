/* Records: a few lines of text, an empty line, and the words as little-endian bytes. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"

static uint64_t fnv(uint64_t state, const void *data, size_t size)
{
    const unsigned char *bytes = data;
    for (size_t i = 0; i < size; i++)
        state = (state ^ bytes[i]) * 0x100000001b3u;
    return state;
}

static const uint64_t fnv_start = 0xcbf29ce484222325u;

/* NaN of every kind as one. */
static uint32_t canonical(conform_rule rule, uint32_t word)
{
    const uint32_t infinity = rule == CONFORM_F16 ? 0x7c00 : 0x7f80;
    if (rule == CONFORM_F16 || rule == CONFORM_BF16) {
        if ((word & 0x7fff) > infinity)
            word |= 0xffff;
        if ((word >> 16 & 0x7fff) > infinity)
            word |= 0xffff0000;
    } else if (rule >= CONFORM_F32 && rule != CONFORM_F64 && (word & 0x7fffffff) > 0x7f800000) {
        word = 0x7fffffff;
    }
    return word;
}

/* The words of one row, made comparable. */
static void canonical_row(const conform_case *c, const uint32_t *out, uint32_t *row)
{
    for (uint32_t i = 0; i < conform_words_out(c); i++) {
        const conform_rule rule = conform_column_of(c, i).rule;
        row[i] = canonical(rule, out[i]);
        if (rule != CONFORM_F64)
            continue;
        const uint64_t x = (uint64_t)out[i + 1] << 32 | out[i];
        const bool nan = (x & 0x7fffffffffffffffu) > 0x7ff0000000000000u;
        row[i] = nan ? UINT32_MAX : out[i];
        row[i + 1] = nan ? UINT32_MAX : out[i + 1];
        i++;
    }
}

uint32_t conform_record_words(const conform_case *c)
{
    const uint32_t rows = conform_rows(c), group = c->digest_rows ? c->digest_rows : 1;
    return (rows + group - 1) / group * conform_words_out(c);
}

void conform_record_data(const conform_case *c, const uint32_t *out, uint32_t *data)
{
    const uint32_t words = conform_words_out(c), group = c->digest_rows ? c->digest_rows : 1;
    uint64_t *state = calloc(words, sizeof *state);
    uint32_t *row = calloc(words, sizeof *row);
    if (!state || !row)
        abort();
    for (uint32_t i = 0; i < conform_rows(c); i++) {
        canonical_row(c, out + (size_t)i * words, row);
        for (uint32_t w = 0; w < words; w++) {
            uint32_t *to = &data[(size_t)(i / group) * words + w];
            if (!c->digest_rows) {
                *to = row[w];
                continue;
            }
            state[w] = fnv(i % group ? state[w] : fnv_start, &row[w], sizeof row[w]);
            *to = (uint32_t)(state[w] >> 32 ^ state[w]);
        }
    }
    free(state);
    free(row);
}

void conform_record_identify(const conform_case *c, const char *source, const uint32_t *in,
                             conform_record *r)
{
    const uint32_t shape[] = {c->blocks, c->threads, c->digest_rows, conform_words_out(c)};
    r->text = fnv(fnv_start, source, strlen(source));
    if (c->option)
        r->text = fnv(r->text, c->option, strlen(c->option));
    r->inputs = fnv(fnv_start, in, (size_t)conform_rows(c) * conform_words_in(c) * sizeof *in);
    r->inputs = fnv(r->inputs, shape, sizeof shape);
    r->words = conform_record_words(c);
}

bool conform_record_write(const char *path, const conform_case *c, const conform_record *r)
{
    FILE *file = fopen(path, "wb");
    if (!file)
        return false;
    bool ok = fprintf(file,
                      "fajit conformance record 1\ncase %s\ndevice %s\nsm %d\nnvrtc %d\n"
                      "text %016" PRIx64 "\ninputs %016" PRIx64 "\nwords %u\n\n",
                      c->name, r->device, (int)r->sm, (int)r->nvrtc_version, r->text, r->inputs,
                      r->words) > 0;
    ok = fwrite(r->data, sizeof *r->data, r->words, file) == r->words && ok;
    return fclose(file) == 0 && ok;
}

static bool read_head(FILE *file, const conform_case *c, conform_record *r)
{
    char name[80] = "";
    int sm = 0, version = 0;
    const int found = fscanf(file,
                             "fajit conformance record 1\ncase %79s\ndevice %127[^\n]\nsm %d\n"
                             "nvrtc %d\ntext %16" SCNx64 "\ninputs %16" SCNx64 "\nwords %u",
                             name, r->device, &sm, &version, &r->text, &r->inputs, &r->words);
    r->sm = sm;
    r->nvrtc_version = version;
    return found == 7 && strcmp(name, c->name) == 0 && fgetc(file) == '\n' && fgetc(file) == '\n' &&
           r->words > 0 && r->words < 1u << 24;
}

int conform_record_read(const char *path, const conform_case *c, conform_record *r)
{
    *r = (conform_record){0};
    FILE *file = fopen(path, "rb");
    if (!file)
        return 0;
    bool ok = read_head(file, c, r) && (r->data = calloc(r->words, sizeof *r->data)) != NULL &&
              fread(r->data, sizeof *r->data, r->words, file) == r->words && fgetc(file) == EOF;
    fclose(file);
    if (!ok)
        conform_record_free(r);
    return ok ? 1 : -1;
}

void conform_record_free(conform_record *r)
{
    free(r->data);
    r->data = NULL;
}
