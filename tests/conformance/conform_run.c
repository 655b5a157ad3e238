/* Runs a case on the device of a context. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"
#include "gpu.h"

const conform_case *conform_find(const char *name)
{
    for (size_t i = 0; i < conform_case_count; i++)
        if (strcmp(conform_cases[i].name, name) == 0)
            return &conform_cases[i];
    return NULL;
}

uint32_t conform_rows(const conform_case *c)
{
    return c->blocks * c->threads;
}

static uint32_t columns_of(const conform_case *c)
{
    uint32_t count = 0;
    while (count < CONFORM_MAX_COLUMNS && c->columns[count].name)
        count++;
    return count;
}

/* Words of a case that is made of columns; a column of doubles has two. */
uint32_t conform_words_out(const conform_case *c)
{
    uint32_t words = 0, count = columns_of(c);
    for (uint32_t i = 0; i < count; i++)
        words += c->columns[i].rule == CONFORM_F64 ? 2 : 1;
    return c->words_out > words ? c->words_out : words;
}

conform_column conform_column_of(const conform_case *c, uint32_t word)
{
    uint32_t at = 0, count = columns_of(c), i = 0;
    for (; i < count; i++) {
        at += c->columns[i].rule == CONFORM_F64 ? 2 : 1;
        if (word < at)
            return c->columns[i];
    }
    return c->columns[count - 1];
}

char *conform_source(const char *root, const conform_case *c)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/conformance/%s.cu", root, c->name);
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    char *text = calloc(1, 1 << 16);
    const size_t got = text ? fread(text, 1, (1 << 16) - 1, file) : 0;
    fclose(file);
    if (got == 0 || got == (1 << 16) - 1) {
        free(text);
        return NULL;
    }
    return text;
}

fa_status conform_compile(fa_context *ctx, const conform_case *c, const char *source,
                          fa_kernel **kernel)
{
    char name[80];
    snprintf(name, sizeof name, "%s.cu", c->name);
    const fa_constant constants[] = {
        {.name = "IN", .type = FA_CONSTANT_INT, .int_value = conform_words_in(c)},
        {.name = "OUT", .type = FA_CONSTANT_INT, .int_value = conform_words_out(c)}};
    fa_spec spec = FA_SPEC_INIT(FA_OP_TEMPLATE);
    spec.tmpl = (fa_template_spec){.name = name, .source = source, .entry = "k"};
    spec.tmpl.constants = constants;
    spec.tmpl.constant_count = sizeof constants / sizeof *constants;
    spec.tmpl.options = &c->option;
    spec.tmpl.option_count = c->option != NULL;
    return fa_compile(ctx, &spec, kernel);
}

fa_status conform_execute(fa_context *ctx, const conform_case *c, const char *source,
                          const uint32_t *in, uint32_t *out, const char **why)
{
    fa_kernel *kernel = NULL;
    const size_t bytes_in = (size_t)conform_rows(c) * conform_words_in(c) * sizeof *in,
                 bytes_out = (size_t)conform_rows(c) * conform_words_out(c) * sizeof *out;
    *why = "";
    fa_status status = conform_compile(ctx, c, source, &kernel);
    if (status) {
        *why = fa_last_error();
        return status;
    }
    void *from = gpu_alloc(bytes_in), *to = gpu_alloc(bytes_out);
    gpu_upload(from, in, bytes_in);
    gpu_fill(to, 0xa5, bytes_out);
    const fa_param params[] = {{&from, sizeof from}, {&to, sizeof to}};
    fa_args args = FA_ARGS_INIT(FA_OP_TEMPLATE);
    args.tmpl = (fa_template_args){
        .grid = {c->blocks}, .block = {c->threads}, .params = params, .param_count = 2};
    status = fa_launch(kernel, &args, NULL);
    if (status)
        *why = fa_last_error();
    else if (!gpu_synchronize(NULL, why))
        status = FA_ERR_CUDA;
    else
        gpu_download(out, to, bytes_out);
    gpu_free(from);
    gpu_free(to);
    fa_kernel_release(kernel);
    return status;
}
