/* OP key=value... read into a spec, and for a run also into its sizes. */
#ifndef FAJIT_TOOLS_CLI_REQUEST_H
#define FAJIT_TOOLS_CLI_REQUEST_H

#include "cli.h"

#define CLI_MAX_PARAMS 64

typedef struct cli_request {
    fa_op op;
    fa_op_info_t info;
    fa_spec spec;               /* to compile */
    fa_spec sizes;              /* of the run: every dimension set (cli_request_run only) */
    bool given[CLI_MAX_PARAMS]; /* by index in info.params */
    int64_t extra[16];          /* sizes that are no parameters: "offset" */
    char note[512];             /* the defaults that were taken, "B=4 N=256" */
    struct cli_template *owned; /* what a template's spec points to */
} cli_request;

/* For compile, source, ptx, sass. Returns an exit code, after printing what is wrong. */
int cli_request_read(const cli *c, cli_request *r);
/* For verify and bench: names are the extra sizes (NULL-terminated), with their defaults; `uses`, where not NULL,
 * tells whether a size counts with a spec. */
int cli_request_run(const cli *c, const char *const *names, const int64_t *defaults,
                    bool (*uses)(const fa_spec *spec, const char *name), cli_request *r);
void cli_request_free(cli_request *r);

/* Finds an operation by name; prints the names there are. */
bool cli_find_op(const char *name, fa_op *op, fa_op_info_t *info);
bool cli_is_dimension(const fa_param_info *p); /* a size that each launch may give */
/* Splits "key=value": copies the key. NULL after printing. */
const char *cli_split(const char *operand, char *key, size_t size);

/* cli_template.c: the keys of `template`. */
typedef struct cli_template_key {
    const char *key, *values, *text;
} cli_template_key;
extern const cli_template_key cli_template_keys[]; /* NULL-named at the end */
int cli_template_read(const cli *c, cli_request *r);
void cli_template_free(struct cli_template *t);

#endif
