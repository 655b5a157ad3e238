/* Opening a shared library that may not be there. */
#ifndef FA_DYNLIB_H
#define FA_DYNLIB_H

#include "buf.h"
#include "fajit.h"

typedef struct fa__dynlib {
    void *handle;    /* never closed: the libraries behind it do not support it */
    char path[4096]; /* of the file that was opened */
    fa__buf tried;   /* each candidate with the loader's reason, for the message when none opens */
} fa__dynlib;

/* Opens the file named by environment variable `variable`, and nothing else, when it is set; else
 * the first of `candidates` (NULL-terminated) that opens. false: none did, `tried` says why. */
bool fa__dynlib_open(fa__dynlib *lib, const char *variable, const char *const *candidates);
void *fa__dynlib_symbol(const fa__dynlib *lib, const char *name); /* NULL: absent */

/* What tells builds of one library apart: the build id that the linker wrote, in hexadecimal.
 * From the first bytes of its file: false when there is none in them. */
bool fa__dynlib_file_id(const unsigned char *head, size_t len, char *out, size_t size);
/* From the loaded library; without a build id a digest of its read-only code and data. `symbol` is
 * any function of the library. */
bool fa__dynlib_loaded_id(const void *symbol, char *out, size_t size);

#endif
