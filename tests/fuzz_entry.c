/* Fuzzes the reader of cache entries. Built for libFuzzer, or with FAJIT_FUZZ_MAIN as a program
 * that replays the files named on its command line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "entry.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* What is accepted must be the one encoding of what it is read as, and its key text that of
 * fa__entry_key_text. */
static void check(const unsigned char *bytes, size_t len)
{
    fa__entry entry;
    fa__buf again = {0};
    const char *text = NULL;
    size_t text_len = 0;
    const bool located = fa__entry_key_text(bytes, len, &text, &text_len);
    if (located && text_len > 0) /* within the bytes: a sanitizer sees it if not */
        REQUIRE(memchr(text, text[text_len - 1], text_len) != NULL);
    if (fa__entry_decode(bytes, len, NULL, 0, &entry) != NULL) {
        REQUIRE(entry.memory == NULL && entry.cubin == NULL);
        return;
    }
    REQUIRE(located);
    fa__entry_encode(&entry, text, text_len, &again);
    REQUIRE(!again.failed && again.len == len && memcmp(again.data, bytes, len) == 0);
    fa__entry foreign;
    REQUIRE(fa__entry_decode(bytes, len, "another key", 11, &foreign) != NULL ||
            (text_len == 11 && memcmp(text, "another key", 11) == 0));
    fa__entry_free(&foreign);
    fa__buf_free(&again);
    fa__entry_free(&entry);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    check(data, size);
    if (size < 80)
        return 0;
    /* The same with magic, version and checksum put right, which no fuzzer finds by itself. */
    unsigned char *sealed = malloc(size);
    REQUIRE(sealed != NULL);
    XXH128_canonical_t sum;
    memcpy(sealed, data, size);
    memcpy(sealed, "FAJITENT\x01\0\0\0", 12);
    XXH128_canonicalFromHash(&sum, XXH3_128bits(sealed, size - 16));
    memcpy(sealed + size - 16, sum.digest, 16);
    check(sealed, size);
    free(sealed);
    return 0;
}

#ifdef FAJIT_FUZZ_MAIN
int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (!file || fseek(file, 0, SEEK_END) != 0) {
            perror(argv[i]);
            return 1;
        }
        const long size = ftell(file);
        unsigned char *bytes = malloc(size > 0 ? (size_t)size : 1);
        rewind(file);
        if (size < 0 || !bytes || fread(bytes, 1, (size_t)size, file) != (size_t)size) {
            fprintf(stderr, "%s: cannot be read\n", argv[i]);
            return 1;
        }
        fclose(file);
        LLVMFuzzerTestOneInput(bytes, (size_t)size);
        free(bytes);
    }
    printf("%d inputs replayed\n", argc - 1);
    return 0;
}
#endif
