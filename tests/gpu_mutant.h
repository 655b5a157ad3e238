/* Kernels that are wrong on purpose: copies of an operation's instantiated template with one change
 * each, which the comparison of every other test must refuse, and the unchanged copy, which it must
 * accept. */
#ifndef GPU_MUTANT_H
#define GPU_MUTANT_H

#include <stdio.h>

#include "gpu_case.h"
#include "op_steps.h"

/* A change to one place of a source. */
typedef struct mutant {
    const char *fault;
    const char *find, *put; /* NULL: no change */
} mutant;

/* The text of a device header. */
static inline const char *mutant_header(const char *name)
{
    for (size_t i = 0; i < fa__device_header_count; i++)
        if (strcmp(fa__device_headers[i].name, name) == 0)
            return fa__device_headers[i].text;
    cr_assert_fail("no header %s", name);
    return "";
}

/* `text` with one occurrence of `find` replaced; frees `text`. */
static inline char *mutant_text(char *text, const mutant *m)
{
    if (!m->find)
        return text;
    const char *at = strstr(text, m->find);
    cr_assert(at && !strstr(at + 1, m->find), "%s: the source has '%s' %s", m->fault, m->find,
              at ? "twice" : "not at all");
    const size_t before = (size_t)(at - text), size = strlen(text) + strlen(m->put) + 1;
    char *result = malloc(size);
    cr_assert_not_null(result);
    snprintf(result, size, "%.*s%s%s", (int)before, text, m->put, at + strlen(m->find));
    free(text);
    return result;
}

/* `text` with a device header in front of all others, where its guard makes every #include of it empty;
 * frees `text`. */
static inline char *mutant_inline(char *text, const char *header)
{
    char *at = strstr(text, "#include \"fajit/");
    cr_assert_not_null(at, "nobody includes %s", header);
    const char *body = mutant_header(header);
    const size_t size = strlen(text) + strlen(body) + 1;
    char *result = malloc(size);
    cr_assert_not_null(result);
    snprintf(result, size, "%.*s%s%s", (int)(at - text), text, body, at);
    free(text);
    return result;
}

/* The text of the copy. `headers` are part of what changes. */
static inline char *mutant_source(const fa_spec *spec, const char *entry,
                                  const char *const *headers, size_t count, const mutant *m)
{
    char *source = prepared_source(*spec, entry, NULL);
    for (size_t i = 0; i < count; i++)
        source = mutant_inline(source, headers[i]);
    return mutant_text(source, m);
}

/* A function of it as a template of its own, as planned for an H200. */
static inline fa_kernel *mutant_function(fa_context *ctx, const fa_spec *spec, const char *entry,
                                         const char *source)
{
    fa_spec own = *spec;
    fa__plan plan;
    OK(prepare(&own, &plan));
    return compile(ctx, &(fa_template_spec){.name = "mutant.cu",
                                            .source = source,
                                            .entry = entry,
                                            .smem_bytes = plan.smem_dynamic_bytes,
                                            .cooperative = plan.flags.cooperative});
}

/* Of one function, with headers in it. */
static inline fa_kernel *mutant_compile_with(fa_context *ctx, const fa_spec *spec,
                                             const char *entry, const char *const *headers,
                                             size_t count, const mutant *m)
{
    char *source = mutant_source(spec, entry, headers, count, m);
    fa_kernel *kernel = mutant_function(ctx, spec, entry, source);
    free(source);
    return kernel;
}

/* With one header, or NULL. */
static inline fa_kernel *mutant_compile(fa_context *ctx, const fa_spec *spec, const char *entry,
                                        const char *header, const mutant *m)
{
    return mutant_compile_with(ctx, spec, entry, &header, header != NULL, m);
}

/* The workspace of the operation, zero before the first launch. */
static inline void mutant_give_workspace(const fa__op *op, gpu_case *g)
{
    fa_spec spec = g->c.spec;
    fa__plan plan;
    size_t bytes = 0;
    OK(prepare(&spec, &plan));
    OK(op->workspace(&spec, &plan, H200, &g->c.args, &bytes));
    g->workspace = gpu_alloc(bytes + 1);
    gpu_fill(g->workspace, 0, bytes + 1);
    g->c.args.workspace = g->workspace;
    g->c.args.workspace_bytes = bytes;
}

/* The launches that the operation would make on a device of so many multiprocessors, with their
 * grids and parameters. They are in the room until the next ones are planned. */
static inline fa__launch mutant_plan(const fa__op *op, const gpu_case *g, int32_t multiprocessors)
{
    static fa__launch_room room;
    fa_spec spec = g->c.spec;
    fa__plan plan;
    fa__launch launch = {0};
    OK(prepare(&spec, &plan));
    cr_assert_eq(op->launch(&spec, &plan, multiprocessors, &g->c.args, &launch, &room), FA_OK, "%s",
                 fa_last_error());
    return launch;
}

/* Launches the copies of the functions, and downloads what they left. */
static inline void mutant_start(const fa__op *op, gpu_case *g, fa_kernel *const *functions,
                                size_t count, const fa__launch *launch)
{
    const char *why = NULL;
    for (; launch; launch = launch->then) {
        const fa_param param = {launch->params[0], op->param_sizes[0]};
        fa_args args = FA_ARGS_INIT(FA_OP_TEMPLATE);
        args.tmpl = (fa_template_args){
            .params = &param, .param_count = 1, .smem_bytes = launch->smem_bytes};
        memcpy(args.tmpl.grid, launch->grid, sizeof launch->grid);
        memcpy(args.tmpl.block, launch->block, sizeof launch->block);
        cr_assert_lt(launch->function, count, "there is no copy of that function");
        cr_assert_eq(fa_launch(functions[launch->function], &args, NULL), FA_OK, "%s",
                     fa_last_error());
    }
    cr_assert(gpu_synchronize(NULL, &why), "the kernel failed: %s", why);
    gpu_case_download(g);
}

/* What is refused in all tensors that came back: elements, and red zones. */
static inline size_t mutant_wrong(const gpu_case *g)
{
    size_t wrong = 0;
    for (size_t i = 0; i < g->c.tensor_count; i++) {
        oracle_verdict v;
        ptrdiff_t at = 0;
        wrong += gpu_case_wrong(g, i, &v) + gpu_case_zone_written(g, i, &at);
    }
    return wrong;
}

/* Uploads the case, launches the copies of its functions on it and counts what is wrong. Frees all
 * of them. */
static inline size_t mutant_run_functions(const fa__op *op, gpu_case *g,
                                          fa_kernel *const *functions, size_t count,
                                          int32_t multiprocessors)
{
    gpu_case_upload(g);
    const fa__launch launch = mutant_plan(op, g, multiprocessors);
    mutant_start(op, g, functions, count, &launch);
    const size_t wrong = mutant_wrong(g);
    gpu_case_free(g);
    for (size_t i = 0; i < count; i++)
        fa_kernel_release(functions[i]);
    return wrong;
}

/* Of an operation of one function. */
static inline size_t mutant_run(const fa__op *op, gpu_case *g, fa_kernel *kernel)
{
    return mutant_run_functions(op, g, &kernel, 1, 4);
}

#endif
