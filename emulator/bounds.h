// What the text of a program says of its kernels.
#ifndef FAJIT_EMU_BOUNDS_H
#define FAJIT_EMU_BOUNDS_H

#include <string>
#include <vector>

namespace fajit_emu {

// __launch_bounds__ for a compiler that does not know it: gives every kernel with bounds a first parameter whose type holds them, FAJIT_EMU_BOUNDS(...) of
// the prelude: an expression there may use the parameters of a template. Bounds whose kernel is not
// found become an error where they stand. No line moves.
void bounds_rewrite(const std::vector<std::string *> &texts);

// Kernels that a module has under their own names though nobody asked for a name: those defined as
// extern "C", outside namespaces, #if and macros.
std::vector<std::string> plain_kernels(const std::string &text);

} // namespace fajit_emu

#endif
