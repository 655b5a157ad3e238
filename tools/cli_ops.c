/* fajit ops: the parameter tables. */
#include <stdio.h>

#include "cli_output.h"
#include "cli_request.h"
#include "json.h"

static const char *kind_name(fa_param_kind kind)
{
    static const char *const names[] = {"int", "enum", "bool", "real"};
    return (unsigned)kind < 4 ? names[kind] : "?";
}

/* "f32|f16|bf16", "2..1024". */
static void legal_values(const fa_param_info *p, fa__buf *out)
{
    switch (p->kind) {
    case FA_PARAM_ENUM:
        for (size_t i = 0; p->names[i]; i++)
            fa__buf_format(out, "%s%s", i ? "|" : "", p->names[i]);
        return;
    case FA_PARAM_BOOL:
        fa__buf_text(out, "true|false");
        return;
    case FA_PARAM_INT:
    case FA_PARAM_REAL:
        fa__json_real(out, p->min);
        fa__buf_text(out, "..");
        fa__json_real(out, p->max);
        return;
    }
}

static int show_op(const cli *c, const char *name)
{
    static const char *const keys[] = {"key", "alias", "kind", "values", "dynamic", "text", NULL};
    fa_op op;
    fa_op_info_t info;
    cli_table t;

    if (!cli_find_op(name, &op, &info))
        return CLI_USAGE;
    cli_table_begin(&t, keys);
    for (size_t i = 0; i < info.param_count; i++) {
        const fa_param_info *p = &info.params[i];
        fa__buf values = {0};
        legal_values(p, &values);
        cli_cell_text(&t, p->name);
        cli_cell_text(&t, p->alias ? p->alias : "");
        cli_cell_text(&t, kind_name(p->kind));
        cli_cell_text(&t, values.data ? values.data : "");
        cli_cell_bool(&t, p->dynamic, "yes", "");
        cli_cell_text(&t, p->text);
        fa__buf_free(&values);
    }
    for (const cli_template_key *k = cli_template_keys; op == FA_OP_TEMPLATE && k->key; k++) {
        cli_cell_text(&t, k->key);
        cli_cell_text(&t, "");
        cli_cell_text(&t, "text");
        cli_cell_text(&t, k->values);
        cli_cell_bool(&t, false, "yes", "");
        cli_cell_text(&t, k->text);
    }
    cli_table_show(&t, c->json);
    cli_table_free(&t);
    return CLI_OK;
}

int cli_ops(const cli *c)
{
    static const char *const keys[] = {"op", "text", NULL};
    fa_op_info_t info;
    cli_table t;

    if (c->operand_count > 1) {
        cli_error("ops takes one operation, or none to list them");
        return CLI_USAGE;
    }
    if (c->operand_count == 1)
        return show_op(c, c->operands[0]);
    cli_table_begin(&t, keys);
    for (int i = 1; fa_op_info((fa_op)i, &info) == FA_OK; i++) {
        cli_cell_text(&t, info.name);
        cli_cell_text(&t, info.text);
    }
    cli_table_show(&t, c->json);
    cli_table_free(&t);
    return CLI_OK;
}
