#include "compiler.h"

#include <nvrtc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "compile_slots.h"
#include "compiler_find.h"
#include "compiler_log.h"
#include "fork.h"
#include "status.h"

/* X(name, required) */
#define SYMBOLS(X)                                                                                 \
    X(nvrtcVersion, true)                                                                          \
    X(nvrtcGetErrorString, true)                                                                   \
    X(nvrtcCreateProgram, true)                                                                    \
    X(nvrtcDestroyProgram, true)                                                                   \
    X(nvrtcCompileProgram, true)                                                                   \
    X(nvrtcAddNameExpression, true)                                                                \
    X(nvrtcGetLoweredName, true)                                                                   \
    X(nvrtcGetCUBINSize, true)                                                                     \
    X(nvrtcGetCUBIN, true)                                                                         \
    X(nvrtcGetPTXSize, true)                                                                       \
    X(nvrtcGetPTX, true)                                                                           \
    X(nvrtcGetProgramLogSize, true)                                                                \
    X(nvrtcGetProgramLog, true)                                                                    \
    X(nvrtcGetNumSupportedArchs, false)                                                            \
    X(nvrtcGetSupportedArchs, false)

static struct {
    fa__nvrtc_file file;
    char id[96];
    char name[128];
} identity;

static struct {
    fa__dynlib lib;
    int32_t version;
#define MEMBER(name, required) __typeof__(&name) name;
    SYMBOLS(MEMBER)
#undef MEMBER
} nvrtc;

/* Set under fa__process_lock; what they stand for is constant once they are true. */
static atomic_bool is_identified, is_open;

static bool identified(void)
{
    return atomic_load_explicit(&is_identified, memory_order_acquire);
}

static bool opened(void)
{
    return atomic_load_explicit(&is_open, memory_order_acquire);
}

/* --- opening --- */

static fa_status load_symbols(void)
{
#define LOAD(name, required)                                                                       \
    *(void **)&nvrtc.name = fa__dynlib_symbol(&nvrtc.lib, #name);                                  \
    if (!nvrtc.name && required)                                                                   \
        return fa__fail(FA_ERR_NVRTC_MISSING,                                                      \
                        "%s lacks the function " #name                                             \
                        "; 12.0 or later is needed; " FA__NVRTC_REMEDY,                            \
                        nvrtc.lib.path);
    SYMBOLS(LOAD)
#undef LOAD
    return FA_OK;
}

static fa_status check_version(void)
{
    int major = 0, minor = 0;
    nvrtcResult result = nvrtc.nvrtcVersion(&major, &minor);
    if (result != NVRTC_SUCCESS)
        return fa__fail(FA_ERR_NVRTC_MISSING, "nvrtcVersion of %s failed: %s", nvrtc.lib.path,
                        nvrtc.nvrtcGetErrorString(result));
    if (major < 12)
        return fa__fail(FA_ERR_NVRTC_MISSING,
                        "%s is NVRTC %d.%d; 12.0 or later is needed; " FA__NVRTC_REMEDY,
                        nvrtc.lib.path, major, minor);
    nvrtc.version = major * 1000 + minor * 10;
    return FA_OK;
}

/* Keys that were made with one build must not be used for what another one compiles. */
static fa_status check_same_build(const char *id)
{
    if (!identified() || strcmp(identity.id, id) == 0)
        return FA_OK;
    return fa__fail(
        FA_ERR_NVRTC_MISSING,
        "%s was replaced while this process was running (build %s was found first, now %s); "
        "restart it",
        nvrtc.lib.path, identity.id, id);
}

static fa_status open_library(void)
{
    char id[sizeof identity.id];
    if (!identified())
        fa__nvrtc_find(&identity.file);
    fa_status status = fa__nvrtc_load(&identity.file, &nvrtc.lib);
    if (status == FA_OK)
        status = load_symbols();
    if (status == FA_OK)
        status = check_version();
    if (status)
        return status;
    if (!fa__dynlib_loaded_id((const void *)nvrtc.nvrtcVersion, id, sizeof id))
        return fa__fail(FA_ERR_NVRTC_MISSING, "cannot identify the build of %s", nvrtc.lib.path);
    status = check_same_build(id);
    if (status)
        return status;
    memcpy(identity.id, id, sizeof id);
    /* After NVRTC's own exit handlers, so that it runs before them. */
    if (atexit(fa__slot_close))
        return fa__fail(FA_ERR_OUT_OF_MEMORY, "atexit failed");
    return FA_OK;
}

/* Under fa__process_lock. */
static fa_status open_once(void)
{
    if (opened())
        return FA_OK;
    fa_status status = open_library();
    if (status == FA_OK)
        atomic_store_explicit(&is_open, true, memory_order_release);
    return status;
}

static fa_status identify_once(void)
{
    if (identified())
        return FA_OK;
    fa__nvrtc_find(&identity.file);
    memcpy(identity.id, identity.file.id, sizeof identity.id);
    fa_status status = identity.id[0] ? FA_OK : open_once();
    if (status)
        return status;
    snprintf(identity.name, sizeof identity.name, "nvrtc build %s", identity.id);
    atomic_store_explicit(&is_identified, true, memory_order_release);
    return FA_OK;
}

static fa_status under_lock(fa_status (*step)(void))
{
    fa__fork_watch();
    pthread_mutex_lock(&fa__process_lock);
    fa_status status = step();
    pthread_mutex_unlock(&fa__process_lock);
    return status;
}

fa_status fa__compiler_identify(void)
{
    return identified() ? FA_OK : under_lock(identify_once);
}

fa_status fa__compiler_open(void)
{
    fa_status status = fa__compiler_identify();
    return status || opened() ? status : under_lock(open_once);
}

int32_t fa__compiler_version(void)
{
    return opened() ? nvrtc.version : 0;
}

const char *fa__compiler_path(void)
{
    return opened() ? nvrtc.lib.path : "";
}

const char *fa__compiler_id(void)
{
    return identified() ? identity.id : "";
}

const char *fa__compiler_name(void)
{
    return identified() ? identity.name : "";
}

/* --- compiling --- */

static fa_status failed(const char *call, nvrtcResult result)
{
    fa_status status = result == NVRTC_ERROR_OUT_OF_MEMORY ? FA_ERR_OUT_OF_MEMORY : FA_ERR_NVRTC;
    return fa__fail(status, "%s failed: %s (%s)", call, nvrtc.nvrtcGetErrorString(result),
                    nvrtc.lib.path);
}

/* Room for every architecture that an NVRTC has listed so far, many times over. */
#define MAX_ARCHS 256

/* What NVRTC can compile for, as compute capabilities. *count 0: this NVRTC cannot tell. */
static fa_status list_archs(int archs[MAX_ARCHS], int *count)
{
    *count = 0;
    if (!nvrtc.nvrtcGetNumSupportedArchs || !nvrtc.nvrtcGetSupportedArchs)
        return FA_OK;
    nvrtcResult result = nvrtc.nvrtcGetNumSupportedArchs(count);
    if (result != NVRTC_SUCCESS)
        return failed("nvrtcGetNumSupportedArchs", result);
    if (*count < 1 || *count > MAX_ARCHS)
        return fa__fail(FA_ERR_NVRTC, "nvrtcGetNumSupportedArchs reports %d architectures", *count);
    result = nvrtc.nvrtcGetSupportedArchs(archs);
    return result == NVRTC_SUCCESS ? FA_OK : failed("nvrtcGetSupportedArchs", result);
}

static fa_status unsupported_arch(const fa__target *target)
{
    int archs[MAX_ARCHS], count = 0;
    fa__buf list = {0};
    fa_status status = list_archs(archs, &count);
    if (status)
        return status;
    for (int i = 0; i < count; i++)
        fa__buf_format(&list, "%ssm_%d", i ? ", " : "", archs[i]);
    fa__fail(FA_ERR_ARCH,
             "NVRTC %d.%d (%s) does not support architecture %s; it supports %s (from sm_90 on "
             "also with "
             "the suffix a)",
             nvrtc.version / 1000, nvrtc.version % 1000 / 10, nvrtc.lib.path, target->arch,
             list.data ? list.data : "what it does not list");
    fa__buf_free(&list);
    return FA_ERR_ARCH;
}

/* Only the number: whether a suffix exists for it is known to NVRTC alone. */
static fa_status check_arch(const fa__target *target)
{
    int archs[MAX_ARCHS], count = 0;
    fa_status status = list_archs(archs, &count);
    if (status)
        return status;
    for (int i = 0; i < count; i++)
        if (archs[i] == target->cc)
            return FA_OK;
    return count ? unsupported_arch(target) : FA_OK;
}

static fa_status create(const fa__program *program, nvrtcProgram *out)
{
    const char **names = calloc(program->header_count + 1, sizeof *names);
    const char **texts = calloc(program->header_count + 1, sizeof *texts);
    fa_status status = FA_OK;
    *out = NULL;
    if (!names || !texts) {
        status = fa__fail_memory((program->header_count + 1) * sizeof *names);
        goto done;
    }
    for (size_t i = 0; i < program->header_count; i++) {
        names[i] = program->headers[i].name;
        texts[i] = program->headers[i].text;
    }
    nvrtcResult result = nvrtc.nvrtcCreateProgram(out, program->source.data, program->file,
                                                  (int)program->header_count, texts, names);
    if (result != NVRTC_SUCCESS)
        status = failed("nvrtcCreateProgram", result);
done:
    free(names);
    free(texts);
    return status;
}

/* The whole log, malloc'ed; NULL with fa_last_error set. */
static char *get_log(nvrtcProgram handle)
{
    size_t size = 0;
    nvrtcResult result = nvrtc.nvrtcGetProgramLogSize(handle, &size);
    if (result != NVRTC_SUCCESS) {
        failed("nvrtcGetProgramLogSize", result);
        return NULL;
    }
    char *log = calloc(size + 1, 1);
    if (!log) {
        fa__fail_memory(size + 1);
        return NULL;
    }
    result = nvrtc.nvrtcGetProgramLog(handle, log);
    if (result != NVRTC_SUCCESS) {
        failed("nvrtcGetProgramLog", result);
        free(log);
        return NULL;
    }
    return log;
}

/* What NVRTC's words leave out, to precede its log; "" most of the time. */
static const char *hint(const char *log)
{
    if (strstr(log, "__nv_name_map"))
        return "Errors in __nv_name_map are about the entry (fa_template_spec.entry): it must name "
               "a "
               "__global__ function of the source, or an instance of a template of one.\n";
    if (strstr(log, "open source file") || strstr(log, "include path"))
        return "There is no include path: pass a header's text in fa_template_spec.headers. "
               "Instead of cuda_fp16.h, cuda_bf16.h and cuda_fp8.h there is fajit/dtype.cuh, "
               "instead of mma.h fajit/mma.cuh, instead of cuda_pipeline.h fajit/copy.cuh; "
               "docs/templates.md lists all.\n";
    return "";
}

static fa_status classify(nvrtcResult result, const char *log)
{
    bool arch = strstr(log, "--gpu-architecture") || strstr(log, "--nv_arch");
    switch (result) {
    case NVRTC_ERROR_COMPILATION:
        return arch ? FA_ERR_ARCH : FA_ERR_COMPILE;
    case NVRTC_ERROR_INVALID_OPTION:
        return arch ? FA_ERR_ARCH : FA_ERR_OPTION;
    case NVRTC_ERROR_OUT_OF_MEMORY:
        return FA_ERR_OUT_OF_MEMORY;
    default:
        return FA_ERR_NVRTC;
    }
}

static fa_status compile_failed(nvrtcProgram handle, nvrtcResult result, const fa__program *program,
                                const fa__target *target)
{
    char *log = get_log(handle);
    const char *text = log ? log : "(no log)";
    fa_status status = classify(result, text);
    if (status == FA_ERR_ARCH)
        status = unsupported_arch(target);
    else
        fa__fail(status, "nvrtcCompileProgram failed on %s for %s: %s\n%s%s", program->file,
                 target->arch, nvrtc.nvrtcGetErrorString(result), hint(text), text);
    free(log);
    return status;
}

/* `arch_option` is the whole --gpu-architecture option. */
static fa_status build(nvrtcProgram handle, const fa__program *program, const fa__target *target,
                       const char *arch_option)
{
    fa_status status = FA_OK;
    const char **options = calloc(program->option_count + 8, sizeof *options);
    if (!options)
        return fa__fail_memory((program->option_count + 8) * sizeof *options);
    /* -v makes ptxas report registers and spills in the log. Without --no-source-include an
     * #include finds files beside the program's name, and so in the working directory, that no key
     * knows of. Newer releases have --no-cache, against a cache of their own, and --frandom-seed:
     * without it the process number and the working directory become part of names with internal
     * linkage, and so of the cubin. */
    int n = 0;
    options[n++] = arch_option;
    options[n++] = "--std=c++17";
    options[n++] = "--ptxas-options=-v";
    options[n++] = "--no-source-include";
    if (nvrtc.version >= 12090) {
        options[n++] = "--no-cache";
        options[n++] = "--frandom-seed=fajit";
    }
    for (size_t i = 0; i < program->option_count; i++)
        options[n++] = program->options[i];
    nvrtcResult result = nvrtc.nvrtcCompileProgram(handle, n, options);
    free(options);
    if (result != NVRTC_SUCCESS)
        status = compile_failed(handle, result, program, target);
    return status;
}

static fa_status get_cubin(nvrtcProgram handle, void **cubin, size_t *bytes)
{
    nvrtcResult result = nvrtc.nvrtcGetCUBINSize(handle, bytes);
    if (result != NVRTC_SUCCESS)
        return failed("nvrtcGetCUBINSize", result);
    if (*bytes == 0)
        return fa__fail(FA_ERR_NVRTC, "NVRTC produced no cubin");
    *cubin = malloc(*bytes);
    if (!*cubin)
        return fa__fail_memory(*bytes);
    result = nvrtc.nvrtcGetCUBIN(handle, *cubin);
    return result == NVRTC_SUCCESS ? FA_OK : failed("nvrtcGetCUBIN", result);
}

static fa_status add_name(nvrtcProgram handle, const char *entry, fa__buf *names)
{
    const char *lowered = NULL;
    nvrtcResult result = nvrtc.nvrtcGetLoweredName(handle, entry, &lowered);
    if (result != NVRTC_SUCCESS)
        return failed("nvrtcGetLoweredName", result);
    fa__buf_format(names, "%s%s", names->len ? "\n" : "", lowered);
    return names->failed ? fa__fail_memory(names->capacity) : FA_OK;
}

/* The lowered names of all entries, one a line. */
static fa_status get_names(nvrtcProgram handle, const fa__program *program, fa__buf *names)
{
    fa_status status = add_name(handle, program->entry, names);
    for (size_t i = 0; status == FA_OK && program->further_entries[i]; i++)
        status = add_name(handle, program->further_entries[i], names);
    return status;
}

static fa_status collect(nvrtcProgram handle, const fa__program *program, fa__entry *entry)
{
    void *cubin = NULL;
    char *log = NULL;
    size_t bytes = 0;
    fa__buf names = {0};
    fa_status status = get_cubin(handle, &cubin, &bytes);
    if (status == FA_OK)
        status = get_names(handle, program, &names);
    if (status)
        goto done;
    log = get_log(handle);
    if (!log) {
        status = FA_ERR_NVRTC;
        goto done;
    }
    status = fa__entry_make(entry, names.data, log, cubin, bytes);
    if (status == FA_OK && !fa__compiler_read_log(log, names.data, entry)) {
        fa__entry_free(entry);
        status = fa__fail(FA_ERR_NVRTC, "NVRTC's log has no resource report for %s:\n%s",
                          names.data, log);
    }
done:
    free(cubin);
    free(log);
    fa__buf_free(&names);
    return status;
}

static fa_status name_entry(nvrtcProgram handle, const char *entry)
{
    nvrtcResult result = nvrtc.nvrtcAddNameExpression(handle, entry);
    return result == NVRTC_SUCCESS ? FA_OK : failed("nvrtcAddNameExpression", result);
}

static fa_status start(const fa__program *program, const fa__target *target, nvrtcProgram *handle)
{
    *handle = NULL;
    fa_status status = fa__compiler_open();
    if (status == FA_OK)
        status = check_arch(target);
    if (status == FA_OK)
        status = create(program, handle);
    if (status == FA_OK)
        status = name_entry(*handle, program->entry);
    for (size_t i = 0; status == FA_OK && program->further_entries[i]; i++)
        status = name_entry(*handle, program->further_entries[i]);
    return status;
}

static void finish(nvrtcProgram *handle)
{
    if (*handle)
        nvrtc.nvrtcDestroyProgram(handle);
}

fa_status fa__compiler_compile(const fa__program *program, const fa__target *target,
                               fa__entry *entry)
{
    nvrtcProgram handle = NULL;
    char arch[64];
    *entry = (fa__entry){0};
    fa_status status = start(program, target, &handle);
    if (status)
        goto done;
    snprintf(arch, sizeof arch, "--gpu-architecture=%s", target->arch);
    uint64_t begin = fa__now_ns();
    status = build(handle, program, target, arch);
    uint64_t end = fa__now_ns();
    if (status == FA_OK)
        status = collect(handle, program, entry);
    if (status == FA_OK)
        entry->compile_ns = end - begin;
done:
    finish(&handle);
    return status;
}

fa_status fa__compiler_ptx(const fa__program *program, const fa__target *target, char **ptx)
{
    nvrtcProgram handle = NULL;
    char arch[64];
    size_t size = 0;
    *ptx = NULL;
    fa_status status = start(program, target, &handle);
    if (status)
        goto done;
    /* compute_90a rather than sm_90a: stop at PTX. */
    snprintf(arch, sizeof arch, "--gpu-architecture=compute_%s", target->arch + 3);
    status = build(handle, program, target, arch);
    if (status)
        goto done;
    nvrtcResult result = nvrtc.nvrtcGetPTXSize(handle, &size);
    if (result != NVRTC_SUCCESS) {
        status = failed("nvrtcGetPTXSize", result);
        goto done;
    }
    *ptx = calloc(size + 1, 1);
    if (!*ptx) {
        status = fa__fail_memory(size + 1);
        goto done;
    }
    result = nvrtc.nvrtcGetPTX(handle, *ptx);
    if (result != NVRTC_SUCCESS) {
        status = failed("nvrtcGetPTX", result);
        free(*ptx);
        *ptx = NULL;
    }
done:
    finish(&handle);
    return status;
}
