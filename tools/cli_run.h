/* A case of an operation on the device: what verify and bench share. */
#ifndef FAJIT_TOOLS_CLI_RUN_H
#define FAJIT_TOOLS_CLI_RUN_H

#include "cli.h"
#include "cli_output.h"
#include "cli_request.h"
#include "gpu.h"
#include "oracle.h"

/* Bytes before and behind each buffer that nothing may write. */
#define CLI_RED_ZONE 4096u

/* The device, the request and the compiled kernel. */
typedef struct cli_session {
    cli_request request;
    const fa_oracle *oracle;
    fa_context *ctx;
    fa_kernel *kernel;
    fa_kernel_info_t info;
    gpu_stream stream;
} cli_session;

int cli_session_open(const cli *c, cli_session *s); /* prints what is wrong */
void cli_session_close(cli_session *s);

/* One set of a case's tensors in device memory, with red zones. */
typedef struct cli_set {
    const oracle_case *of;
    unsigned char *memory[16]; /* with the zone in front */
    void *data[16];
    void *workspace;
    fa_args args;
} cli_set;

/* Makes the case; prints what is wrong. */
int cli_case_make(cli_session *s, uint64_t seed, oracle_case *out);
/* Allocates, uploads and binds. */
int cli_set_make(cli_session *s, oracle_case *of, cli_set *set);
void cli_set_free(cli_set *set);

/* One line for each tensor; false when one is over its gate, an input changed or a zone was
 * written. */
bool cli_set_check(const cli_set *set, cli_table *t);
/* The table that cli_set_check fills. */
extern const char *const cli_check_keys[];

/* `"sizes": {...}, "default_sizes": "..."`: of the sizes those that count. */
void cli_run_json_sizes(fa__buf *out, const cli_session *s);
/* The kernel, its plan, the sizes, and which of them nobody gave. */
void cli_run_print_sizes(const cli_session *s);

#endif
