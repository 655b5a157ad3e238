// Tensor maps: everything that the driver checks, then the values as they are.
#include <cstring>

#include "device/tensor_map.h"
#include "driver.h"

using namespace fajit_emu;

static_assert(sizeof(CUtensorMap) == sizeof(tensor_map), "one and the same");

namespace {

// Types of later versions of cuda.h by their numbers.
enum packed : int { U4_ALIGN8 = 13, U4_ALIGN16 = 14, U6_ALIGN16 = 15 };

bool is_packed(int type)
{
    return type >= U4_ALIGN8;
}

bool align16(int type)
{
    return type == U4_ALIGN16 || type == U6_ALIGN16;
}

// 0: no such type.
unsigned element_bits(int type)
{
    static const unsigned char bits[] = {8,  16, 32, 32, 64, 64, 16, 32,
                                         64, 16, 32, 32, 32, 4,  4,  6};
    return type >= 0 && type < static_cast<int>(sizeof bits) ? bits[type] : 0;
}

bool is_floating(int type)
{
    return type >= CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && type <= CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ;
}

struct tiled {
    int type, interleave, swizzle, promotion, fill;
    unsigned rank;
    uint64_t address;
    const cuuint64_t *size, *stride;
    const cuuint32_t *box, *step;
};

bool good_kinds(const tiled &t)
{
    const bool none = t.interleave == CU_TENSOR_MAP_INTERLEAVE_NONE;
    if (!element_bits(t.type) || t.interleave < 0 || t.interleave > CU_TENSOR_MAP_INTERLEAVE_32B ||
        t.swizzle < 0 || t.swizzle > 6 || t.promotion < 0 ||
        t.promotion > CU_TENSOR_MAP_L2_PROMOTION_L2_256B || t.fill < 0 ||
        t.fill > CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA)
        return false;
    if (t.fill && !is_floating(t.type))
        return false;
    if (t.rank < (none ? 1u : 3u) || t.rank > 5)
        return false;
    if (t.interleave == CU_TENSOR_MAP_INTERLEAVE_32B && t.swizzle != CU_TENSOR_MAP_SWIZZLE_32B)
        return false;
    if (t.type == U6_ALIGN16 && !none)
        return false;
    return !align16(t.type) || t.swizzle == CU_TENSOR_MAP_SWIZZLE_NONE ||
           t.swizzle == CU_TENSOR_MAP_SWIZZLE_128B || t.swizzle == 4 ||
           (t.swizzle == 6 && t.type == U6_ALIGN16);
}

// Where the tensor is and how it lies.
bool good_tensor(const tiled &t)
{
    const uint64_t unit = t.interleave == CU_TENSOR_MAP_INTERLEAVE_32B || align16(t.type) ? 32 : 16;
    if (t.address % unit)
        return false;
    for (unsigned i = 0; i < t.rank; i++)
        if (t.size[i] == 0 || t.size[i] > uint64_t{1} << 32)
            return false;
    for (unsigned i = 0; i + 1 < t.rank; i++)
        if (t.stride[i] % unit || t.stride[i] >= uint64_t{1} << 40)
            return false;
    if (is_packed(t.type) && t.size[0] % (align16(t.type) ? 128 : 2))
        return false;
    return true;
}

unsigned swizzle_span(int swizzle)
{
    return swizzle == CU_TENSOR_MAP_SWIZZLE_32B   ? 32
           : swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64
                                                  : 128;
}

// What one copy takes of it.
bool good_box(const tiled &t)
{
    const bool none = t.interleave == CU_TENSOR_MAP_INTERLEAVE_NONE;
    for (unsigned i = 0; i < t.rank; i++) {
        if (t.box[i] == 0 || t.box[i] > 256)
            return false;
        if ((i || !none) && (t.step[i] == 0 || t.step[i] > 8))
            return false;
    }
    if (align16(t.type))
        return t.box[0] == 128;
    const unsigned inner = t.box[0] * element_bits(t.type) / 8;
    if (none && (t.box[0] * element_bits(t.type) % 128))
        return false;
    return !none || t.swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || inner <= swizzle_span(t.swizzle);
}

void encode(const tiled &t, CUtensorMap *out)
{
    tensor_map m{};
    m.magic = TENSOR_MAP_MAGIC;
    m.rank = static_cast<unsigned char>(t.rank);
    m.interleave = static_cast<unsigned char>(t.interleave);
    m.swizzle = static_cast<unsigned char>(t.swizzle);
    m.fills_with_nan = t.fill != 0;
    m.address = t.address;
    m.type = static_cast<unsigned char>(t.type);
    m.element_bits = static_cast<unsigned char>(element_bits(t.type));
    for (unsigned i = 0; i < t.rank; i++) {
        m.size[i] = t.size[i];
        m.box[i] = static_cast<unsigned short>(t.box[i]);
        // The first is ignored where nothing is interleaved.
        m.step[i] = i || t.interleave ? static_cast<unsigned char>(t.step[i]) : 1;
        if (i)
            m.stride[i - 1] = t.stride[i - 1];
    }
    memcpy(static_cast<void *>(out), &m, sizeof m);
}

bool misplaced(const CUtensorMap *map)
{
    return !map || reinterpret_cast<uintptr_t>(map) % 64;
}

} // namespace

EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                       void *address, const cuuint64_t *size,
                                       const cuuint64_t *stride, const cuuint32_t *box,
                                       const cuuint32_t *step, CUtensorMapInterleave interleave,
                                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                       CUtensorMapFloatOOBfill fill)
{
    api_call c;
    if (!c.context)
        return c.result;
    if (limits_of(c.context).cc < 90)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (misplaced(map) || !address || !size || (rank > 1 && !stride) || !box || !step)
        return CUDA_ERROR_INVALID_VALUE;
    const tiled t{
        type, interleave, swizzle, promotion, fill, rank, reinterpret_cast<uintptr_t>(address),
        size, stride,     box,     step};
    if (!good_kinds(t) || !good_tensor(t) || !good_box(t))
        return CUDA_ERROR_INVALID_VALUE;
    encode(t, map);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuTensorMapReplaceAddress(CUtensorMap *map, void *address)
{
    api_call c;
    tensor_map m;
    if (!c.context)
        return c.result;
    if (misplaced(map) || !address)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&m, map, sizeof m);
    const uint64_t at = reinterpret_cast<uintptr_t>(address);
    const uint64_t unit = m.interleave == CU_TENSOR_MAP_INTERLEAVE_32B || align16(m.type) ? 32 : 16;
    if (m.magic != TENSOR_MAP_MAGIC || at % unit)
        return CUDA_ERROR_INVALID_VALUE;
    m.address = at;
    memcpy(static_cast<void *>(map), &m, sizeof m);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuTensorMapEncodeIm2col(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                        const cuuint64_t *, const cuuint64_t *, const int *,
                                        const int *, cuuint32_t, cuuint32_t, const cuuint32_t *,
                                        CUtensorMapInterleave, CUtensorMapSwizzle,
                                        CUtensorMapL2promotion, CUtensorMapFloatOOBfill)
{
    return not_implemented("im2col tensor maps");
}
