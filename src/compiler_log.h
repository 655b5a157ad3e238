/* What the compiler's log tells about a kernel. Pure. */
#ifndef FA_COMPILER_LOG_H
#define FA_COMPILER_LOG_H

#include "entry.h"

/* Reads what `ptxas -v` reported for functions, named one a line: the most registers, spills and
 * static shared memory of any. false when the log does not say. */
bool fa__compiler_read_log(const char *log, const char *functions, fa__entry *entry);

#endif
