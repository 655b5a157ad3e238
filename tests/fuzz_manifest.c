/* Fuzzer of the manifest reader: whatever is accepted must be written to a text that reads back to
 * the same text; whatever is refused must leave nothing behind.
 *
 * Built with -fsanitize=fuzzer it is libFuzzer's; with FAJIT_FUZZ_MAIN it replays the files named
 * on the command line. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void write_all(fa__buf *out, const fa__manifest *m)
{
    fa__manifest_begin(out);
    for (size_t i = 0; i < m->count; i++)
        if (fa__manifest_add(out, &m->specs[i], i == 0))
            abort();
    fa__manifest_end(out);
    if (out->failed)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fa__manifest m = {0}, back = {0};
    fa__buf first = {0}, second = {0};
    fa_status status = fa__manifest_parse((const char *)data, size, &m);

    if (status) {
        if (m.specs || m.count || m.memory || strncmp(fa_last_error(), "line ", 5) != 0)
            abort();
        return 0;
    }
    write_all(&first, &m);
    if (fa__manifest_parse(first.data, first.len, &back) || back.count != m.count)
        abort();
    write_all(&second, &back);
    if (first.len != second.len || memcmp(first.data, second.data, first.len) != 0)
        abort();
    fa__buf_free(&first);
    fa__buf_free(&second);
    fa__manifest_free(&m);
    fa__manifest_free(&back);
    return 0;
}

#ifdef FAJIT_FUZZ_MAIN
static int replay(const char *path)
{
    unsigned char block[65536];
    fa__buf bytes = {0};
    size_t got = 0;
    FILE *file = fopen(path, "rb");

    if (!file) {
        perror(path);
        return 1;
    }
    while ((got = fread(block, 1, sizeof block, file)) > 0)
        fa__buf_bytes(&bytes, block, got);
    int failed = ferror(file) != 0;
    fclose(file);
    if (failed || bytes.failed)
        fprintf(stderr, "%s: cannot be read\n", path);
    else
        LLVMFuzzerTestOneInput((const uint8_t *)bytes.data, bytes.len);
    fa__buf_free(&bytes);
    return failed;
}

int main(int argc, char **argv)
{
    int failed = 0;

    for (int i = 1; i < argc; i++)
        failed |= replay(argv[i]);
    return failed;
}
#endif
