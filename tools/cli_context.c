/* Contexts and errors of the tool. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "cli.h"

void cli_error(const char *format, ...)
{
    va_list args;

    fflush(stdout);
    fputs("fajit: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}

int cli_failed(fa_status status, const char *what)
{
    cli_error("%s%s%s: %s", what ? what : "", what ? ": " : "", fa_status_name(status),
              fa_last_error());
    return status == FA_ERR_NO_DEVICE || status == FA_ERR_CUDA_MISSING ? CLI_NO_DEVICE : CLI_FAILED;
}

static void log_line(void *user, fa_log_level level, const char *line)
{
    static const char *const names[] = {"", "error: ", "warning: ", "", "debug: "};

    (void)user;
    fprintf(stderr, "fajit: %s%s\n", (unsigned)level < 5 ? names[level] : "", line);
}

static fa_context_options options_of(const cli *c)
{
    fa_context_options o = FA_CONTEXT_OPTIONS_INIT;

    o.device = c->device >= 0 ? c->device : FA_DEVICE_CURRENT;
    o.cache_dir = c->cache_dir;
    o.no_disk_cache = c->no_cache;
    o.compile_jobs = c->jobs;
    o.log = log_line;
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
    o.arch = "sm_90"; /* only for the want of one: nothing is compiled */
    fa_status status = fa_context_create(&o, out);
    return status == FA_OK ? CLI_OK : cli_failed(status, NULL);
}

int cli_each_arch(const cli *c, int (*visit)(const cli *c, fa_context *ctx, void *user), void *user)
{
    int first = CLI_OK;

    for (size_t i = 0; i < (c->arch_count ? c->arch_count : 1); i++) {
        fa_context *ctx = NULL;
        int code = cli_context_open(c, c->arch_count ? c->arch[i] : NULL, &ctx);
        if (code == CLI_OK)
            code = visit(c, ctx, user);
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
        cli_error("out of memory: %zu bytes", bytes);
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
        cli_error("%s: %s", path, strerror(errno));
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
        cli_error("%s: %s", path, strerror(reason));
    else if (bytes.failed)
        cli_error("%s: out of memory", path);
    else if (memchr(bytes.data, '\0', bytes.len))
        cli_error("%s: holds a NUL byte and so is no text", path);
    else
        return bytes.data;
    fa__buf_free(&bytes);
    return NULL;
}
