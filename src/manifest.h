/* Manifests: specs as JSON, in both directions, by the parameter tables. Pure. */
#ifndef FA_MANIFEST_H
#define FA_MANIFEST_H

#include "buf.h"
#include "fajit.h"

typedef struct fa__manifest {
    fa_spec *specs;
    size_t count;
    void *memory; /* opaque: what template specs point to */
} fa__manifest;

/* FA_ERR_MANIFEST with "line L column C: ..." and nothing kept on any problem: unknown keys, wrong
 * types, values out of range, unknown operations, another manifest version. */
fa_status fa__manifest_parse(const char *text, size_t len, fa__manifest *out);
void fa__manifest_free(fa__manifest *manifest);

/* Writes a manifest: begin, one add per spec, end. Members at their default are left out. A
 * template's source, headers and constants are written inline. A spec that JSON cannot hold (a text
 * that is not UTF-8, an enum or number outside the tables) is refused with FA_ERR_VALUE and leaves
 * `out` as it was. */
void fa__manifest_begin(fa__buf *out);
fa_status fa__manifest_add(fa__buf *out, const fa_spec *spec, bool first);
void fa__manifest_end(fa__buf *out);

#endif
