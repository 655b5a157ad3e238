/* Tensors as a launch gives them: what is legal, what overlaps, how wide an access may be. Pure. */
#ifndef FA_TENSOR_H
#define FA_TENSOR_H

#include "fajit.h"

/* A [batch, head, token, row] tensor with every default filled in. */
typedef struct fa__view {
    const char *op, *name; /* for messages: "rope", "q_out" */
    uintptr_t base;        /* address of the first element */
    int64_t extent[3];     /* batch, head, token: at least 1 */
    int64_t stride[3];     /* elements; 0 where the extent is 1 */
    int64_t row;           /* elements of the contiguous dimension */
    bool packed;           /* without gaps, in either layout */
    int64_t element_bytes; /* a power of two */
    uintptr_t begin, end;  /* all bytes lie here */
} fa__view;

/* Whether the tokens of a head lie nearer to each other than the heads of a token. */
static inline bool fa__view_tokens_inside(const fa__view *view)
{
    const int64_t head = view->stride[1], token = view->stride[2];
    return view->extent[1] > 1 && view->extent[2] > 1 &&
           (head < 0 ? 0 - (uint64_t)head : (uint64_t)head) >
               (token < 0 ? 0 - (uint64_t)token : (uint64_t)token);
}

/* FA_ERR_NULL_POINTER, FA_ERR_MISALIGNED, FA_ERR_STRIDE when an address cannot be formed. */
fa_status fa__view_make(fa__view *view, const char *op, const char *name, const fa_tensor *tensor,
                        fa_layout layout, const int64_t extent[3], int64_t row,
                        int64_t element_bytes);

/* A matrix of `rows` rows: a view of that many tokens. The same errors. */
static inline fa_status fa__view_make_matrix(fa__view *view, const char *op, const char *name,
                                             const fa_matrix *matrix, int64_t rows, int64_t columns,
                                             int64_t element_bytes)
{
    const fa_tensor tensor = {.data = matrix->data, .stride_token = matrix->stride};
    const int64_t extent[3] = {1, 1, rows};
    return fa__view_make(view, op, name, &tensor, FA_LAYOUT_BHND, extent, columns, element_bytes);
}

/* A plain array, to be held apart from outputs. The same errors. */
fa_status fa__view_make_array(fa__view *view, const char *op, const char *name, const void *data,
                              int64_t count, int64_t element_bytes);

/* The same of `rows` rows of `count` elements that are `stride` apart, fa_OP_args.NAME_stride.
 * FA_ERR_STRIDE too. */
fa_status fa__view_make_rows(fa__view *view, const char *op, const char *name, const void *data,
                             int64_t stride, int64_t rows, int64_t count, int64_t element_bytes);

/* FA_ERR_STRIDE unless no two elements can share memory: each stride, from the smallest up, steps
 * over all that the smaller ones reach. */
fa_status fa__view_check_strides(const fa__view *view);
static inline fa_status fa__view_check_output(const fa__view *view)
{
    return view->packed ? FA_OK : fa__view_check_strides(view);
}

/* FA_ERR_ALIAS when an output shares memory with another tensor. Tensors of equal strides (slices
 * of one buffer) are compared element by element, others by the range of their addresses. */
fa_status fa__view_check_slices(const fa__view *output, const fa__view *other);
static inline fa_status fa__view_check_apart(const fa__view *output, const fa__view *other)
{
    return output->end <= other->begin || other->end <= output->begin
               ? FA_OK
               : fa__view_check_slices(output, other);
}

/* The bits of every row's address, merged: each power of two that divides the result divides all.
 */
uint64_t fa__view_address_bits(const fa__view *view);

#endif
