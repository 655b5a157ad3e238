/* fajit verify: the device against the double-precision reference. */
#include <stdio.h>

#include "cli_run.h"

static int verify_seed(cli_session *s, uint64_t seed, cli_table *t)
{
    oracle_case one;
    cli_set set = {0};
    const char *why = NULL;
    fa_status status = FA_OK;

    int code = cli_case_make(s, seed, &one);
    if (code)
        return code;
    s->oracle->expect(&one);
    code = cli_set_make(s, &one, &set);
    if (code == CLI_OK && (status = fa_launch(s->kernel, &set.args, s->stream)))
        code = cli_failed(status, NULL);
    if (code == CLI_OK && !gpu_synchronize(s->stream, &why)) {
        cli_error("seed %llu: the kernel failed: %s", (unsigned long long)seed, why);
        /* The CUDA context is of no use after that: nothing of it can be freed. */
        s->oracle->free_case(&one);
        return CLI_FAILED;
    }
    if (code == CLI_OK && !cli_set_check(&set, t))
        code = CLI_FAILED;
    cli_set_free(&set);
    s->oracle->free_case(&one);
    return code;
}

int cli_verify(const cli *c)
{
    cli_session s;
    cli_table t;
    fa__buf out = {0};
    int code = cli_session_open(c, &s);

    cli_table_begin(&t, cli_check_keys);
    if (code == CLI_OK && !c->json)
        cli_run_print_sizes(&s);
    bool opened = code == CLI_OK;
    bool whole = opened;
    for (unsigned i = 0; whole && i < c->seeds; i++) {
        int seed_code = verify_seed(&s, i + 1, &t);
        code = code ? code : seed_code;
        /* Without a row for every tensor the failure is no matter of this seed. */
        whole = !seed_code || t.count >= (i + 1) * t.columns;
    }
    if (whole && c->json) {
        fa__buf_text(&out, "{");
        cli_json_text(&out, "op", s.request.info.name);
        cli_json_text(&out, "name", s.info.name);
        cli_json_text(&out, "arch", s.info.arch);
        cli_json_text(&out, "plan", s.info.plan);
        cli_run_json_sizes(&out, &s);
        cli_json_bool(&out, "passed", code == CLI_OK);
        cli_json_key(&out, "results");
        cli_table_json(&t, &out);
        fa__buf_text(&out, "}");
        cli_json_print(&out);
    } else if (!c->json && t.count) {
        cli_table_print(&t);
        printf("\n%s\n", code == CLI_OK ? "PASS" : "FAIL");
    }
    cli_table_free(&t);
    cli_session_close(&s);
    return code;
}
