/* What the makers of cases share. */
#include "make.h"

#include <stdlib.h>
#include <string.h>

#define POISON 0x5a /* a finite value in every data type, so that leaving NaN out is noticed */

static oracle_tensor *add(oracle_case *c, const char *name, size_t element_bytes, int64_t count)
{
    oracle_tensor *t = &c->tensor[c->tensor_count++];
    *t = (oracle_tensor){.name = name, .count = (size_t)count};
    t->bytes = t->count * element_bytes;
    t->host = malloc(t->bytes ? t->bytes : 1);
    if (t->host)
        memset(t->host, POISON, t->bytes);
    return t;
}

oracle_tensor *oracle_add_tensor(oracle_case *c, const char *name, fa_dtype dtype, int64_t count)
{
    oracle_tensor *t = add(c, name, oracle_element_bytes(dtype), count);
    t->dtype = dtype;
    return t;
}

oracle_tensor *oracle_add_e4m3(oracle_case *c, const char *name, int64_t count)
{
    oracle_tensor *t = add(c, name, 1, count);
    t->is_e4m3 = true;
    return t;
}

oracle_tensor *oracle_add_indices(oracle_case *c, const char *name, fa_index type, int64_t count)
{
    oracle_tensor *t = add(c, name, type == FA_I64 ? 8 : 4, count);
    t->is_index = true;
    return t;
}

void oracle_add_output(oracle_case *c, const char *name, fa_dtype dtype, int64_t count)
{
    oracle_tensor *t = oracle_add_tensor(c, name, dtype, count);
    t->output = true;
    t->expected = calloc(t->count ? t->count : 1, sizeof *t->expected);
    t->untouched = calloc(t->count ? t->count : 1, sizeof *t->untouched);
}

void oracle_keep_output(oracle_tensor *t)
{
    t->output = true;
    t->expected = calloc(t->count ? t->count : 1, sizeof *t->expected);
    t->exact = calloc(t->count ? t->count : 1, sizeof *t->exact);
    t->stored = calloc(t->bytes ? t->bytes : 1, 1);
}

bool oracle_has_memory(const oracle_case *c)
{
    for (size_t i = 0; i < c->tensor_count; i++) {
        const oracle_tensor *t = &c->tensor[i];
        const bool checked = t->untouched || (t->exact && t->stored);
        if (!t->host || (t->output && (!t->expected || !checked)))
            return false;
    }
    return true;
}

void oracle_free_tensors(oracle_case *c)
{
    for (size_t i = 0; i < c->tensor_count; i++) {
        free(c->tensor[i].host);
        free(c->tensor[i].expected);
        free(c->tensor[i].untouched);
        free(c->tensor[i].exact);
        free(c->tensor[i].stored);
    }
    c->tensor_count = 0;
}

double oracle_element(const oracle_tensor *t, int64_t i)
{
    double value = 0;
    if (t->is_e4m3)
        return oracle_e4m3_load(((const uint8_t *)t->host)[i]);
    oracle_load(t->dtype, &value,
                (const char *)t->host + (size_t)i * oracle_element_bytes(t->dtype), 1);
    return value;
}

const float *oracle_floats(oracle_case *c, const char *name)
{
    const oracle_tensor *t = oracle_find_tensor(c, name);
    return t ? t->host : NULL;
}

int64_t oracle_pad_rows(fa_matrix *x, int64_t rows, int64_t columns, int64_t pad)
{
    x->stride = pad ? columns + pad : 0;
    return rows ? (rows - 1) * (columns + pad) + columns : 0;
}

double *oracle_load_matrix(const oracle_tensor *t, const fa_matrix *x, int64_t rows,
                           int64_t columns)
{
    double *values = calloc((size_t)(rows * columns) + 1, sizeof *values);
    for (int64_t i = 0; values && i < rows; i++)
        for (int64_t k = 0; k < columns; k++)
            values[i * columns + k] = oracle_element(t, i * oracle_row_stride(x, columns) + k);
    return values;
}

float oracle_odd_frequency(double plain, int64_t pair, int64_t pairs)
{
    return (float)(plain / (1 + (double)pair / (double)pairs));
}
