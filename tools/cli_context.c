/* Contexts, memory and files of the tool. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "cli.h"

static fa__buf *held; /* where warnings go instead of stderr; NULL: nowhere */

/* The directory that a message tells to change was named by the option, if that is given. */
static char *in_options(const cli *c, const char *text)
{
    static const char variable[] = "FAJIT_CACHE_DIR", option[] = "--cache-dir";
    fa__buf out = {0};

    for (const char *at; c->cache_dir && (at = strstr(text, variable));
         text = at + strlen(variable)) {
        fa__buf_bytes(&out, text, (size_t)(at - text));
        fa__buf_text(&out, option);
    }
    fa__buf_text(&out, text);
    if (out.failed)
        fa__buf_free(&out);
    return out.data ? out.data : cli_copy(text);
}

static void log_line(void *user, fa_log_level level, const char *line)
{
    static const char *const names[] = {"", "error: ", "warning: ", "", "debug: "};
    char *text = in_options(user, line);

    if (held && level == FA_LOG_WARNING)
        fa__buf_format(held, "%s\n", text);
    else
        fprintf(stderr, "fajit: %s%s\n", (unsigned)level < 5 ? names[level] : "", text);
    free(text);
}

static fa_context_options options_of(const cli *c)
{
    fa_context_options o = FA_CONTEXT_OPTIONS_INIT;

    o.device = c->device >= 0 ? c->device : FA_DEVICE_CURRENT;
    o.cache_dir = c->cache_dir;
    o.no_disk_cache = c->no_cache;
    o.compile_jobs = c->jobs;
    o.log = log_line;
    o.log_user = (void *)(uintptr_t)c; /* only read */
    o.log_level = c->verbose > 1 ? FA_LOG_DEBUG : c->verbose > 0 ? FA_LOG_INFO : FA_LOG_WARNING;
    return o;
}

int cli_context_open(const cli *c, const char *arch, fa_context **out)
{
    fa_context_options o = options_of(c);

    o.offline = arch != NULL;
    o.arch = arch;
    fa_status status = fa_context_create(&o, out);
    if (status == FA_OK)
        return CLI_OK;
    int code = cli_failed(status, NULL);
    if (code == CLI_NO_DEVICE && (c->command->options & CLI_OPT_ARCH))
        cli_error("without a device, say what to compile for: --arch ARCH, e.g. --arch sm_90a");
    return code;
}

int cli_context_open_any(const cli *c, fa_context **out)
{
    fa_context_options o = options_of(c);

    o.offline = true;
    o.arch = "sm_90a"; /* only for the want of one: nothing is compiled */
    fa_status status = fa_context_create(&o, out);
    return status == FA_OK ? CLI_OK : cli_failed(status, NULL);
}

int cli_context_open_caches(const cli *c, fa_context **out, char **why)
{
    fa__buf warnings = {0};
    fa_context_info_t info = {.size = sizeof info};
    char *save = NULL;

    held = &warnings;
    int code = cli_context_open_any(c, out);
    held = NULL;
    if (code == CLI_OK) {
        fa_status status = fa_context_info(*out, &info);
        code = status ? cli_failed(status, NULL) : CLI_OK;
    }
    *why = c->no_cache ? cli_copy("switched off by --no-cache")
                       : in_options(c, code == CLI_OK ? info.cache_error : "");
    for (char *line = warnings.data ? strtok_r(warnings.data, "\n", &save) : NULL; line;
         line = strtok_r(NULL, "\n", &save))
        if (!(*why)[0] || !strstr(line, *why))
            fprintf(stderr, "fajit: warning: %s\n", line);
    fa__buf_free(&warnings);
    return code;
}

/* A failure without a context to ask and without --arch has no architecture: it is the command's. */
static void tell_failed(const char *arch, fa_context *ctx,
                        void (*failed)(void *user, const char *arch), void *user)
{
    fa_context_info_t info = {.size = sizeof info};

    if (!arch && ctx && fa_context_info(ctx, &info) == FA_OK)
        arch = info.arch;
    if (arch)
        failed(user, arch);
}

int cli_each_arch(const cli *c, int (*visit)(const cli *c, fa_context *ctx, void *user),
                  void (*failed)(void *user, const char *arch), void *user)
{
    int first = CLI_OK;

    for (size_t i = 0; i < (c->arch_count ? c->arch_count : 1); i++) {
        const char *arch = c->arch_count ? c->arch[i] : NULL;
        fa_context *ctx = NULL;
        int code = cli_context_open(c, arch, &ctx);
        if (code == CLI_OK)
            code = visit(c, ctx, user);
        if (code)
            tell_failed(arch, ctx, failed, user);
        fa_context_destroy(ctx);
        first = first ? first : code;
    }
    return first;
}

const char *cli_origin_name(fa_origin origin)
{
    return origin == FA_ORIGIN_MEMORY ? "memory" : origin == FA_ORIGIN_DISK ? "disk" : "compiled";
}

void *cli_alloc(size_t bytes)
{
    void *memory = calloc(1, bytes ? bytes : 1);

    if (!memory) {
        cli_error_as(FA_ERR_OUT_OF_MEMORY, "out of memory: %zu bytes", bytes);
        exit(CLI_FAILED);
    }
    return memory;
}

char *cli_copy(const char *text)
{
    char *copy = cli_alloc(strlen(text) + 1);

    strcpy(copy, text);
    return copy;
}

char *cli_read_file(const char *path)
{
    char block[65536];
    fa__buf bytes = {0};
    size_t got = 0;

    FILE *file = fopen(path, "rb");
    if (!file) {
        cli_error_as(FA_ERR_IO, "%s: %s", path, strerror(errno));
        return NULL;
    }
    errno = 0;
    while ((got = fread(block, 1, sizeof block, file)) > 0)
        fa__buf_bytes(&bytes, block, got);
    bool unreadable = ferror(file) != 0;
    int reason = errno;
    fclose(file);
    fa__buf_bytes(&bytes, "", 0); /* an empty file has a text too */
    if (unreadable)
        cli_error_as(FA_ERR_IO, "%s: %s", path, strerror(reason));
    else if (bytes.failed)
        cli_error_as(FA_ERR_OUT_OF_MEMORY, "%s: out of memory", path);
    else if (memchr(bytes.data, '\0', bytes.len))
        cli_error_as(FA_ERR_IO, "%s: holds a NUL byte and so is no text", path);
    else
        return bytes.data;
    fa__buf_free(&bytes);
    return NULL;
}
