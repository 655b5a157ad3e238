/* The members of a template kernel in a manifest, which no parameter table describes. */
#ifndef FA_MANIFEST_TEMPLATE_H
#define FA_MANIFEST_TEMPLATE_H

#include "buf.h"
#include "fajit.h"
#include "json.h"

/* What the specs of one manifest point to. */
typedef struct fa__manifest_pool fa__manifest_pool;
void *fa__manifest_take(fa__manifest_pool *pool, size_t bytes); /* zeroed; NULL: error is set */

/* FA_ERR_MANIFEST, "line L column C: ..." at a value. */
fa_status fa__manifest_refuse(const fa__json *at, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The same at its key. */
fa_status fa__manifest_refuse_key(const fa__json *member, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Reads every member of `kernel` but "op". Texts stay in the JSON document. */
fa_status fa__manifest_read_template(const fa__json *kernel, fa_template_spec *spec,
                                     fa__manifest_pool *pool);
/* Writes `, "key": value` for every member. */
fa_status fa__manifest_write_template(fa__buf *out, const fa_template_spec *spec);

#endif
