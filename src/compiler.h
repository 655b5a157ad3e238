/* NVRTC: the only file that calls libnvrtc. */
#ifndef FA_COMPILER_H
#define FA_COMPILER_H

#include "entry.h"
#include "op.h"

/* Finds out which NVRTC there is, once in the process, without loading it where its file tells.
 * FA_ERR_NVRTC_MISSING names what was tried and the remedy. */
fa_status fa__compiler_identify(void);
const char *fa__compiler_name(void); /* after identify: "nvrtc build ID", a line of every key */

/* Loads it, once in the process. */
fa_status fa__compiler_open(void);
int32_t fa__compiler_version(void);  /* 13000; 0 when not open */
const char *fa__compiler_path(void); /* "" when not open */
const char *fa__compiler_id(void);   /* tells builds of one version apart */

/* Compiles to a cubin; the entry is the caller's. FA_ERR_COMPILE carries the whole log. */
fa_status fa__compiler_compile(const fa__program *program, const fa__target *target,
                               fa__entry *entry);
/* Compiles to PTX, malloc'ed text. */
fa_status fa__compiler_ptx(const fa__program *program, const fa__target *target, char **ptx);

#endif
