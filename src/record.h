/* The specs that a context was asked for, each once, in the order of their first requests. */
#ifndef FA_RECORD_H
#define FA_RECORD_H

#include "op.h"

typedef struct fa__record fa__record;

fa__record *fa__record_create(void);         /* NULL: out of memory */
void fa__record_destroy(fa__record *record); /* NULL is ignored */

/* `bytes`: the packed spec. Lack of memory loses the entry and makes fa__record_write fail. */
void fa__record_add(fa__record *record, const fa__op *op, const fa_spec *spec, const void *bytes,
                    size_t len);

/* The whole manifest as text. */
fa_status fa__record_write(fa__record *record, fa__buf *out);

#endif
