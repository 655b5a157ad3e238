/* Tables for people and JSON for programs, from the same cells. */
#ifndef FAJIT_TOOLS_CLI_OUTPUT_H
#define FAJIT_TOOLS_CLI_OUTPUT_H

#include "buf.h"
#include "fajit.h"

typedef struct cli_cell {
    char *shown, *json;
    bool right;
} cli_cell;

typedef struct cli_table {
    const char *const *keys; /* NULL-terminated: headings and JSON keys */
    size_t columns, count, capacity;
    cli_cell *cells; /* row by row */
} cli_table;

void cli_table_begin(cli_table *t, const char *const *keys);
void cli_table_free(cli_table *t);
void cli_cell_text(cli_table *t, const char *text);
void cli_cell_int(cli_table *t, int64_t value);
void cli_cell_real(cli_table *t, double value, int decimals);
void cli_cell_small(cli_table *t, double value); /* "1.23e-07" */
void cli_cell_bool(cli_table *t, bool value, const char *yes, const char *no);
/* Aligned columns under headings, to stdout. */
void cli_table_print(const cli_table *t);
/* A row as members of an object under construction. */
void cli_table_json_members(const cli_table *t, size_t row, fa__buf *out);
/* An array of objects. */
void cli_table_json(const cli_table *t, fa__buf *out);
/* One or the other. */
void cli_table_show(const cli_table *t, bool json);

/* Members of an object under construction: writes the comma where one is needed. */
void cli_json_key(fa__buf *out, const char *key); /* NULL: an element */
void cli_json_text(fa__buf *out, const char *key, const char *value);
void cli_json_int(fa__buf *out, const char *key, int64_t value);
void cli_json_real(fa__buf *out, const char *key, double value);
void cli_json_bool(fa__buf *out, const char *key, bool value);
/* cli_failure.c: an element {"arch", "status", "error"} for what failed since the last one. */
void cli_json_failure(fa__buf *out, const char *arch);
/* Prints and frees. */
void cli_json_print(fa__buf *out);

/* "1.5 MiB". */
const char *cli_bytes(uint64_t bytes, char out[32]);

#endif
