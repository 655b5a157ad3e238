// The compile options of NVRTC.
#include <climits>
#include <cstdlib>
#include <cstring>

#include "compile.h"

namespace fajit_emu {

const int supported_archs[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};
const int supported_arch_count = sizeof supported_archs / sizeof supported_archs[0];

namespace {

bool read_arch(const std::string &text, target *out)
{
    const char *at = text.c_str();
    char *end = nullptr;
    *out = {};
    if (strncmp(at, "sm_", 3) == 0)
        at += 3;
    else if (strncmp(at, "compute_", 8) == 0) {
        at += 8;
        out->virtual_arch = true;
    } else {
        return false;
    }
    if (*at < '0' || *at > '9')
        return false;
    out->cc = static_cast<int>(strtol(at, &end, 10));
    if (*end)
        out->suffix = *end++;
    if (*end || (out->suffix && (out->cc < 90 || !strchr("af", out->suffix) ||
                                 (out->suffix == 'f' && out->cc < 100))))
        return false;
    for (int i = 0; i < supported_arch_count; i++)
        if (supported_archs[i] == out->cc)
            return true;
    return false;
}

// Options that change nothing here: they are about speed, registers or what the log says.
const char *const without_effect[] = {"ptxas-options",
                                      "Xptxas",
                                      "no-source-include",
                                      "no-cache",
                                      "frandom-seed",
                                      "maxrregcount",
                                      "lineinfo",
                                      "generate-line-info",
                                      "extra-device-vectorization",
                                      "device-debug",
                                      "G",
                                      "restrict",
                                      "default-device",
                                      "device-as-default-execution-space",
                                      "diag-suppress",
                                      "diag-warn",
                                      "disable-warnings",
                                      "w",
                                      "split-compile",
                                      "optimization-info",
                                      "Ofast-compile",
                                      "minimal",
                                      "jump-table-density",
                                      "display-error-number",
                                      "no-display-error-number",
                                      "builtin-move-forward",
                                      "builtin-initializer-list",
                                      "dopt",
                                      "relocatable-device-code"};

bool has_no_effect(const std::string &name)
{
    for (const char *known : without_effect)
        if (name == known)
            return true;
    return false;
}

// The host compiler runs in another folder. As NVRTC, which does not mind one that is not there.
void add_folder(const std::string &path, settings *out)
{
    char whole[PATH_MAX];
    if (realpath(path.c_str(), whole))
        out->words.push_back(std::string("-I") + whole);
}

// Of the options about arithmetic: -1 is not given.
struct arithmetic {
    bool fast = false;
    int ftz = -1, prec_div = -1, prec_sqrt = -1, fmad = -1;

    int *find(const std::string &name)
    {
        return name == "ftz"         ? &ftz
               : name == "prec-div"  ? &prec_div
               : name == "prec-sqrt" ? &prec_sqrt
               : name == "fmad"      ? &fmad
                                     : nullptr;
    }

    // --use_fast_math decides what is not given by itself. Nothing stands for prec-div: a quotient
    // that is rounded right is one that --prec-div=false allows.
    void apply(settings *out) const
    {
        if (fast)
            out->words.push_back("-DFAJIT_EMU_FAST_MATH");
        if (ftz > 0 || (ftz < 0 && fast))
            out->words.push_back("-DFAJIT_EMU_FTZ");
        if (prec_sqrt == 0 || (prec_sqrt < 0 && fast))
            out->words.push_back("-DFAJIT_EMU_FAST_SQRT");
        out->fmad = fmad != 0;
    }
};

bool read_one(const std::string &option, settings *out, arithmetic *how, std::string *problem)
{
    const size_t dashes = option.find_first_not_of('-');
    if (dashes == std::string::npos || dashes == 0 || dashes > 2) {
        *problem = "nvrtc: error: unrecognized option " + option + " found";
        return false;
    }
    const size_t equals = option.find('=');
    const std::string name = option.substr(dashes, equals - dashes);
    const std::string value = equals == std::string::npos ? "" : option.substr(equals + 1);
    if (name == "gpu-architecture" || name == "arch") {
        if (read_arch(value, &out->arch))
            return true;
        *problem = "nvrtc: error: invalid value for --gpu-architecture (-arch)";
        return false;
    }
    if (name == "std") {
        if (value != "c++17" && value != "c++20") {
            *problem =
                "nvrtc: error: emulator does not implement --std=" + value + ": use c++17 or c++20";
            return false;
        }
        out->words.push_back("-std=" + value);
        return true;
    }
    if (name == "define-macro" || name == "undefine-macro") {
        out->words.push_back((name == "define-macro" ? "-D" : "-U") + value);
        return true;
    }
    if (dashes == 1 && option.size() > 2 && (option[1] == 'D' || option[1] == 'U')) {
        out->words.push_back(option);
        return true;
    }
    if (name == "include-path" || (dashes == 1 && option[1] == 'I' && option.size() > 2)) {
        add_folder(name == "include-path" ? value : option.substr(2), out);
        return true;
    }
    if (name == "use_fast_math" && value.empty()) {
        how->fast = true;
        return true;
    }
    if (int *flag = how->find(name)) {
        *flag = value == "true";
        if (value == "true" || value == "false")
            return true;
        *problem =
            "nvrtc: error: invalid value for --" + name + ": true or false, not '" + value + "'";
        return false;
    }
    if (has_no_effect(name))
        return true;
    *problem = "nvrtc: error: unrecognized option " + option + " found";
    return false;
}

} // namespace

bool settings_read(int count, const char *const *options, settings *out, std::string *problem)
{
    arithmetic how;
    *out = {};
    out->words = {"-std=c++17"};
    for (int i = 0; i < count; i++) {
        std::string option = options[i];
        // The value of -D, -U, -I and -arch may be a word of its own.
        if ((option == "-D" || option == "-U" || option == "-I") && i + 1 < count)
            option += options[++i];
        else if ((option == "-arch" || option == "--gpu-architecture" || option == "-std" ||
                  option == "-Xptxas" || option == "-maxrregcount") &&
                 i + 1 < count)
            option += std::string("=") + options[++i];
        if (!read_one(option, out, &how, problem))
            return false;
    }
    how.apply(out);
    return true;
}

} // namespace fajit_emu
