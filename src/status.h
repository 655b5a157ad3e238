/* The calling thread's error message. Depends on nothing. */
#ifndef FA_STATUS_H
#define FA_STATUS_H

#include "fajit.h"

/* Sets fa_last_error() from a printf format (no floating-point conversions: they follow the locale)
 * and returns `status`, so that a refusal reads `return fa__fail(FA_ERR_SIZE, "...", ...)`. */
fa_status fa__fail(fa_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* Same with a finished text of any length (a compiler log). */
fa_status fa__fail_text(fa_status status, const char *text);

fa_status fa__fail_memory(size_t bytes); /* FA_ERR_OUT_OF_MEMORY */

/* Checks a struct that the caller filled: its size is set, covers what this library knows, and what
 * a newer header may have added behind that is zero. `what` is e.g. "fa_spec". */
fa_status fa__check_struct(const char *what, const void *filled, size_t size, size_t known);
/* Same for a struct that the caller wants filled: only the size matters. */
fa_status fa__check_out_struct(const char *what, size_t size, size_t known);

#endif
