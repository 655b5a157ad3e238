// A look-alike of libnvrtc. The exported functions; the work is done in compile.cpp.
#include <nvrtc.h>

#include <cstring>
#include <new>

#include "compile.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace fajit_emu;

struct _nvrtcProgram {
    program text;
    std::vector<std::string> lowered;
    std::string log, image;
    bool compiled = false, good = false;
};

// --- build id ------------------------------------------------------------------------------------
// Callers tell builds of NVRTC apart by the build id in memory. What an entry holds depends on the
// host's compiler too, so that the id is made when this library is loaded, from all of it. It lies
// in a section that can be written, where whoever only looks at the first page of the file does not
// find it.

extern "C" unsigned char fajit_emu_build_id[20];
__asm__(R"(
    .pushsection .fajit_id, "aw", %note
    .p2align 2
    .long 4, 20, 3
    .asciz "GNU"
    .globl fajit_emu_build_id
    .hidden fajit_emu_build_id
fajit_emu_build_id:
    .zero 20
    .popsection
)");

__attribute__((constructor)) static void make_build_id()
{
    compiler_identity(fajit_emu_build_id);
}

// --- versions, errors ----------------------------------------------------------------------------

EXPORT nvrtcResult nvrtcVersion(int *major, int *minor)
{
    if (!major || !minor)
        return NVRTC_ERROR_INVALID_INPUT;
    *major = 13;
    *minor = 0;
    return NVRTC_SUCCESS;
}

EXPORT const char *nvrtcGetErrorString(nvrtcResult result)
{
    switch (result) {
    case NVRTC_SUCCESS:
        return "NVRTC_SUCCESS";
    case NVRTC_ERROR_OUT_OF_MEMORY:
        return "NVRTC_ERROR_OUT_OF_MEMORY";
    case NVRTC_ERROR_PROGRAM_CREATION_FAILURE:
        return "NVRTC_ERROR_PROGRAM_CREATION_FAILURE";
    case NVRTC_ERROR_INVALID_INPUT:
        return "NVRTC_ERROR_INVALID_INPUT";
    case NVRTC_ERROR_INVALID_PROGRAM:
        return "NVRTC_ERROR_INVALID_PROGRAM";
    case NVRTC_ERROR_INVALID_OPTION:
        return "NVRTC_ERROR_INVALID_OPTION";
    case NVRTC_ERROR_COMPILATION:
        return "NVRTC_ERROR_COMPILATION";
    case NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION:
        return "NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION";
    case NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION:
        return "NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION";
    case NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID:
        return "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID";
    case NVRTC_ERROR_INTERNAL_ERROR:
        return "NVRTC_ERROR_INTERNAL_ERROR";
    default:
        return "NVRTC_ERROR unknown";
    }
}

EXPORT nvrtcResult nvrtcGetNumSupportedArchs(int *count)
{
    if (!count)
        return NVRTC_ERROR_INVALID_INPUT;
    *count = supported_arch_count;
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetSupportedArchs(int *archs)
{
    if (!archs)
        return NVRTC_ERROR_INVALID_INPUT;
    memcpy(archs, supported_archs, static_cast<size_t>(supported_arch_count) * sizeof *archs);
    return NVRTC_SUCCESS;
}

// --- programs ------------------------------------------------------------------------------------

EXPORT nvrtcResult nvrtcCreateProgram(nvrtcProgram *out, const char *source, const char *name,
                                      int header_count, const char *const *headers,
                                      const char *const *include_names)
{
    if (!out || !source || header_count < 0 || (header_count && (!headers || !include_names)))
        return NVRTC_ERROR_INVALID_INPUT;
    nvrtcProgram p = new (std::nothrow) _nvrtcProgram;
    if (!p)
        return NVRTC_ERROR_OUT_OF_MEMORY;
    p->text.source = source;
    p->text.file = name && *name ? name : "default_program";
    for (int i = 0; i < header_count; i++)
        p->text.headers.push_back({include_names[i], headers[i]});
    *out = p;
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcDestroyProgram(nvrtcProgram *p)
{
    if (!p || !*p)
        return NVRTC_ERROR_INVALID_PROGRAM;
    delete *p;
    *p = nullptr;
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcAddNameExpression(nvrtcProgram p, const char *expression)
{
    if (!p)
        return NVRTC_ERROR_INVALID_PROGRAM;
    if (!expression)
        return NVRTC_ERROR_INVALID_INPUT;
    if (p->compiled)
        return NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION;
    for (const std::string &known : p->text.expressions)
        if (known == expression)
            return NVRTC_SUCCESS;
    p->text.expressions.push_back(expression);
    p->lowered.push_back(lowered_name(expression));
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcCompileProgram(nvrtcProgram p, int count, const char *const *options)
{
    settings s;
    std::string problem;
    if (!p)
        return NVRTC_ERROR_INVALID_PROGRAM;
    if (count < 0 || (count && !options))
        return NVRTC_ERROR_INVALID_INPUT;
    p->compiled = true;
    p->good = false;
    p->log.clear();
    if (!settings_read(count, options, &s, &problem)) {
        p->log = problem + "\n";
        return NVRTC_ERROR_INVALID_OPTION;
    }
    p->good = compile(p->text, s, &p->image, &p->log);
    return p->good ? NVRTC_SUCCESS : NVRTC_ERROR_COMPILATION;
}

EXPORT nvrtcResult nvrtcGetLoweredName(nvrtcProgram p, const char *expression, const char **lowered)
{
    if (!p)
        return NVRTC_ERROR_INVALID_PROGRAM;
    if (!expression || !lowered)
        return NVRTC_ERROR_INVALID_INPUT;
    if (!p->good)
        return NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION;
    for (size_t i = 0; i < p->lowered.size(); i++)
        if (p->text.expressions[i] == expression) {
            *lowered = p->lowered[i].c_str();
            return NVRTC_SUCCESS;
        }
    return NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID;
}

EXPORT nvrtcResult nvrtcGetCUBINSize(nvrtcProgram p, size_t *bytes)
{
    if (!p)
        return NVRTC_ERROR_INVALID_PROGRAM;
    if (!bytes)
        return NVRTC_ERROR_INVALID_INPUT;
    *bytes = p->image.size();
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetCUBIN(nvrtcProgram p, char *image)
{
    if (!p)
        return NVRTC_ERROR_INVALID_PROGRAM;
    if (!image || p->image.empty())
        return NVRTC_ERROR_INVALID_INPUT;
    memcpy(image, p->image.data(), p->image.size());
    return NVRTC_SUCCESS;
}

// There is never any: a compile that would make it is refused.
EXPORT nvrtcResult nvrtcGetPTXSize(nvrtcProgram p, size_t *)
{
    return p ? NVRTC_ERROR_INVALID_INPUT : NVRTC_ERROR_INVALID_PROGRAM;
}

EXPORT nvrtcResult nvrtcGetPTX(nvrtcProgram p, char *)
{
    return p ? NVRTC_ERROR_INVALID_INPUT : NVRTC_ERROR_INVALID_PROGRAM;
}

EXPORT nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram p, size_t *bytes)
{
    if (!p)
        return NVRTC_ERROR_INVALID_PROGRAM;
    if (!bytes)
        return NVRTC_ERROR_INVALID_INPUT;
    *bytes = p->log.size() + 1;
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetProgramLog(nvrtcProgram p, char *log)
{
    if (!p)
        return NVRTC_ERROR_INVALID_PROGRAM;
    if (!log)
        return NVRTC_ERROR_INVALID_INPUT;
    memcpy(log, p->log.c_str(), p->log.size() + 1);
    return NVRTC_SUCCESS;
}
