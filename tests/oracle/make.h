/* What the makers of cases share: tensors of a case and arrays of indices in it. */
#ifndef FAJIT_ORACLE_MAKE_H
#define FAJIT_ORACLE_MAKE_H

#include "oracle.h"

/* A further tensor, of poison; `host` is NULL without memory (see oracle_has_memory). */
oracle_tensor *oracle_add_tensor(oracle_case *c, const char *name, fa_dtype dtype, int64_t count);
oracle_tensor *oracle_add_e4m3(oracle_case *c, const char *name, int64_t count);
oracle_tensor *oracle_add_indices(oracle_case *c, const char *name, fa_index type, int64_t count);

/* A further tensor that is written, and poison where it is not. */
void oracle_add_output(oracle_case *c, const char *name, fa_dtype dtype, int64_t count);
/* Makes a tensor an output that keeps, bit for bit, what it does not get. */
void oracle_keep_output(oracle_tensor *t);

/* Whether every tensor got its memory; an output's `expected` and one of `untouched` and `exact`
 * count. */
bool oracle_has_memory(const oracle_case *c);
void oracle_free_tensors(oracle_case *c);

/* --- elements and matrices --- */

double oracle_element(const oracle_tensor *t, int64_t i);
/* A tensor of float32; NULL: there is none of this name. */
const float *oracle_floats(oracle_case *c, const char *name);

/* Elements from one row to the next. */
static inline int64_t oracle_row_stride(const fa_matrix *x, int64_t columns)
{
    return x->stride ? x->stride : columns;
}

/* Lays rows `pad` elements apart; returns how many elements they take. */
int64_t oracle_pad_rows(fa_matrix *x, int64_t rows, int64_t columns, int64_t pad);

/* As doubles, [rows, columns] without gaps, to be freed; NULL: no memory. */
double *oracle_load_matrix(const oracle_tensor *t, const fa_matrix *x, int64_t rows,
                           int64_t columns);

/* Frequencies that no base gives: the later pairs turn up to twice as slowly. */
float oracle_odd_frequency(double plain, int64_t pair, int64_t pairs);

#endif
