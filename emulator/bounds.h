// __launch_bounds__ for a compiler that does not know it.
#ifndef FAJIT_EMU_BOUNDS_H
#define FAJIT_EMU_BOUNDS_H

#include <string>
#include <vector>

namespace fajit_emu {

// Gives every kernel with bounds a first parameter whose type holds them, FAJIT_EMU_BOUNDS(...) of
// the prelude: an expression there may use the parameters of a template. Bounds whose kernel is not
// found become an error where they stand. No line moves.
void bounds_rewrite(const std::vector<std::string *> &texts);

} // namespace fajit_emu

#endif
