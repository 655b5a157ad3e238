// Thread-local variables of an object file: the shared memory of the kernels in it.
#ifndef FAJIT_EMU_ELF_TLS_H
#define FAJIT_EMU_ELF_TLS_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fajit_emu {

struct tls_variable {
    std::string name;
    uint64_t offset, bytes;
    bool defined; // not: extern __shared__
    bool own;     // the prelude's pointer to the running thread
};

// Bytes behind every variable that belong to none.
constexpr uint64_t RED_ZONE_BYTES = 128;

// False: not an object file that it can read.
bool tls_variables_read(const void *object, size_t bytes, std::vector<tls_variable> *found);

// Makes room for the red zones, in an object that is to be linked and has a section for each
// variable. False: it is no such object, or a variable has an initial value.
bool tls_add_red_zones(std::string *object);

} // namespace fajit_emu

#endif
