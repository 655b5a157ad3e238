/* What the makers of cases share: tensors of a case and arrays of indices in it. */
#ifndef FAJIT_ORACLE_MAKE_H
#define FAJIT_ORACLE_MAKE_H

#include "oracle.h"

/* A further tensor, of poison; `host` is NULL without memory (see oracle_has_memory). */
oracle_tensor *oracle_add_tensor(oracle_case *c, const char *name, fa_dtype dtype, int64_t count);
oracle_tensor *oracle_add_e4m3(oracle_case *c, const char *name, int64_t count);
oracle_tensor *oracle_add_indices(oracle_case *c, const char *name, fa_index type, int64_t count);

/* Whether every tensor got its memory; an output's `expected` and one of `untouched` and `exact`
 * count. */
bool oracle_has_memory(const oracle_case *c);
void oracle_free_tensors(oracle_case *c);

/* Frequencies that no base gives: the later pairs turn up to twice as slowly. */
float oracle_odd_frequency(double plain, int64_t pair, int64_t pairs);

#endif
