/* Small kernels whose outputs were recorded on a GPU: what the emulator, and every other GPU, has to
 * give as well. Shared by test_conformance and by conformance_record, which makes the records.
 *
 * A case NAME is the kernel `k` of NAME.cu: thread number `row` of the grid reads IN words at
 * in + row * IN and writes OUT words at out + row * OUT. */
#ifndef CONFORMANCE_H
#define CONFORMANCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fajit.h"

/* When a word (a pair of words for F64) agrees with the recorded one. */
typedef enum conform_rule {
    CONFORM_BITS, /* the same bits */
    CONFORM_F16, /* the same bits in both halves of the word, where any NaN is as good as another */
    CONFORM_BF16,
    CONFORM_F32,
    CONFORM_F64,   /* this and the next word */
    CONFORM_CLOSE, /* f32: at most `ulp` representable values apart, or at most `near` */
} conform_rule;

typedef struct conform_column {
    const char *name;
    conform_rule rule;
    double ulp, near;
} conform_column;

#define CONFORM_MAX_COLUMNS 48

typedef struct conform_case {
    const char *name;
    int32_t least_sm; /* compute capability * 10 */
    bool same_sm;     /* only where it was recorded: architectures differ here */
    uint32_t blocks, threads;
    const char *inputs;   /* a letter for each input, see conform_inputs.c */
    uint32_t digest_rows; /* 0: all words are recorded; else a digest of so many rows each */
    const char *option;   /* of NVRTC, or NULL */
    conform_column columns[CONFORM_MAX_COLUMNS]; /* the last name counts for all words after it */
    uint32_t words_out;                          /* 0: as many as columns */
} conform_case;

extern const conform_case conform_cases[];
extern const size_t conform_case_count;
const conform_case *conform_find(const char *name); /* NULL: none */

uint32_t conform_rows(const conform_case *c);
uint32_t conform_words_in(const conform_case *c);
uint32_t conform_words_out(const conform_case *c);
conform_column conform_column_of(const conform_case *c, uint32_t word);

/* Inputs of all rows, always the same: conform_rows * conform_words_in words. */
void conform_inputs(const conform_case *c, uint32_t *in);

/* Text of ROOT/tests/conformance/NAME.cu, to be freed; NULL: cannot be read. */
char *conform_source(const char *root, const conform_case *c);

fa_status conform_compile(fa_context *ctx, const conform_case *c, const char *source,
                          fa_kernel **kernel);
/* Compiles and runs; `out` gets conform_rows * conform_words_out words. *why is set on failure. */
fa_status conform_execute(fa_context *ctx, const conform_case *c, const char *source,
                          const uint32_t *in, uint32_t *out, const char **why);

/* --- records --- */

typedef struct conform_record {
    char device[128]; /* "sm_90 NVIDIA H200" */
    int32_t sm, nvrtc_version;
    uint64_t text, inputs; /* digests: of the kernel and of what it was given */
    uint32_t words;
    uint32_t *data;
} conform_record;

/* How many words a record of the case has, and those words, from the outputs. */
uint32_t conform_record_words(const conform_case *c);
void conform_record_data(const conform_case *c, const uint32_t *out, uint32_t *data);
void conform_record_identify(const conform_case *c, const char *source, const uint32_t *in,
                             conform_record *r);

bool conform_record_write(const char *path, const conform_case *c, const conform_record *r);
/* 1: read; 0: there is none; -1: it is damaged. */
int conform_record_read(const char *path, const conform_case *c, conform_record *r);
void conform_record_free(conform_record *r);

/* Whether `out` agrees with the record; `message` says where it does not. */
bool conform_compare(const conform_case *c, const uint32_t *in, const uint32_t *out,
                     const conform_record *r, char *message, size_t size);

#endif
