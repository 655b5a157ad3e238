/* Double-precision references, and what the tool, the GPU tests and the benchmarks need to run any
 * operation on any sizes: one fa_oracle per operation, in the file named after it. Host code only.
 */
#ifndef FAJIT_ORACLE_H
#define FAJIT_ORACLE_H

#include "fajit.h"

/* Value i of an input with this seed, in [lo, hi): the generator of tests/golden/cases.json. */
float oracle_uniform(uint64_t seed, uint64_t i, double lo, double hi);
/* The same, normally distributed with mean 0 and variance 1 (Box and Muller, "A Note on the
 * Generation of Random Normal Deviates", 1958). */
double oracle_normal(uint64_t seed, uint64_t i);

/* Storage conversions, round to nearest even. bytes = elements * size of dtype. */
void oracle_store(fa_dtype dtype, void *to, const double *from, size_t count);
void oracle_load(fa_dtype dtype, double *to, const void *from, size_t count);
double oracle_rounded(fa_dtype dtype, double value); /* stored and loaded */
/* fp8 e4m3: beyond 448 becomes 448. */
uint8_t oracle_e4m3_store(double value);
double oracle_e4m3_load(uint8_t bits);

/* tensor_time of products of such elements. */
static inline double oracle_tensor_time(fa_dtype dtype)
{
    return dtype == FA_F32 ? 3 : 1;
}

static inline size_t oracle_element_bytes(fa_dtype dtype)
{
    return dtype == FA_F32 ? 4 : 2;
}

/* One tensor of a case on the host. */
typedef struct oracle_tensor {
    const char *name; /* "q", "q_out", "positions" */
    fa_dtype dtype;   /* element type, unless is_index or is_e4m3 */
    bool is_index;    /* int32 or int64, by bytes / count */
    size_t count;     /* elements, padding between strides included */
    size_t bytes;
    void *host;       /* what the device starts with: inputs; for outputs a poison pattern */
    double *expected; /* outputs, after expect: the reference, NaN where nothing may be written (see
                         untouched) */
    bool output;
    bool
        *untouched; /* outputs with gaps: true where the element must keep its poison; NULL: none */
    bool *exact;  /* outputs: true where the element must have the bits it has in `stored`, whatever
                       `expected` holds; NULL: nowhere */
    void *stored; /* with `exact`: as many elements as host */
    bool is_e4m3; /* 8-bit elements; dtype does not count */
    double atol, rtol; /* a gate of its own; both 0: the case's */
} oracle_tensor;

typedef struct oracle_case {
    fa_spec spec;
    fa_args args; /* pointers are filled by bind */
    uint64_t seed;
    oracle_tensor tensor[16];
    size_t tensor_count;
    double atol, rtol;  /* the gate: |actual - expected| <= atol + rtol * |expected| */
    double bytes_moved; /* fewest bytes through device memory */
    double flops;       /* additions and multiplications */
    /* Of each of them on tensor cores, where one with 16-bit factors takes 1, for the accuracy that
     * was asked for at least: fp8 0.5, tf32 2, float32 3 (three products of halves). 0: they are no
     * matrix product, and float32 lanes do them. */
    double tensor_time;
    void *state; /* the oracle's own */
} oracle_case;

typedef struct fa_oracle {
    fa_op op;
    /* Sizes for verify and bench that are not spec members ("offset", "max_position",
     * "stride_pad"): NULL-terminated names, each an int64. */
    const char *const *extra_names;
    const int64_t *extra_defaults;
    /* Whether a size of that name, a dimension or an extra one, counts with this spec. NULL: all
     * of them do. */
    bool (*uses_size)(const fa_spec *spec, const char *name);
    /* Fills everything but what is expected: `sizes` is a spec whose dimensions are all set (the
     * shape of this case), `spec` the one to compile (some of them maybe dynamic). false, with a
     * message in `why`, when the shape makes no sense. Free with free_case. */
    bool (*make_case)(const fa_spec *spec, const fa_spec *sizes, const int64_t *extra,
                      uint64_t seed, oracle_case *out, char *why, size_t why_size);
    /* Computes what is expected of the outputs, and the gate where it depends on that, on one
     * thread. */
    void (*expect)(oracle_case *c);
    /* Points args at device memory: device[i] for tensor[i] (in-place operations read and write
     * one). */
    void (*bind)(oracle_case *c, void *const *device);
    void (*free_case)(oracle_case *c);
} fa_oracle;

const fa_oracle *oracle_find(fa_op op); /* NULL: none */

/* Tensor of this name; NULL: none. */
oracle_tensor *oracle_find_tensor(oracle_case *c, const char *name);

/* Entry i of an array of integers. */
int64_t oracle_index(const oracle_tensor *t, int64_t i);
void oracle_set_index(const oracle_tensor *t, int64_t i, int64_t value);

/* Compares one output as downloaded with its reference: inf and NaN patterns equal, untouched
 * elements unchanged, the rest within the gate. Returns the number of bad elements, the first one's
 * index and both values, and the largest error in units of the gate. */
typedef struct oracle_verdict {
    size_t bad, first_bad;
    double actual, expected, worst_ratio, max_abs_error;
} oracle_verdict;
oracle_verdict oracle_compare(const oracle_case *c, const oracle_tensor *t, const void *actual);

extern const fa_oracle fa_oracle_rope;            /* tests/oracle/rope_case.c */
extern const fa_oracle fa_oracle_kv_update;       /* tests/oracle/kv_update_case.c */
extern const fa_oracle fa_oracle_lowrank_kv;      /* tests/oracle/lowrank_kv_case.c */
extern const fa_oracle fa_oracle_attention;       /* tests/oracle/attention_case.c */
extern const fa_oracle fa_oracle_linear;          /* tests/oracle/linear.c */
extern const fa_oracle fa_oracle_cross_attention; /* tests/oracle/cross_attention_case.c */

#endif
