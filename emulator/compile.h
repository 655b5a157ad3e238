// From the text of a program to an image.
#ifndef FAJIT_EMU_COMPILE_H
#define FAJIT_EMU_COMPILE_H

#include <string>
#include <vector>

namespace fajit_emu {

struct header {
    std::string name, text;
};

struct target {
    int cc = 75;        // compute capability: 90
    char suffix = '\0'; // 'a', 'f'
    bool virtual_arch = false;
};

// What the compile options of NVRTC come to.
struct settings {
    target arch;
    bool fmad = true;               // a * b + c may be rounded once
    std::vector<std::string> words; // for the host compiler
};

// False, with *problem, for what NVRTC does not know or the emulator cannot do.
bool settings_read(int count, const char *const *options, settings *out, std::string *problem);

struct program {
    std::string source, file;
    std::vector<header> headers;
    std::vector<std::string> expressions;
};

// Name of a function in the image and the log.
std::string lowered_name(const std::string &expression);

// False: the log says why.
bool compile(program p, const settings &s, std::string *image, std::string *log);

// Digest of everything besides a program that decides about an image.
void compiler_identity(unsigned char out[20]);

extern const int supported_archs[];
extern const int supported_arch_count;

} // namespace fajit_emu

#endif
