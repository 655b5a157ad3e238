/* What went wrong: told on stderr, and with --json also on stdout. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "cli_output.h"

/* The first failure since the last one that was written as JSON. */
static struct {
    const char *status; /* "FA_ERR_..." or "failed"; NULL: nothing failed */
    fa__buf error;
    bool json, done;
} told;

static void remember(const char *status, const char *error)
{
    if (told.status)
        return;
    told.status = status;
    fa__buf_text(&told.error, error);
}

static void print(const char *status, const char *format, va_list args)
{
    char *made = NULL;
    const char *text = vasprintf(&made, format, args) < 0 ? format : made;

    remember(status, text);
    fflush(stdout);
    fprintf(stderr, "fajit: %s\n", text);
    free(made);
}

void cli_error(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    print("failed", format, args);
    va_end(args);
}

void cli_error_as(fa_status status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    print(fa_status_name(status), format, args);
    va_end(args);
}

int cli_failed(fa_status status, const char *what)
{
    remember(fa_status_name(status), fa_last_error());
    fflush(stdout);
    fprintf(stderr, "fajit: %s%s%s: %s\n", what ? what : "", what ? ": " : "",
            fa_status_name(status), fa_last_error());
    return status == FA_ERR_NO_DEVICE || status == FA_ERR_CUDA_MISSING ? CLI_NO_DEVICE : CLI_FAILED;
}

/* --- the same as JSON --- */

void cli_failure_forget(void)
{
    told.status = NULL;
    fa__buf_free(&told.error);
}

static void members(fa__buf *out, const char *status)
{
    cli_json_text(out, "status", status ? status : "failed");
    cli_json_text(out, "error",
                  told.error.data ? told.error.data : "ended early; standard error says why");
}

void cli_json_failure(fa__buf *out, const char *arch)
{
    cli_json_key(out, NULL);
    fa__buf_text(out, "{");
    cli_json_text(out, "arch", arch);
    members(out, told.status);
    fa__buf_text(out, "}");
    cli_failure_forget();
}

/* Whatever succeeds prints JSON of its own, so that silence is a failure, also where the process
 * ends without coming back to main. */
static void at_exit(void)
{
    cli_failure_end(CLI_FAILED);
}

void cli_failure_begin(void)
{
    atexit(at_exit);
}

void cli_failure_json(bool json)
{
    told.json = json;
}

void cli_failure_end(int code)
{
    fa__buf out = {0};

    if (!told.done && told.json && code != CLI_OK) {
        fa__buf_text(&out, "{");
        members(&out, code == CLI_USAGE ? "usage" : told.status);
        fa__buf_text(&out, "}");
        puts(out.failed ? "{\"status\": \"FA_ERR_OUT_OF_MEMORY\", \"error\": \"\"}" : out.data);
        fa__buf_free(&out);
    }
    told.done = true;
    cli_failure_forget();
}

void cli_failure_printed(void)
{
    told.done = true;
}
