/* Tensors as a launch gives them. See tensor.h. */
#include "tensor.h"

#include <inttypes.h>

#include "status.h"

static uint64_t magnitude(int64_t value)
{
    return value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
}

static const char *const dimension_name[3] = {"batch", "head", "token"};

/* --- making --- */

static fa_status check_address(const fa__view *v, const void *data)
{
    if (!data)
        return fa__fail(FA_ERR_NULL_POINTER, "%s: %s is NULL (fa_%s_args.%s)", v->op, v->name,
                        v->op, v->name);
    if (v->base & (uintptr_t)(v->element_bytes - 1))
        return fa__fail(FA_ERR_MISALIGNED,
                        "%s: %s = 0x%" PRIxPTR " is not a multiple of its element's %" PRId64
                        " bytes (fa_%s_args.%s)",
                        v->op, v->name, v->base, v->element_bytes, v->op, v->name);
    return FA_OK;
}

static __attribute__((cold)) fa_status refuse_range(const fa__view *v)
{
    return fa__fail(FA_ERR_STRIDE,
                    "%s: %s: strides %" PRId64 ", %" PRId64 ", %" PRId64
                    " (batch, head, token) lead outside any address space",
                    v->op, v->name, v->stride[0], v->stride[1], v->stride[2]);
}

static fa_status set_range(fa__view *v, int64_t low, int64_t high)
{
    const int64_t limit = INT64_C(1) << 57; /* of a GPU's addresses, in elements to be quick */
    if (low < -limit || high > limit)
        return refuse_range(v);
    v->begin = v->base + (uintptr_t)(low * v->element_bytes);
    v->end = v->base + (uintptr_t)(high * v->element_bytes);
    return FA_OK;
}

static fa_status find_range(fa__view *v)
{
    int64_t low = 0, high = v->row;
    bool overflow = false;
    for (int i = 0; i < 3; i++) {
        int64_t reach = 0;
        overflow |= __builtin_mul_overflow(v->stride[i], v->extent[i] - 1, &reach);
        overflow |= __builtin_add_overflow(reach < 0 ? low : high, reach, reach < 0 ? &low : &high);
    }
    return overflow ? refuse_range(v) : set_range(v, low, high);
}

/* Strides without gaps; `inner` and `outer` are the dimensions that follow the row. */
static fa_status pack(fa__view *v, int outer, int inner)
{
    int64_t count = 0;
    v->packed = true;
    v->stride[inner] = v->row;
    v->stride[outer] = v->row * v->extent[inner]; /* both below 2^32 */
    if (__builtin_mul_overflow(v->stride[outer], v->extent[outer], &v->stride[0]) ||
        __builtin_mul_overflow(v->stride[0], v->extent[0], &count))
        return refuse_range(v);
    for (int i = 0; i < 3; i++)
        v->stride[i] = v->extent[i] == 1 ? 0 : v->stride[i];
    return set_range(v, 0, count);
}

fa_status fa__view_make(fa__view *view, const char *op, const char *name, const fa_tensor *tensor,
                        fa_layout layout, const int64_t extent[3], int64_t row,
                        int64_t element_bytes)
{
    *view = (fa__view){.op = op,
                       .name = name,
                       .base = (uintptr_t)tensor->data,
                       .extent = {extent[0], extent[1], extent[2]},
                       .stride = {tensor->stride_batch, tensor->stride_head, tensor->stride_token},
                       .row = row,
                       .element_bytes = element_bytes};
    fa_status status = check_address(view, tensor->data);
    if (status)
        return status;
    if (!view->stride[0] && !view->stride[1] && !view->stride[2])
        return pack(view, layout == FA_LAYOUT_BHND ? 1 : 2, layout == FA_LAYOUT_BHND ? 2 : 1);
    for (int i = 0; i < 3; i++)
        if (extent[i] == 1)
            view->stride[i] = 0;
    return find_range(view);
}

fa_status fa__view_make_array(fa__view *view, const char *op, const char *name, const void *data,
                              int64_t count, int64_t element_bytes)
{
    *view = (fa__view){.op = op,
                       .name = name,
                       .base = (uintptr_t)data,
                       .extent = {1, 1, 1},
                       .row = count,
                       .element_bytes = element_bytes};
    fa_status status = check_address(view, data);
    return status ? status : set_range(view, 0, count);
}

fa_status fa__view_make_rows(fa__view *view, const char *op, const char *name, const void *data,
                             int64_t stride, int64_t rows, int64_t count, int64_t element_bytes)
{
    int64_t reach = 0;
    if (stride < 0)
        return fa__fail(FA_ERR_STRIDE,
                        "%s: %s_stride = %" PRId64 " is negative (fa_%s_args.%s_stride)", op, name,
                        stride, op, name);
    if (__builtin_mul_overflow(stride, rows - 1, &reach) || reach > INT64_C(1) << 54)
        return fa__fail(FA_ERR_STRIDE,
                        "%s: %s_stride = %" PRId64
                        " leads outside any address space (fa_%s_args.%s_stride)",
                        op, name, stride, op, name);
    return fa__view_make_array(view, op, name, data, reach + count, element_bytes);
}

uint64_t fa__view_address_bits(const fa__view *view)
{
    uint64_t strides = (uint64_t)(view->stride[0] | view->stride[1] | view->stride[2]);
    return view->base | strides * (uint64_t)view->element_bytes;
}

/* --- overlap --- */

/* One dimension on the way down from the largest stride: |difference of indices| ranges from low to
 * high, with the stride made positive. */
typedef struct axis {
    uint64_t stride;
    int64_t low, high;
    int dimension;
} axis;

static void sort_axes(axis a[3]) /* largest stride first */
{
    static const int pairs[3][2] = {{0, 1}, {1, 2}, {0, 1}};
    for (int i = 0; i < 3; i++) {
        axis *x = &a[pairs[i][0]], *y = &a[pairs[i][1]];
        if (x->stride < y->stride) {
            axis swap = *x;
            *x = *y;
            *y = swap;
        }
    }
}

fa_status fa__view_check_strides(const fa__view *view)
{
    axis a[3];
    for (int i = 0; i < 3; i++)
        a[i] = (axis){magnitude(view->stride[i]), 0, view->extent[i] - 1, i};
    sort_axes(a);
    uint64_t reach = (uint64_t)view->row; /* elements; no overflow, find_range has bounded it */
    for (int i = 2; i >= 0; i--) {
        if (a[i].high == 0)
            continue;
        if (a[i].stride < reach)
            return fa__fail(FA_ERR_STRIDE,
                            "%s: elements of %s overlap: stride_%s = %" PRId64 ", at least %" PRIu64
                            " is needed (fa_%s_args.%s)",
                            view->op, view->name, dimension_name[a[i].dimension],
                            view->stride[a[i].dimension], reach, view->op, view->name);
        reach += a[i].stride * (uint64_t)a[i].high;
    }
    return FA_OK;
}

/* Whether strides agree wherever both tensors have more than one index; then *a describes the
 * differences between an index of x and one of y. */
static bool common_axes(const fa__view *x, const fa__view *y, axis a[3])
{
    if (x->element_bytes != y->element_bytes)
        return false;
    for (int i = 0; i < 3; i++) {
        bool in_x = x->extent[i] > 1, in_y = y->extent[i] > 1;
        if (in_x && in_y && x->stride[i] != y->stride[i])
            return false;
        int64_t stride = in_x ? x->stride[i] : y->stride[i];
        int64_t low = 1 - y->extent[i], high = x->extent[i] - 1;
        a[i] = stride < 0 ? (axis){magnitude(stride), -high, -low, i}
                          : (axis){magnitude(stride), low, high, i};
    }
    sort_axes(a);
    return true;
}

/* Whether each stride steps over what the smaller ones reach, so that an offset has at most two
 * ways down. */
static bool nested(const axis a[3], int64_t row)
{
    uint64_t reach = (uint64_t)row;
    for (int i = 2; i >= 0; i--) {
        uint64_t steps = (uint64_t)(a[i].high > -a[i].low ? a[i].high : -a[i].low);
        if (steps && a[i].stride < reach)
            return false;
        reach += steps * a[i].stride;
    }
    return true;
}

static int64_t clamp(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* Whether `distance` elements, from a row of one tensor to one of the other, can be made of steps
 * along a[at..2], up to so little that these rows overlap. */
static bool reachable(const axis a[3], int at, int64_t distance, int64_t row, int64_t other_row)
{
    if (at == 3)
        return distance > -other_row && distance < row;
    if (a[at].low == 0 && a[at].high == 0)
        return reachable(a, at + 1, distance, row, other_row);
    int64_t stride = (int64_t)a[at].stride;
    int64_t floor = distance / stride - (distance % stride < 0);
    for (int i = 0; i < 2; i++) {
        int64_t steps = clamp(floor + i, a[at].low, a[at].high);
        if (reachable(a, at + 1, distance - steps * stride, row, other_row))
            return true;
    }
    return false;
}

fa_status fa__view_check_slices(const fa__view *output, const fa__view *other)
{
    axis a[3];
    int64_t distance = (int64_t)(other->base - output->base) / output->element_bytes;
    const int64_t row = output->row > other->row ? output->row : other->row;
    if (common_axes(output, other, a) && nested(a, row) &&
        !reachable(a, 0, distance, output->row, other->row))
        return FA_OK;
    return fa__fail(FA_ERR_ALIAS,
                    "%s: output %s (0x%" PRIxPTR " to 0x%" PRIxPTR ") overlaps %s (0x%" PRIxPTR
                    " to 0x%" PRIxPTR
                    "); an output must lie apart from every other tensor, or be "
                    "its input by the spec's in_place",
                    output->op, output->name, output->begin, output->end, other->name, other->begin,
                    other->end);
}
