/* The steps of an operation without a GPU, for its unit tests: spec, plan, source, launch. */
#ifndef OP_STEPS_H
#define OP_STEPS_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"
#include "op.h"

static const fa__target target = {"sm_90a", 90, 232448};
#define H200 132 /* multiprocessors */

/* Checks the spec, fills its defaults and plans it. */
static inline fa_status prepare_for(fa_spec *spec, fa__plan *plan, const fa__target *on)
{
    const fa__op *op = fa__op_find(spec->op);
    *plan = (fa__plan){0};
    fa_status status = fa__spec_check_table(op, spec);
    if (!status)
        status = op->validate(spec, on);
    return status ? status : op->plan(spec, on, plan);
}

static inline fa_status prepare(fa_spec *spec, fa__plan *plan)
{
    return prepare_for(spec, plan, &target);
}

static inline bool is_included(const fa__program *program, const char *header)
{
    char line[80];
    snprintf(line, sizeof line, "\n#include \"%s\"", header);
    bool found = strstr(program->source.data, line) != NULL;
    for (size_t i = 0; i < program->header_count && !found; i++)
        found = strstr(program->headers[i].text, line) != NULL;
    return found;
}

/* The text that NVRTC would get, to be freed. Of headers it gets what is included and no more: that
 * nothing is missing, compiling shows. */
static inline char *prepared_source(fa_spec spec, const char *entry, char label[160])
{
    fa__plan plan;
    fa__program program = {0};
    OK(prepare(&spec, &plan));
    OK(fa__program_make(fa__op_find(spec.op), &spec, &plan, &program));
    char *text = strdup(program.source.data ? program.source.data : "");
    if (label)
        snprintf(label, 160, "%s", program.label.data);
    cr_expect(strcmp(program.entry, entry) == 0 ||
                  (program.further_entries[0] && strcmp(program.further_entries[0], entry) == 0),
              "%s is not of %s", entry, program.entry);
    for (size_t i = 0; i < program.header_count; i++)
        cr_expect(is_included(&program, program.headers[i].name), "nothing includes %s",
                  program.headers[i].name);
    fa__program_free(&program);
    return text;
}

typedef struct launched {
    fa_spec spec;
    fa__plan plan;
    fa_args args;
    fa__launch launch;
    fa__launch_room room;
} launched;

/* Device memory that nobody looks at. */
#define AT(address) ((void *)(uintptr_t)(address))

static inline fa_status launched_run(launched *x)
{
    return fa__op_find(x->spec.op)
        ->launch(&x->spec, &x->plan, H200, &x->args, &x->launch, &x->room);
}

/* The kernel's one parameter. */
static inline const void *launched_block(const launched *x)
{
    cr_assert_eq(x->launch.params, (void **)x->room.params);
    return x->launch.params[0];
}

#endif
