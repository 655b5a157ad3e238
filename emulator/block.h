// Runs the blocks of a grid, one after the other, on the calling operating-system thread: the
// threads of a block are fibers that are switched where they meet.
#ifndef FAJIT_EMU_BLOCK_H
#define FAJIT_EMU_BLOCK_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "device/abi.h"

namespace fajit_emu {

// A shared variable of every block, relative to the module's view_slot().
struct shared_array {
    ptrdiff_t offset;
    size_t bytes;
};

struct grid {
    const module *code;
    const std::vector<shared_array> *shared;
    const kernel *function;
    const unsigned char *parameters;
    dim3 blocks, threads;
    unsigned shared_bytes; // dynamic
    bool shuffled;         // take threads in an order drawn from `seed`
    uint64_t seed;
};

struct failure {
    int error = 0; // CUresult
    std::string what;
};

extern const runtime block_runtime; // for the modules

// Runs block number `index`; false, with `why`, when it failed.
bool block_run(const grid &g, uint64_t index, failure *why);

} // namespace fajit_emu

#endif
