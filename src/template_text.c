#include "template_text.h"

#include <stddef.h>
#include <string.h>

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Length of the C identifier at `text`; 0: none. */
static size_t identifier_length(const char *text)
{
    size_t n = 0;
    if (!is_letter(text[0]))
        return 0;
    while (is_letter(text[n]) || is_digit(text[n]))
        n++;
    return n;
}

/* ISO C++17 [lex.key] and [lex.digraph]. */
static const char *const keywords[] = {
    "alignas",
    "alignof",
    "and",
    "and_eq",
    "asm",
    "auto",
    "bitand",
    "bitor",
    "bool",
    "break",
    "case",
    "catch",
    "char",
    "char16_t",
    "char32_t",
    "class",
    "compl",
    "const",
    "const_cast",
    "constexpr",
    "continue",
    "decltype",
    "default",
    "delete",
    "do",
    "double",
    "dynamic_cast",
    "else",
    "enum",
    "explicit",
    "export",
    "extern",
    "false",
    "float",
    "for",
    "friend",
    "goto",
    "if",
    "inline",
    "int",
    "long",
    "mutable",
    "namespace",
    "new",
    "noexcept",
    "not",
    "not_eq",
    "nullptr",
    "operator",
    "or",
    "or_eq",
    "private",
    "protected",
    "public",
    "register",
    "return",
    "short",
    "signed",
    "sizeof",
    "static",
    "static_assert",
    "static_cast",
    "struct",
    "switch",
    "template",
    "this",
    "thread_local",
    "throw",
    "true",
    "try",
    "typedef",
    "typeid",
    "typename",
    "union",
    "unsigned",
    "using",
    "virtual",
    "void",
    "volatile",
    "wchar_t",
    "while",
    "xor",
    "xor_eq",
    "reinterpret_cast",
};

static bool is_keyword(const char *name)
{
    for (size_t i = 0; i < sizeof keywords / sizeof keywords[0]; i++)
        if (strcmp(keywords[i], name) == 0)
            return true;
    return false;
}

const char *fa__template_bad_name(const char *name)
{
    if (!name)
        return "is missing";
    if (identifier_length(name) != strlen(name) || !name[0])
        return "is not a C identifier";
    if (is_keyword(name))
        return "is a keyword of C++";
    if (strncmp(name, "fa_", 3) == 0 || strcmp(name, "fajit") == 0 ||
        strncmp(name, "FAJIT_", 6) == 0)
        return "is reserved for the library (fa_, FAJIT_, fajit)";
    if (strstr(name, "__") || (name[0] == '_' && name[1] >= 'A' && name[1] <= 'Z'))
        return "is reserved for the compiler (__, or _ and a capital)";
    return NULL;
}

const char *fa__template_bad_identifier(const char *identifier)
{
    if (!identifier)
        return "is missing";
    const char *at = identifier;
    for (;;) {
        size_t n = identifier_length(at);
        if (n == 0)
            return "is not a C identifier, or several with :: between";
        at += n;
        if (!*at)
            return NULL;
        if (strncmp(at, "::", 2) != 0)
            return "is not a C identifier, or several with :: between";
        at += 2;
    }
}

bool fa__template_plain_text(const char *text)
{
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (*c < 32 || *c == 127)
            return false;
    return true;
}

bool fa__template_good_entry(const char *entry)
{
    size_t n = identifier_length(entry);
    if (n == 0)
        return false;
    while (entry[n]) {
        if (!is_letter(entry[n]) && !is_digit(entry[n]) && !strchr(":<>, ()*&-+", entry[n]))
            return false;
        n++;
    }
    return true;
}

/* Options by what they would do that the library does itself, or must not let happen. A name with
 * '=' at its end stands for the option with a value. */
static const struct {
    const char *prefix, *why;
} refused[] = {
    {"-I", "there is no include path; pass headers in memory (fa_template_spec.headers)"},
    {"--include-path",
     "there is no include path; pass headers in memory (fa_template_spec.headers)"},
    {"-include", "pass headers in memory (fa_template_spec.headers) and #include them"},
    {"--pre-include", "pass headers in memory (fa_template_spec.headers) and #include them"},
    {"-arch", "the architecture is the context's"},
    {"--gpu-architecture", "the architecture is the context's"},
    {"-pch", "precompiled headers are state outside the key"},
    {"--pch", "precompiled headers are state outside the key"},
    {"--create-pch", "precompiled headers are state outside the key"},
    {"-create-pch", "precompiled headers are state outside the key"},
    {"--use-pch", "precompiled headers are state outside the key"},
    {"-use-pch", "precompiled headers are state outside the key"},
    {"-instantiate-templates-in-pch", "precompiled headers are state outside the key"},
    {"--instantiate-templates-in-pch", "precompiled headers are state outside the key"},
    {"--time", "it writes a file"},
    {"-time", "it writes a file"},
    {"--fdevice-time-trace", "it writes a file"},
    {"-fdevice-time-trace", "it writes a file"},
    {"--dlink-time-opt", "the output must be a cubin"},
    {"-dlto", "the output must be a cubin"},
    {"--gen-opt-lto", "the output must be a cubin"},
    {"-gen-opt-lto", "the output must be a cubin"},
    {"--optix-ir", "the output must be a cubin"},
    {"-optix-ir", "the output must be a cubin"},
    {"--relocatable-device-code", "the output must be a whole cubin, not one to link"},
    {"-rdc", "the output must be a whole cubin, not one to link"},
    {"--device-c", "the output must be a whole cubin, not one to link"},
    {"-dc", "the output must be a whole cubin, not one to link"},
    {"--no-cache", "the library passes it"},
    {"-no-cache", "the library passes it"},
    {"--std", "the language is C++17"},
    {"-std", "the language is C++17"},
    {"-o=", "it writes a file"},
};

/* ptxas takes options of its own, with ',' between. Those below it must not be given; among the
 * names that begin like -o and --o, which write or read a file, only the listed ones are harmless.
 */
static const char *why_not_ptxas(const char *value)
{
    static const char *const harmless[] = {"-opt-fp-atomics", "--opt-level", "-override-directive-",
                                           "--override-directive-", "--optimize-float-"};
    static const char *const outside[] = {"-c",
                                          "--compile-only",
                                          "-arch",
                                          "--gpu-name",
                                          "-h",
                                          "--help",
                                          "-V",
                                          "--version",
                                          "-ias",
                                          "--input-as-",
                                          "-m",
                                          "--machine",
                                          "-preserve-relocs",
                                          "--preserve-relocs"};
    if (!*value)
        return "it has no value behind '='";
    for (const char *at = value; at; at = strchr(at, ',')) {
        at += *at == ',';
        size_t name = strcspn(at, ",=");
        if (*at != '-' || name < 2 || strcspn(at, " '\"\\") < strcspn(at, ","))
            return "ptxas options begin with '-', have ',' between them, and no spaces or quotes";
        if (strncmp(at, "-o", 2) == 0 || strncmp(at, "--o", 3) == 0) {
            bool known = false;
            for (size_t i = 0; i < sizeof harmless / sizeof harmless[0] && !known; i++)
                known = strncmp(at, harmless[i], strlen(harmless[i])) == 0;
            if (!known)
                return "it names a file";
        }
        for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++)
            if (name == strlen(outside[i]) && strncmp(at, outside[i], name) == 0)
                return "the output must be a cubin for the context's architecture";
    }
    return NULL;
}

/* The value of a ptxas option; NULL when it is none. */
static const char *ptxas_value(const char *option)
{
    static const char *const names[] = {"-Xptxas=", "--ptxas-options="};
    for (size_t i = 0; i < 2; i++)
        if (strncmp(option, names[i], strlen(names[i])) == 0)
            return option + strlen(names[i]);
    return NULL;
}

const char *fa__template_bad_option(const char *option)
{
    if (option[0] != '-')
        return "an option begins with '-'; write its value behind '='";
    if (!fa__template_plain_text(option))
        return "it has control characters";
    if (strcmp(option, "-Xptxas") == 0 || strcmp(option, "--ptxas-options") == 0)
        return "write its value behind '='";
    size_t name = strcspn(option, " =");
    if (option[name] == ' ' && strncmp(option, "-D", 2) != 0)
        return "write its value behind '=', without blanks";
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (strncmp(option, refused[i].prefix, strlen(refused[i].prefix)) == 0)
            return refused[i].why;
    /* NVRTC ends the process over some of these. -DX= is a macro without content. */
    const char *equals = strchr(option, '=');
    if (equals && !equals[1] && strncmp(option, "-D", 2) != 0)
        return "it has no value behind '='";
    const char *value = ptxas_value(option);
    return value ? why_not_ptxas(value) : NULL;
}

/* The length of blanks at `at`. */
static size_t blanks(const char *at)
{
    return strspn(at, " \t");
}

bool fa__template_includes_path(const char *text)
{
    for (const char *at = text; at; at = strchr(at, '\n')) {
        at += *at == '\n';
        at += blanks(at);
        if (*at != '#')
            continue;
        at++;
        at += blanks(at);
        if (strncmp(at, "include", 7) != 0)
            continue;
        at += 7 + (strncmp(at + 7, "_next", 5) == 0 ? 5 : 0);
        at += blanks(at);
        bool names_file = *at == '"' || *at == '<';
        if (!names_file || at[1] == '/') /* a macro could stand for any path */
            return true;
    }
    return false;
}

bool fa__template_option_only_logs(const char *option)
{
    static const char *const quiet[] = {
        "-w",      "--disable-warnings",     "-diag-",     "--diag-",
        "-err-no", "--display-error-number", "-no-err-no", "--no-display-error-number",
    };
    for (size_t i = 0; i < sizeof quiet / sizeof quiet[0]; i++) {
        size_t len = strlen(quiet[i]);
        bool whole = quiet[i][len - 1] != '-';
        if (whole ? strcmp(option, quiet[i]) == 0 : strncmp(option, quiet[i], len) == 0)
            return true;
    }
    return false;
}
