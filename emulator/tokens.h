// The tokens of a program's text, before the preprocessor.
#ifndef FAJIT_EMU_TOKENS_H
#define FAJIT_EMU_TOKENS_H

#include <cstddef>
#include <string>
#include <vector>

namespace fajit_emu {

enum class kind { word, literal, mark, open_if, other_branch, close_if };

struct token {
    kind is;
    size_t begin, end;
    unsigned define; // number of the #define that it is in; 0: in none
};

// Without comments. Of the directives, the body of #define, and one token for each #if, #else and
// #endif.
std::vector<token> tokens_of(const std::string &text);

} // namespace fajit_emu

#endif
