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
                                      "dopt"};

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

// One option, split: --name=value.
struct parts {
    std::string whole, name, value;
    size_t dashes;
    bool has_value;
};

// Whether an option is one of those that a reader knows, and then whether its value is right.
enum class answer { unknown, taken, refused };

answer refuse(const std::string &why, std::string *problem)
{
    *problem = "nvrtc: error: " + why;
    return answer::refused;
}

answer read_target(const parts &o, settings *out, std::string *problem)
{
    if (o.name == "gpu-architecture" || o.name == "arch")
        return read_arch(o.value, &out->arch)
                   ? answer::taken
                   : refuse("invalid value for --gpu-architecture (-arch)", problem);
    if (o.name != "std")
        return answer::unknown;
    if (o.value != "c++17" && o.value != "c++20")
        return refuse("emulator does not implement --std=" + o.value + ": use c++17 or c++20",
                      problem);
    out->words.push_back("-std=" + o.value);
    return answer::taken;
}

// Device code that other device code is linked with.
answer read_linking(const parts &o, std::string *problem)
{
    const bool whole = o.name == "device-w" || o.name == "dw";
    if (whole || o.name == "device-c" || o.name == "dc") {
        if (o.has_value)
            return refuse(o.whole + ": this option takes no value", problem);
        return whole ? answer::taken : refuse("emulator does not implement " + o.whole, problem);
    }
    if (o.name != "relocatable-device-code" && o.name != "rdc")
        return answer::unknown;
    if (o.value == "false")
        return answer::taken;
    return refuse(o.value == "true" ? "emulator does not implement " + o.whole
                                    : "invalid value for --relocatable-device-code (-rdc): true or "
                                      "false, not '" +
                                          o.value + "'",
                  problem);
}

answer read_preprocessor(const parts &o, settings *out)
{
    const char letter = o.dashes == 1 && o.whole.size() > 2 ? o.whole[1] : '\0';
    if (o.name == "define-macro" || o.name == "undefine-macro")
        out->words.push_back((o.name == "define-macro" ? "-D" : "-U") + o.value);
    else if (letter == 'D' || letter == 'U')
        out->words.push_back(o.whole);
    else if (o.name == "include-path" || letter == 'I')
        add_folder(o.name == "include-path" ? o.value : o.whole.substr(2), out);
    else
        return answer::unknown;
    return answer::taken;
}

answer read_arithmetic(const parts &o, arithmetic *how, std::string *problem)
{
    if (o.name == "use_fast_math" && o.value.empty()) {
        how->fast = true;
        return answer::taken;
    }
    int *flag = how->find(o.name);
    if (!flag)
        return answer::unknown;
    *flag = o.value == "true";
    if (o.value == "true" || o.value == "false")
        return answer::taken;
    return refuse("invalid value for --" + o.name + ": true or false, not '" + o.value + "'",
                  problem);
}

bool read_one(const std::string &option, settings *out, arithmetic *how, std::string *problem)
{
    const size_t dashes = option.find_first_not_of('-');
    answer found = answer::unknown;
    if (dashes == 1 || dashes == 2) {
        const size_t equals = option.find('=');
        const bool has_value = equals != std::string::npos;
        const parts o = {option, option.substr(dashes, equals - dashes),
                         has_value ? option.substr(equals + 1) : "", dashes, has_value};
        found = read_target(o, out, problem);
        if (found == answer::unknown)
            found = read_linking(o, problem);
        if (found == answer::unknown)
            found = read_preprocessor(o, out);
        if (found == answer::unknown)
            found = read_arithmetic(o, how, problem);
        if (found == answer::unknown && has_no_effect(o.name))
            found = answer::taken;
    }
    if (found == answer::unknown)
        found = refuse("unrecognized option " + option + " found", problem);
    return found == answer::taken;
}

} // namespace

bool settings_read(int count, const char *const *options, settings *out, std::string *problem)
{
    arithmetic how;
    *out = {};
    out->words = {"-std=c++17"};
    for (int i = 0; i < count; i++) {
        std::string option = options[i];
        // The value of these may be a word of its own.
        if ((option == "-D" || option == "-U" || option == "-I") && i + 1 < count)
            option += options[++i];
        else if ((option == "-arch" || option == "--gpu-architecture" || option == "-std" ||
                  option == "-Xptxas" || option == "-maxrregcount" || option == "-rdc" ||
                  option == "--relocatable-device-code") &&
                 i + 1 < count)
            option += std::string("=") + options[++i];
        if (!read_one(option, out, &how, problem))
            return false;
    }
    how.apply(out);
    return true;
}

} // namespace fajit_emu
