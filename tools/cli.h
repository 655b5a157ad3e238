/* The command-line tool: what its files share. */
#ifndef FAJIT_TOOLS_CLI_H
#define FAJIT_TOOLS_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fajit.h"

/* Exit codes; documented in fajit(1). */
enum {
    CLI_OK = 0,
    CLI_FAILED = 1,    /* something failed, or a result is over its gate */
    CLI_USAGE = 2,     /* the command line makes no sense */
    CLI_NO_DEVICE = 3, /* needs a CUDA device and there is none */
};

struct cli_command;

/* A command line, read. */
typedef struct cli {
    const struct cli_command *command;
    const char *const *operands; /* behind the command's name */
    size_t operand_count;
    const char **arch;
    size_t arch_count;
    bool json, no_cache, yes, remove, emulate;
    bool dynamic;
    const char *dynamic_list; /* "B,N"; NULL with `dynamic`: every dimension */
    int verbose;
    int device; /* -1: not given */
    const char *cache_dir;
    unsigned jobs, seeds;
} cli;

typedef struct cli_command {
    const char *name, *usage, *text;
    unsigned options; /* CLI_OPT_* that it takes besides the common ones */
    const char *help; /* more for `fajit NAME --help`; NULL: nothing */
    int (*run)(const cli *c);
} cli_command;

enum {
    CLI_OPT_ARCH = 1u << 0,
    CLI_OPT_JOBS = 1u << 1,
    CLI_OPT_SEEDS = 1u << 2,
    CLI_OPT_DYNAMIC = 1u << 3,
    CLI_OPT_YES = 1u << 4,
    CLI_OPT_REMOVE = 1u << 5,
    CLI_OPT_DEVICE = 1u << 6,
    CLI_OPT_CACHE = 1u << 7,
    CLI_OPT_LOG = 1u << 8,
    CLI_OPT_EMULATE = 1u << 9,
};

/* cli_commands.c: NULL-named at the end. */
extern const cli_command cli_commands[];

/* cli_args.c. Returns -1 to go on, else the exit code to end with (help, version, usage). */
int cli_args_read(int argc, char **argv, cli *c);
void cli_args_free(cli *c);

/* Commands, each in the file of its name. */
int cli_info(const cli *c);
int cli_ops(const cli *c);
int cli_compile(const cli *c);
int cli_source(const cli *c);
int cli_ptx(const cli *c);
int cli_sass(const cli *c);
int cli_verify(const cli *c);
int cli_bench(const cli *c);
int cli_warm(const cli *c);
int cli_cache(const cli *c);
int cli_help(const cli *c); /* in cli_args.c */

/* Makes the emulator the driver and the compiler of this process; before anything is opened. */
int cli_emulate(const cli *c);

/* cli_failure.c. With --json the first failure is also printed to stdout as an object, unless the
 * command prints JSON itself. */
/* Prints "fajit: MESSAGE" to stderr. */
void cli_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same where the library has a status for the failure. */
void cli_error_as(fa_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints the last error behind `what` (NULL: alone) and gives the exit code for `status`. */
int cli_failed(fa_status status, const char *what);
void cli_failure_begin(void); /* at the start of the program */
void cli_failure_json(bool json);
void cli_failure_printed(void); /* the command printed JSON */
void cli_failure_forget(void);  /* it is part of what the command will print */
void cli_failure_end(int code); /* prints the object where one is due */

/* cli_nearest.c: {.word = what was given}, then each name there is, then the hint. */
typedef struct cli_nearest {
    const char *word, *name;
    size_t distance;
} cli_nearest;
void cli_nearest_try(cli_nearest *n, const char *name);
const char *cli_nearest_hint(const cli_nearest *n, char out[64]); /* "; did you mean ...", or "" */

/* cli_context.c */
/* A context for an architecture, or with NULL for the device. Prints why not. */
int cli_context_open(const cli *c, const char *arch, fa_context **out);
/* Calls `visit` with a context for each --arch, or the device's when there is none, and `failed`
 * for each architecture that failed. Tries them all; returns the first exit code that is not 0. */
int cli_each_arch(const cli *c, int (*visit)(const cli *c, fa_context *ctx, void *user),
                  void (*failed)(void *user, const char *arch), void *user);
const char *cli_origin_name(fa_origin origin); /* "memory", "disk", "compiled" */
/* A context for what does not depend on the architecture. */
int cli_context_open_any(const cli *c, fa_context **out);
/* The same for a command that itself says why there is no cache directory: the reason, "" when
 * there is none, is copied to *why and not printed as a warning. */
int cli_context_open_caches(const cli *c, fa_context **out, char **why);

/* Memory that is there, or the program ends. */
void *cli_alloc(size_t bytes);
char *cli_copy(const char *text);
/* A whole file, NUL-terminated, malloc'ed; NULL after printing why. Refuses NULs inside. */
char *cli_read_file(const char *path);

#endif
