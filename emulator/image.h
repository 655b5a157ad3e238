// The "cubin" of the emulator: this head, then a shared object.
#ifndef FAJIT_EMU_IMAGE_H
#define FAJIT_EMU_IMAGE_H

#include <cstdint>

namespace fajit_emu {

struct image_head {
    char magic[8]; // IMAGE_MAGIC
    uint32_t abi;
    uint32_t compute_capability; // 90
    uint32_t exact;              // for this architecture alone (sm_90a)
    uint32_t static_shared_bytes;
    uint64_t object_bytes, object_digest;
    uint64_t head_digest; // of all before it
};

constexpr char IMAGE_MAGIC[8] = {'f', 'a', 'j', 'i', 't', 'E', 'M', 'U'};

// FNV-1a.
inline uint64_t digest(const void *data, uint64_t bytes, uint64_t hash = 0xcbf29ce484222325u)
{
    for (uint64_t i = 0; i < bytes; i++)
        hash = (hash ^ static_cast<const unsigned char *>(data)[i]) * 0x100000001b3u;
    return hash;
}

// Of the largest architecture there is.
constexpr uint32_t MAX_SHARED_BYTES = 232448;

} // namespace fajit_emu

#endif
