/* A look-alike of libnvrtc. It compiles nothing: it checks what it was given as far as a compiler
 * would notice at once (unknown architecture, #error outside a conditional, a header that is not
 * there, a name that is not defined) and gives a "cubin" that names the function and digests
 * everything that went in. Build variants, by macro:
 *   FAKE_BUILD    "a"    text that makes another build of the same version
 *   FAKE_VERSION  13000  reported by nvrtcVersion
 *   FAKE_OLD             without the optional functions
 *   FAKE_BROKEN          without nvrtcGetCUBIN
 * A source can carry directives for what comes out: "// fake-params: 8 8 4", "// fake-smem: 1024",
 * "// fake-spills: 8". */
#include <nvrtc.h>

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_core.h"

#ifndef FAKE_BUILD
#define FAKE_BUILD "a"
#endif
#ifndef FAKE_VERSION
#define FAKE_VERSION 13000
#endif

#define MAX_NAMES 8
#define MAX_NAME_BYTES 8192
#define PROGRAM_MAGIC 0x50524f47u

typedef struct text {
    char *data;
    size_t len;
} text;

struct _nvrtcProgram {
    unsigned magic;
    char *source, *file;
    int header_count;
    char **header_name, **header_text;
    int name_count;
    char *expression[MAX_NAMES], *lowered[MAX_NAMES];
    text log, cubin, ptx;
    bool compiled;
};

const char *const fake_names[] = {
    "nvrtcVersion",
    "nvrtcGetErrorString",
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcCompileProgram",
    "nvrtcAddNameExpression",
    "nvrtcGetLoweredName",
    "nvrtcGetCUBINSize",
    "nvrtcGetCUBIN",
    "nvrtcGetPTXSize",
    "nvrtcGetPTX",
    "nvrtcGetProgramLogSize",
    "nvrtcGetProgramLog",
    "nvrtcGetNumSupportedArchs",
    "nvrtcGetSupportedArchs",
    NULL,
};

static const int supported[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};
static text last_source, last_options, last_headers;

static void text_add(text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void text_add(text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    t->data = realloc(t->data, t->len + (size_t)len + 1);
    if (!t->data)
        abort();
    va_start(args, format);
    vsnprintf(t->data + t->len, (size_t)len + 1, format, args);
    va_end(args);
    t->len += (size_t)len;
}

static void text_clear(text *t)
{
    free(t->data);
    *t = (text){0};
}

static char *copy(const char *s)
{
    char *to = strdup(s ? s : "");
    if (!to)
        abort();
    return to;
}

#define ENTER()                                                                                    \
    do {                                                                                           \
        int code_ = fake_enter(__func__);                                                          \
        if (code_) {                                                                               \
            fake_leave(__func__);                                                                  \
            return (nvrtcResult)code_;                                                             \
        }                                                                                          \
    } while (0)

static nvrtcResult leave(const char *function, nvrtcResult result)
{
    fake_leave(function);
    return result;
}

static bool valid(const char *function, nvrtcProgram program)
{
    if (program && program->magic == PROGRAM_MAGIC)
        return true;
    fake_violate("%s: %p is no program", function, (void *)program);
    return false;
}

FAKE_EXPORT nvrtcResult nvrtcVersion(int *major, int *minor)
{
    ENTER();
    int version = fake_version() ? fake_version() : FAKE_VERSION;
    *major = version / 1000;
    *minor = version % 1000 / 10;
    return leave(__func__, NVRTC_SUCCESS);
}

FAKE_EXPORT const char *nvrtcGetErrorString(nvrtcResult result)
{
    (void)fake_enter(__func__);
    fake_leave(__func__);
    switch (result) {
    case NVRTC_SUCCESS:
        return "NVRTC_SUCCESS";
    case NVRTC_ERROR_OUT_OF_MEMORY:
        return "NVRTC_ERROR_OUT_OF_MEMORY";
    case NVRTC_ERROR_INVALID_OPTION:
        return "NVRTC_ERROR_INVALID_OPTION";
    case NVRTC_ERROR_COMPILATION:
        return "NVRTC_ERROR_COMPILATION";
    case NVRTC_ERROR_BUILTIN_OPERATION_FAILURE:
        return "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE";
    case NVRTC_ERROR_INTERNAL_ERROR:
        return "NVRTC_ERROR_INTERNAL_ERROR";
    default:
        return "NVRTC_ERROR unknown";
    }
}

#ifndef FAKE_OLD
FAKE_EXPORT nvrtcResult nvrtcGetNumSupportedArchs(int *count)
{
    ENTER();
    *count = (int)(sizeof supported / sizeof supported[0]);
    return leave(__func__, NVRTC_SUCCESS);
}

FAKE_EXPORT nvrtcResult nvrtcGetSupportedArchs(int *archs)
{
    ENTER();
    memcpy(archs, supported, sizeof supported);
    return leave(__func__, NVRTC_SUCCESS);
}
#endif

FAKE_EXPORT nvrtcResult nvrtcCreateProgram(nvrtcProgram *out, const char *source, const char *name,
                                           int header_count, const char *const *headers,
                                           const char *const *include_names)
{
    ENTER();
    if (!out || !source || header_count < 0)
        return leave(__func__, NVRTC_ERROR_INVALID_INPUT);
    nvrtcProgram p = calloc(1, sizeof *p);
    if (!p)
        abort();
    p->magic = PROGRAM_MAGIC;
    p->source = copy(source);
    p->file = copy(name && name[0] ? name : "default_program");
    p->header_count = header_count;
    p->header_name = calloc((size_t)header_count + 1, sizeof *p->header_name);
    p->header_text = calloc((size_t)header_count + 1, sizeof *p->header_text);
    if (!p->header_name || !p->header_text)
        abort();
    for (int i = 0; i < header_count; i++) {
        p->header_text[i] = copy(headers[i]);
        p->header_name[i] = copy(include_names[i]);
    }
    fake_count("program", 1);
    *out = p;
    return leave(__func__, NVRTC_SUCCESS);
}

FAKE_EXPORT nvrtcResult nvrtcDestroyProgram(nvrtcProgram *program)
{
    int code = fake_enter(__func__);
    if (!program || !valid(__func__, *program))
        return leave(__func__, NVRTC_ERROR_INVALID_PROGRAM);
    nvrtcProgram p = *program;
    p->magic = 0;
    for (int i = 0; i < p->header_count; i++) {
        free(p->header_name[i]);
        free(p->header_text[i]);
    }
    for (int i = 0; i < p->name_count; i++) {
        free(p->expression[i]);
        free(p->lowered[i]);
    }
    free(p->header_name);
    free(p->header_text);
    free(p->source);
    free(p->file);
    text_clear(&p->log);
    text_clear(&p->cubin);
    text_clear(&p->ptx);
    free(p);
    *program = NULL;
    fake_count("program", -1);
    return leave(__func__, (nvrtcResult)code);
}

FAKE_EXPORT nvrtcResult nvrtcAddNameExpression(nvrtcProgram p, const char *expression)
{
    ENTER();
    if (!valid(__func__, p))
        return leave(__func__, NVRTC_ERROR_INVALID_PROGRAM);
    if (p->compiled)
        return leave(__func__, NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION);
    if (p->name_count == MAX_NAMES)
        return leave(__func__, NVRTC_ERROR_OUT_OF_MEMORY);
    p->expression[p->name_count++] = copy(expression);
    return leave(__func__, NVRTC_SUCCESS);
}

/* The plain name inside "&ns::scale<float, 4>". */
static void plain_name(const char *expression, char *out, size_t size)
{
    const char *end = strchr(expression, '<');
    size_t len = end ? (size_t)(end - expression) : strlen(expression);
    while (len && isspace((unsigned char)expression[len - 1]))
        len--;
    size_t begin = len;
    while (begin && (isalnum((unsigned char)expression[begin - 1]) || expression[begin - 1] == '_'))
        begin--;
    snprintf(out, size, "%.*s", (int)(len - begin), expression + begin);
}

static char *lower(const char *expression)
{
    text t = {0};
    char name[MAX_NAME_BYTES];
    plain_name(expression, name, sizeof name);
    text_add(&t, "_Z%zu%s", strlen(name), name);
    for (const char *c = strchr(expression, '<'); c && *c; c++)
        if (isalnum((unsigned char)*c))
            text_add(&t, "%c", *c);
    text_add(&t, "v");
    return t.data;
}

/* Finds the parameter list of a __global__ function: between the parentheses. */
static bool find_kernel(const char *source, const char *name, const char **begin, const char **end)
{
    size_t len = strlen(name);
    for (const char *at = source; (at = strstr(at, "__global__")) != NULL;) {
        const char *open = at += strlen("__global__");
        for (int tries = 0; tries < 3; tries++) {
            open = strchr(open, '(');
            if (!open)
                return false;
            const char *stop = open;
            while (stop > at && isspace((unsigned char)stop[-1]))
                stop--;
            int depth = 0;
            const char *close = open;
            do {
                depth += *close == '(' ? 1 : *close == ')' ? -1 : 0;
                close++;
            } while (*close && depth > 0);
            if ((size_t)(stop - at) > len && memcmp(stop - len, name, len) == 0 &&
                !isalnum((unsigned char)stop[-(long)len - 1]) && stop[-(long)len - 1] != '_') {
                *begin = open + 1;
                *end = close - 1;
                return true;
            }
            open = close;
        }
    }
    return false;
}

static const char *param_size(const char *param)
{
    static const struct {
        const char *word, *size;
    } known[] = {{"*", "8"},       {"long", "8"},     {"int64_t", "8"}, {"uint64_t", "8"},
                 {"size_t", "8"},  {"double", "8"},   {"float", "4"},   {"uint32_t", "4"},
                 {"int32_t", "4"}, {"unsigned", "4"}, {"int ", "4"},    {"bool", "1"}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strstr(param, known[i].word))
            return known[i].size;
    return NULL;
}

static int directive_value(const char *source, const char *directive)
{
    const char *at = strstr(source, directive);
    return at ? atoi(at + strlen(directive)) : 0;
}

/* "8 8 4", "" for none, "?" when it cannot be told. */
static void list_params(text *out, const char *source, const char *begin, const char *end)
{
    text sizes = {0};
    const char *directive = strstr(source, "// fake-params:");
    if (directive) {
        directive += strlen("// fake-params:");
        text_add(out, "%.*s", (int)strcspn(directive, "\n"), directive);
        return;
    }
    text_add(&sizes, " ");
    while (begin && begin < end) {
        size_t len = strcspn(begin, ",)");
        if (begin + len > end)
            len = (size_t)(end - begin);
        char *param = strndup(begin, len);
        if (!param)
            abort();
        bool blank = strspn(param, " \t\r\n") == strlen(param);
        const char *size = blank ? "" : param_size(param);
        int bytes = directive_value(source, "PARAM_BYTES = "); /* of a struct, in its prologue */
        free(param);
        if (!size && bytes == 0) {
            text_clear(&sizes);
            text_add(&sizes, "?");
            break;
        }
        if (size)
            text_add(&sizes, "%s ", size);
        else
            text_add(&sizes, "%d ", bytes);
        begin += len + 1;
    }
    text_add(out, "%s", sizes.data);
    text_clear(&sizes);
}

static const char *header_of(nvrtcProgram p, const char *name)
{
    for (int i = 0; i < p->header_count; i++)
        if (strcmp(p->header_name[i], name) == 0)
            return p->header_text[i];
    return NULL;
}

/* Walks the lines as a preprocessor that never enters a conditional. false: it does not compile. */
static bool scan(nvrtcProgram p, const char *body, const char *file, int depth)
{
    int line = 1, conditional = 0;
    char name[256], here[256];
    snprintf(here, sizeof here, "%s", file);
    for (const char *at = body; *at; line++) {
        size_t len = strcspn(at, "\n");
        const char *word = at + strspn(at, " \t");
        if (strncmp(word, "#if", 3) == 0)
            conditional++;
        else if (strncmp(word, "#endif", 6) == 0)
            conditional--;
        else if (strncmp(word, "#line ", 6) == 0) {
            line = atoi(word + 6) - 1;
            if (sscanf(word + 6, "%*d \"%255[^\"]\"", name) == 1)
                snprintf(here, sizeof here, "%s", name);
        } else if (strncmp(word, "#error", 6) == 0 && conditional == 0) {
            text_add(&p->log,
                     "%s(%d): catastrophic error: #error directive:%.*s\n  %.*s\n   ^\n\n"
                     "1 catastrophic error detected in the compilation of \"%s\".\n"
                     "Compilation terminated.\n",
                     here, line, (int)(len - (size_t)(word - at) - 6), word + 6, (int)len, at,
                     p->file);
            return false;
        } else if (sscanf(word, "#include \"%255[^\"]\"", name) == 1) {
            const char *header = header_of(p, name);
            if (!header) {
                text_add(&p->log,
                         "%s(%d): catastrophic error: cannot open source file \"%s\"\n  %.*s\n\n"
                         "1 catastrophic error detected in the compilation of \"%s\".\n"
                         "Compilation terminated.\n",
                         here, line, name, (int)len, at, p->file);
                return false;
            }
            if (depth < 16 && !scan(p, header, name, depth + 1))
                return false;
        }
        at += len + (at[len] == '\n');
    }
    return true;
}

static bool arch_known(const char *arch)
{
    int cc = 0, used = 0;
    if (sscanf(arch, "sm_%d%n", &cc, &used) != 1 && sscanf(arch, "compute_%d%n", &cc, &used) != 1)
        return false;
    const char *suffix = arch + used;
    if (*suffix && !(cc >= 90 && (strcmp(suffix, "a") == 0 || strcmp(suffix, "f") == 0)))
        return false;
    for (size_t i = 0; i < sizeof supported / sizeof supported[0]; i++)
        if (supported[i] == cc)
            return true;
    return false;
}

static uint64_t digest(uint64_t hash, const char *s)
{
    for (; *s; s++)
        hash = (hash ^ (unsigned char)*s) * 0x100000001b3u;
    return (hash ^ 0xffu) * 0x100000001b3u;
}

static uint64_t digest_all(nvrtcProgram p, int option_count, const char *const *options)
{
    uint64_t hash = digest(0xcbf29ce484222325u, FAKE_BUILD);
    hash = digest(digest(hash, p->file), p->source);
    for (int i = 0; i < p->header_count; i++)
        hash = digest(digest(hash, p->header_name[i]), p->header_text[i]);
    for (int i = 0; i < option_count; i++)
        hash = digest(hash, options[i]);
    return hash;
}

static void remember(nvrtcProgram p, int option_count, const char *const *options)
{
    pthread_mutex_lock(&fake_mutex);
    text_clear(&last_source);
    text_clear(&last_options);
    text_clear(&last_headers);
    text_add(&last_source, "%s", p->source);
    for (int i = 0; i < option_count; i++)
        text_add(&last_options, "%s\n", options[i]);
    for (int i = 0; i < p->header_count; i++)
        text_add(&last_headers, "%s\n", p->header_name[i]);
    pthread_mutex_unlock(&fake_mutex);
}

/* The architecture asked for; NULL, with a log, when an option is wrong. */
static const char *check_options(nvrtcProgram p, int count, const char *const *options)
{
    const char *arch = "sm_75";
    for (int i = 0; i < count; i++) {
        const char *value = strchr(options[i], '=');
        if (strncmp(options[i], "--gpu-architecture=", 19) == 0 ||
            strncmp(options[i], "-arch=", 6) == 0) {
            arch = value + 1;
            if (!arch_known(arch)) {
                text_add(&p->log, "nvrtc: error: invalid value for --gpu-architecture (-arch)\n");
                return NULL;
            }
        } else if (strstr(options[i], "no-such-option")) {
            text_add(&p->log, "nvrtc: error: unrecognized option %s found\n", options[i]);
            return NULL;
        }
    }
    return arch;
}

static bool resolve_names(nvrtcProgram p)
{
    for (int i = 0; i < p->name_count; i++) {
        char name[MAX_NAME_BYTES];
        const char *begin = NULL, *end = NULL;
        plain_name(p->expression[i], name, sizeof name);
        if (!find_kernel(p->source, name, &begin, &end)) {
            text_add(&p->log,
                     "__nv_name_map(2): error: identifier \"%s\" is undefined\n\n"
                     "1 error detected in the compilation of \"%s\".\n",
                     name, p->file);
            return false;
        }
        p->lowered[i] = lower(p->expression[i]);
        text_add(&p->cubin, "function %s\nparams ", p->lowered[i]);
        list_params(&p->cubin, p->source, begin, end);
        text_add(&p->cubin, "\n");
    }
    return true;
}

FAKE_EXPORT nvrtcResult nvrtcCompileProgram(nvrtcProgram p, int count, const char *const *options)
{
    ENTER();
    if (!valid(__func__, p))
        return leave(__func__, NVRTC_ERROR_INVALID_PROGRAM);
    remember(p, count, options);
    p->compiled = true;
    const char *arch = check_options(p, count, options);
    if (!arch)
        return leave(__func__, NVRTC_ERROR_INVALID_OPTION);
    if (!scan(p, p->source, p->file, 0))
        return leave(__func__, NVRTC_ERROR_COMPILATION);
    text_add(&p->cubin, "\177ELF fake cubin\narch %s\n", arch);
    if (!resolve_names(p)) {
        text_clear(&p->cubin);
        return leave(__func__, NVRTC_ERROR_COMPILATION);
    }
    int smem = directive_value(p->source, "// fake-smem:");
    int spills = directive_value(p->source, "// fake-spills:");
    text_add(&p->cubin, "smem %d\nlocal %d\nregs 32\ndigest %016llx\nend\n", smem, spills,
             (unsigned long long)digest_all(p, count, options));
    text_add(&p->ptx, "//\n// made by a look-alike of NVRTC\n.version 9.0\n.target %s\n", arch);
    text_add(&p->log, "ptxas info    : 0 bytes gmem\n");
    for (int i = 0; i < p->name_count; i++)
        text_add(&p->log,
                 "ptxas info    : Compiling entry function '%s' for '%s'\n"
                 "ptxas info    : Function properties for %s\n"
                 "ptxas         .     %d bytes stack frame, %d bytes spill stores, "
                 "%d bytes spill loads\n"
                 "ptxas info    : Used 32 registers, used 1 barriers, %d bytes smem\n"
                 "ptxas info    : Compile time = 7.156 ms\n",
                 p->lowered[i], arch, p->lowered[i], spills, spills, spills, smem);
    return leave(__func__, NVRTC_SUCCESS);
}

FAKE_EXPORT nvrtcResult nvrtcGetLoweredName(nvrtcProgram p, const char *expression,
                                            const char **lowered)
{
    ENTER();
    if (!valid(__func__, p))
        return leave(__func__, NVRTC_ERROR_INVALID_PROGRAM);
    for (int i = 0; i < p->name_count; i++)
        if (p->lowered[i] && strcmp(p->expression[i], expression) == 0) {
            *lowered = p->lowered[i];
            return leave(__func__, NVRTC_SUCCESS);
        }
    return leave(__func__, NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID);
}

/* The terminating zero counts, as in the log and in PTX of the real library. */
static nvrtcResult give_size(nvrtcProgram p, const text *t, size_t *size)
{
    if (p->log.data && !t->data && t != &p->log) {
        *size = 0;
        return NVRTC_SUCCESS;
    }
    *size = t->len + 1;
    return NVRTC_SUCCESS;
}

static nvrtcResult give(const text *t, char *out)
{
    if (t->data)
        memcpy(out, t->data, t->len + 1);
    else
        out[0] = '\0';
    return NVRTC_SUCCESS;
}

#define GETTERS(SIZE_NAME, NAME, MEMBER)                                                           \
    FAKE_EXPORT nvrtcResult SIZE_NAME(nvrtcProgram p, size_t *size)                                \
    {                                                                                              \
        ENTER();                                                                                   \
        if (!valid(__func__, p))                                                                   \
            return leave(__func__, NVRTC_ERROR_INVALID_PROGRAM);                                   \
        return leave(__func__, give_size(p, &p->MEMBER, size));                                    \
    }                                                                                              \
    FAKE_EXPORT nvrtcResult NAME(nvrtcProgram p, char *out)                                        \
    {                                                                                              \
        ENTER();                                                                                   \
        if (!valid(__func__, p))                                                                   \
            return leave(__func__, NVRTC_ERROR_INVALID_PROGRAM);                                   \
        return leave(__func__, give(&p->MEMBER, out));                                             \
    }

GETTERS(nvrtcGetProgramLogSize, nvrtcGetProgramLog, log)
GETTERS(nvrtcGetPTXSize, nvrtcGetPTX, ptx)
#ifdef FAKE_BROKEN
#define nvrtcGetCUBIN nvrtcGetCUBIN_absent
#endif
GETTERS(nvrtcGetCUBINSize, nvrtcGetCUBIN, cubin)

static const char *control_last_source(void)
{
    return last_source.data ? last_source.data : "";
}

static const char *control_last_options(void)
{
    return last_options.data ? last_options.data : "";
}

static const char *control_last_headers(void)
{
    return last_headers.data ? last_headers.data : "";
}

FAKE_EXPORT const fake_control *fake_control_get(void)
{
    static fake_control control;
    fake_core_control(&control);
    control.last_source = control_last_source;
    control.last_options = control_last_options;
    control.last_headers = control_last_headers;
    return &control;
}
