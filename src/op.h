/* What an operation is to the library: one table of functions in one file of src/ops/. The steps of
 * the pipeline call these in order; everything here is pure (no CUDA, no files, no globals). */
#ifndef FA_OP_H
#define FA_OP_H

#include "buf.h"
#include "fajit.h"

#define FA__MAX_FUNCTIONS 5 /* of a kernel */

/* What is compiled for: known without a device. */
typedef struct fa__target {
    char arch[16];       /* "sm_90a" */
    int cc;              /* 90 */
    uint32_t smem_optin; /* bytes of shared memory a block can have, static plus dynamic */
} fa__target;

/* Properties of a launch that are fixed with the kernel. */
typedef struct fa__launch_flags {
    uint32_t cluster[3]; /* all 0: none */
    bool cooperative, programmatic;
} fa__launch_flags;

/* How the work is laid out: chosen from spec and target alone. */
typedef struct fa__plan {
    uint32_t block_threads;
    uint32_t smem_dynamic_bytes; /* the largest of any launch */
    fa__launch_flags flags;
    int32_t value[64]; /* the operation's own; its file names the slots */
    char text[192];    /* for fa_kernel_info_t.plan */
} fa__plan;

typedef struct fa__header_ref {
    const char *name, *text;
} fa__header_ref;

/* A template of the library. */
typedef struct fa__embedded {
    const char *file; /* "rope.cu" */
    const char *text;
    const fa__header_ref *headers; /* those that it includes, and those that they include */
    size_t header_count;
} fa__embedded;

/* Everything NVRTC is given. Strings in the bufs are owned; headers and `file` are borrowed from
 * the spec or static. */
typedef struct fa__program {
    const char *file;  /* name for diagnostics, "rope.cu" */
    fa__buf source;    /* prologue + template */
    fa__buf label;     /* fa_kernel_info_t.name, "rope f32 half D64" */
    const char *entry; /* name expression */
    /* Of further functions that the operation launches, NULL behind the last. All of them take the
     * same parameters. */
    const char *further_entries[FA__MAX_FUNCTIONS];
    fa__header_ref *headers;
    size_t header_count;
    const char **options; /* besides those the library adds itself */
    size_t option_count;
} fa__program;

void fa__program_free(fa__program *program);

/* What the driver is given for one launch. */
typedef struct fa__launch {
    uint32_t grid[3], block[3], smem_bytes;
    uint32_t function; /* which of the program's: 0 is its entry */
    bool empty;        /* nothing to do: succeed without a launch */
    void **params;
    /* Parameters whose number and sizes the caller chose: checked against the compiled kernel. NULL
     * when the operation fixes them (param_sizes). */
    const fa_param *typed_params;
    size_t typed_param_count;
    const struct fa__launch *then; /* to follow on the same stream; NULL: nothing */
} fa__launch;

/* Room for an operation to build its parameters in, on the stack of fa_launch. */
typedef struct fa__launch_room {
    void *params[FA_MAX_PARAMS];
    _Alignas(16) unsigned char block[2048];
    fa__launch then[2];
} fa__launch_room;

typedef struct fa__op {
    fa_op id;
    const char *name, *text; /* fa_op_info_t */
    const fa_param_info *params;
    size_t param_count;

    /* Rules between fields; the table's own ranges are checked already. Fills defaults in `spec`.
     */
    fa_status (*validate)(fa_spec *spec, const fa__target *target);
    fa_status (*plan)(const fa_spec *spec, const fa__target *target, fa__plan *plan);
    /* Writes program->source, label, entry, file, headers, options. */
    fa_status (*instantiate)(const fa_spec *spec, const fa__plan *plan, fa__program *program);
    /* Whether pack can be called: the spec's pointers and counts agree. Anything else is reported
     * by validate. */
    bool (*packable)(const fa_spec *spec); /* NULL: always */
    /* Appends the spec's content as bytes: equal specs give equal bytes, different ones different.
     * Must be quick (it is the memory cache's key) and works on specs as the caller gave them. */
    void (*pack)(const fa_spec *spec, fa__buf *out); /* NULL: what the table lists */
    /* Deep copy of what the spec points to, into one allocation (*memory, may stay NULL); `spec`
     * then points there. */
    fa_status (*copy)(fa_spec *spec, void **memory);

    /* Checks args and fills `launch`; its params may point into `room` and into args. */
    fa_status (*launch)(const fa_spec *spec, const fa__plan *plan, int32_t multiprocessors,
                        const fa_args *args, fa__launch *launch, fa__launch_room *room);
    /* Bytes of workspace that `launch` needs with these args. NULL: none ever. */
    fa_status (*workspace)(const fa_spec *spec, const fa__plan *plan, int32_t multiprocessors,
                           const fa_args *args, size_t *bytes);
    /* sizes[i] of the kernel's parameters when the host fixes them; count 0: not fixed. */
    const size_t *param_sizes;
    size_t param_size_count;
} fa__op;

extern const fa__op fa__op_template;        /* src/ops/template.c */
extern const fa__op fa__op_rope;            /* src/ops/rope.c */
extern const fa__op fa__op_kv_update;       /* src/ops/kv_update.c */
extern const fa__op fa__op_lowrank_kv;      /* src/ops/lowrank_kv.c */
extern const fa__op fa__op_attention;       /* src/ops/attention.c */
extern const fa__op fa__op_linear;          /* src/ops/linear.c */
extern const fa__op fa__op_cross_attention; /* src/ops/cross_attention.c */

/* op->instantiate, and whether nothing was lost for lack of memory. Free it also on failure. */
fa_status fa__program_make(const fa__op *op, const fa_spec *spec, const fa__plan *plan,
                           fa__program *program);

/* For instantiate, after label and constants: ends the prologue, and adds an embedded template. Headers
 * that it does not reach are not passed: then they are not part of the key either. */
fa_status fa__program_embedded(fa__program *program, const fa__embedded *template,
                               const char *entry);

const fa__op *fa__op_find(fa_op id);            /* NULL: none */
const fa__op *fa__op_by_name(const char *name); /* NULL: none */

/* A parameter by its name or alias; NULL: none. */
const fa_param_info *fa__op_param(const fa__op *op, const char *key);

/* The steps that walk the parameter table, for operations whose spec holds only plain values. */
fa_status fa__spec_check_table(const fa__op *op, const fa_spec *spec);
void fa__spec_pack_table(const fa__op *op, const fa_spec *spec, fa__buf *out);

/* --- writing a prologue: typed constants in front of a template (prologue.c) --- */
void fa__prologue_begin(fa__buf *source); /* defines FAJIT_INSTANCE */
/* int, or long long where the value needs it. */
void fa__prologue_int(fa__buf *source, const char *name, int64_t value);
void fa__prologue_bool(fa__buf *source, const char *name, bool value);
void fa__prologue_real(fa__buf *source, const char *name, double value);
/* A type alias. */
void fa__prologue_dtype(fa__buf *source, const char *name, fa_dtype dtype);
/* "{1, 2, 3}" in a declaration: a struct of `bytes` that is made of int32_t alone. */
void fa__prologue_fields(fa__buf *source, const void *fields, size_t bytes);
void fa__prologue_end(fa__buf *source, const char *file); /* #line 1 "file" */

/* --- embedded at build time (generated) --- */
extern const fa__embedded fa__template_rope;            /* kernel_templates/rope.cu */
extern const fa__embedded fa__template_kv_update;       /* kernel_templates/kv_update.cu */
extern const fa__embedded fa__template_lowrank_kv;      /* kernel_templates/lowrank_kv.cu */
extern const fa__embedded fa__template_attention;       /* kernel_templates/attention.cu */
extern const fa__embedded fa__template_linear;          /* kernel_templates/linear.cu */
extern const fa__embedded fa__template_cross_attention; /* kernel_templates/cross_attention.cu */
extern const fa__header_ref fa__device_headers[]; /* kernel_templates/X.cuh as "fajit/X.cuh" */
extern const size_t fa__device_header_count;

extern const char *const fa__dtype_names[]; /* in the order of fa_dtype; NULL at the end */
const char *fa__dtype_name(fa_dtype dtype); /* "bf16" */
size_t fa__dtype_bytes(fa_dtype dtype);

#endif
