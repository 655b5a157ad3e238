// The host's C++ compiler: which it is, and how it is run.
#ifndef FAJIT_EMU_HOST_COMPILER_H
#define FAJIT_EMU_HOST_COMPILER_H

#include <string>
#include <vector>

namespace fajit_emu {

struct host_compiler {
    std::vector<std::string> command; // empty: there is none
    std::string path;                 // of the program
    std::string identity;             // what tells its output from another's
    std::string problem;              // why there is none
    bool gnu = false;                 // g++, not clang++
};

// $CXX, else clang++, else g++; looked for once in the process.
const host_compiler &host_compiler_find();

// Runs a command, without a shell, in folder `where`; *output is what it wrote to both streams. The
// exit status; -1 when it could not be started or was ended by a signal, *output then says so.
int run_command(const std::string &program, const std::vector<std::string> &words,
                const char *where, std::string *output);

} // namespace fajit_emu

#endif
