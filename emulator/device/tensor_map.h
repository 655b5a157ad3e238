// What a tensor map holds here: cuTensorMapEncodeTiled writes it, a bulk copy reads it. Includes
// nothing, as a part of the prelude of kernels.
#ifndef FAJIT_EMU_TENSOR_MAP_H
#define FAJIT_EMU_TENSOR_MAP_H

namespace fajit_emu {

constexpr unsigned TENSOR_MAP_MAGIC = 0x544d4150;

struct alignas(64) tensor_map {
    unsigned magic;
    unsigned char rank, interleave, swizzle, fills_with_nan; // the driver's numbers
    unsigned long long address;
    unsigned long long size[5];   // elements; the first is the innermost
    unsigned long long stride[4]; // bytes, of the second dimension and on
    unsigned short box[5];        // elements
    unsigned char step[5];        // elements
    unsigned char type;           // the driver's number
    unsigned char element_bits;
};
static_assert(sizeof(tensor_map) == 128, "a tensor map has 128 bytes");

} // namespace fajit_emu

#endif
