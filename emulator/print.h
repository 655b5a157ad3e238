// What kernels print.
#ifndef FAJIT_EMU_PRINT_H
#define FAJIT_EMU_PRINT_H

#include <cstdarg>

#include "device/abi.h"

namespace fajit_emu {

// printf of a kernel, to standard output; what it gives is as on a device.
int print(const char *format, va_list values);

// The line of a failed assertion, to standard error.
void print_assertion(const site &where, const char *condition, const char *function,
                     const thread_view &who);

// Makes what was printed visible, as a device does at the latest when it is waited for.
void print_show();

} // namespace fajit_emu

#endif
