// Thread-local symbols of an object file: the shared memory of the kernels in it.
#ifndef FAJIT_EMU_ELF_TLS_H
#define FAJIT_EMU_ELF_TLS_H

#include <cstdint>
#include <string>
#include <vector>

namespace fajit_emu {

struct tls_symbols {
    uint64_t static_bytes = 0;          // of everything defined, each at a multiple of 16
    std::vector<std::string> undefined; // extern __shared__
};

// False: not an object file that it can read.
bool tls_symbols_read(const std::string &object, tls_symbols *found);

} // namespace fajit_emu

#endif
