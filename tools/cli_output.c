#include "cli_output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "json.h"

void cli_table_begin(cli_table *t, const char *const *keys)
{
    *t = (cli_table){.keys = keys};
    while (keys[t->columns])
        t->columns++;
}

void cli_table_free(cli_table *t)
{
    for (size_t i = 0; i < t->count; i++) {
        free(t->cells[i].shown);
        free(t->cells[i].json);
    }
    free(t->cells);
    *t = (cli_table){0};
}

static void add(cli_table *t, const char *shown, const char *json, bool right)
{
    if (t->count == t->capacity) {
        size_t capacity = t->capacity ? 2 * t->capacity : 64;
        cli_cell *grown = cli_alloc(capacity * sizeof *grown);
        if (t->count)
            memcpy(grown, t->cells, t->count * sizeof *grown);
        free(t->cells);
        t->cells = grown;
        t->capacity = capacity;
    }
    t->cells[t->count++] = (cli_cell){cli_copy(shown), cli_copy(json), right};
}

static void add_taken(cli_table *t, const char *shown, fa__buf *json, bool right)
{
    add(t, shown, json->data ? json->data : "null", right);
    fa__buf_free(json);
}

void cli_cell_text(cli_table *t, const char *text)
{
    fa__buf json = {0};

    fa__json_string(&json, text);
    add_taken(t, text, &json, false);
}

void cli_cell_int(cli_table *t, int64_t value)
{
    char text[32];

    snprintf(text, sizeof text, "%lld", (long long)value);
    add(t, text, text, true);
}

void cli_cell_real(cli_table *t, double value, int decimals)
{
    char text[400];
    fa__buf json = {0};

    snprintf(text, sizeof text, "%.*f", decimals, value);
    fa__json_real(&json, value);
    add_taken(t, text, &json, true);
}

void cli_cell_small(cli_table *t, double value)
{
    char text[64];
    fa__buf json = {0};

    snprintf(text, sizeof text, "%.3g", value);
    fa__json_real(&json, value);
    add_taken(t, text, &json, true);
}

void cli_cell_bool(cli_table *t, bool value, const char *yes, const char *no)
{
    add(t, value ? yes : no, value ? "true" : "false", false);
}

/* Columns on a terminal: characters, not bytes. */
static int width(const char *text)
{
    int n = 0;

    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static void print_cell(const char *text, int column, bool right, bool last)
{
    int pad = column - width(text);

    if (right)
        printf("%*s%s", pad, "", text);
    else
        printf("%s%*s", text, last ? 0 : pad, "");
    fputs(last ? "\n" : "  ", stdout);
}

void cli_table_print(const cli_table *t)
{
    int *widths = cli_alloc(t->columns * sizeof *widths);

    for (size_t i = 0; i < t->columns; i++)
        widths[i] = width(t->keys[i]);
    for (size_t i = 0; i < t->count; i++)
        if (width(t->cells[i].shown) > widths[i % t->columns])
            widths[i % t->columns] = width(t->cells[i].shown);
    for (size_t i = 0; i < t->columns; i++)
        print_cell(t->keys[i], widths[i], i < t->count && t->cells[i].right, i + 1 == t->columns);
    for (size_t i = 0; i < t->count; i++) {
        size_t column = i % t->columns;
        print_cell(t->cells[i].shown, widths[column], t->cells[i].right, column + 1 == t->columns);
    }
    free(widths);
}

void cli_table_json_members(const cli_table *t, size_t row, fa__buf *out)
{
    for (size_t i = 0; i < t->columns; i++) {
        cli_json_key(out, t->keys[i]);
        fa__buf_text(out, t->cells[row * t->columns + i].json);
    }
}

void cli_table_json(const cli_table *t, fa__buf *out)
{
    fa__buf_text(out, "[");
    for (size_t row = 0; row < t->count / t->columns; row++) {
        fa__buf_text(out, row ? ",\n {" : "\n {");
        cli_table_json_members(t, row, out);
        fa__buf_text(out, "}");
    }
    fa__buf_text(out, t->count ? "\n]" : "]");
}

void cli_table_show(const cli_table *t, bool json)
{
    fa__buf out = {0};

    if (!json) {
        cli_table_print(t);
        return;
    }
    cli_table_json(t, &out);
    cli_json_print(&out);
}

void cli_json_key(fa__buf *out, const char *key)
{
    size_t end = out->len;

    while (end > 0 && (out->data[end - 1] == ' ' || out->data[end - 1] == '\n'))
        end--;
    if (end > 0 && !strchr("{[:", out->data[end - 1]))
        fa__buf_text(out, ", ");
    if (key) {
        fa__json_string(out, key);
        fa__buf_text(out, ": ");
    }
}

void cli_json_text(fa__buf *out, const char *key, const char *value)
{
    cli_json_key(out, key);
    fa__json_string(out, value);
}

void cli_json_int(fa__buf *out, const char *key, int64_t value)
{
    cli_json_key(out, key);
    fa__buf_format(out, "%lld", (long long)value);
}

void cli_json_real(fa__buf *out, const char *key, double value)
{
    cli_json_key(out, key);
    fa__json_real(out, value);
}

void cli_json_bool(fa__buf *out, const char *key, bool value)
{
    cli_json_key(out, key);
    fa__buf_text(out, value ? "true" : "false");
}

void cli_json_print(fa__buf *out)
{
    if (out->failed) {
        cli_error_as(FA_ERR_OUT_OF_MEMORY, "out of memory");
        exit(CLI_FAILED);
    }
    cli_failure_printed();
    puts(out->data ? out->data : "");
    fa__buf_free(out);
}

const char *cli_bytes(uint64_t bytes, char out[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    int unit = 0;

    while (value >= 1024 && unit < 5) {
        value /= 1024;
        unit++;
    }
    snprintf(out, 32, "%.*f %s", unit ? 1 : 0, value, units[unit]);
    return out;
}
