#include "cache_fixture.h"

#include "entry.h"

TestSuite(entry, .timeout = 60);

static fa__entry small_entry(void)
{
    fa__entry entry;
    cr_assert_eq(fa__entry_make(&entry, "f", "ok",
                                "\x7f"
                                "ELF",
                                4),
                 FA_OK);
    entry.registers = 0x11;
    entry.spill_bytes = 0x2233;
    entry.smem_static_bytes = 0x44556677;
    entry.compile_ns = UINT64_C(0x8899aabbccddeeff);
    return entry;
}

static const char key_text[] = "key\n";
#define KEY_LEN (sizeof key_text - 1)

static fa__buf small_bytes(void)
{
    fa__entry entry = small_entry();
    fa__buf out = {0};
    fa__entry_encode(&entry, key_text, KEY_LEN, &out);
    fa__entry_free(&entry);
    return out;
}

/* Decodes a copy that ends exactly where its allocation does, so that a sanitizer sees one byte too
 * far. */
static const char *decode_exact(const void *bytes, size_t len, const char *key, size_t key_len,
                                fa__entry *entry)
{
    unsigned char *copy = malloc(len ? len : 1);
    if (len)
        memcpy(copy, bytes, len);
    const char *problem = fa__entry_decode(copy, len, key, key_len, entry);
    free(copy);
    return problem;
}

/* Any problem must leave the entry empty. */
static void expect_refused(const void *bytes, size_t len, const char *what, size_t where)
{
    fa__entry entry;
    memset(&entry, 0xff, sizeof entry);
    const char *problem = decode_exact(bytes, len, key_text, KEY_LEN, &entry);
    cr_assert_not_null(problem, "%s at %zu was accepted", what, where);
    cr_assert(entry.memory == NULL && entry.cubin == NULL && entry.cubin_bytes == 0 &&
                  entry.function == NULL && entry.log == NULL,
              "%s at %zu left something in the entry", what, where);
}

Test(entry, golden_bytes_of_version_1)
{
    static const unsigned char golden[] = {
        'F',  'A',  'J',  'I',  'T',  'E',  'N',  'T',  /* magic */
        1,    0,    0,    0,                            /* version */
        0x11, 0,    0,    0,                            /* registers */
        0x33, 0x22, 0,    0,                            /* spill bytes */
        0x77, 0x66, 0x55, 0x44,                         /* static shared memory */
        0xff, 0xee, 0xdd, 0xcc, 0xbb, 0xaa, 0x99, 0x88, /* compile time */
        4,    0,    0,    0,    0,    0,    0,    0,    /* lengths */
        1,    0,    0,    0,    0,    0,    0,    0,    /**/
        2,    0,    0,    0,    0,    0,    0,    0,    /**/
        4,    0,    0,    0,    0,    0,    0,    0,    /**/
        'k',  'e',  'y',  '\n', 'f',  'o',  'k',  0x7f, 'E',  'L',
        'F',  0x91, 0xae, 0x0b, 0x6d, 0xa6, 0xfb, 0xab, 0x2a, /* XXH3-128 */
        0x43, 0x48, 0x45, 0x78, 0x30, 0xd0, 0xe8, 0xa7,
    };
    fa__buf out = small_bytes();
    cr_assert_eq(out.len, sizeof golden);
    for (size_t i = 0; i < sizeof golden; i++)
        cr_assert_eq((unsigned char)out.data[i], golden[i], "byte %zu: %02x, expected %02x", i,
                     (unsigned char)out.data[i], golden[i]);
    fa__buf_free(&out);
}

Test(entry, decode_gives_back_what_was_encoded)
{
    static const size_t sizes[] = {0, 1, 15, 16, 17, 4095, 100000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        fa__entry entry = entry_number((unsigned)i, sizes[i]), found;
        fa__buf out = {0};
        fa__buf_text(&out, "before");
        fa__entry_encode(&entry, key_text, KEY_LEN, &out);
        const char *problem = decode_exact(out.data + 6, out.len - 6, key_text, KEY_LEN, &found);
        cr_assert_null(problem, "%zu bytes: %s", sizes[i], problem);
        cr_assert(entry_equal(&entry, &found), "%zu bytes differ", sizes[i]);
        fa__entry_free(&found);
        fa__entry_free(&entry);
        fa__buf_free(&out);
    }
}

Test(entry, F23_names_and_logs_of_any_length)
{
    char *function = malloc(4097), *log = malloc(1 << 20);
    memset(function, 'n', 4096);
    memset(log, 'l', (1 << 20) - 1);
    function[4096] = log[(1 << 20) - 1] = '\0';
    fa__entry entry, found;
    fa__buf out = {0};
    cr_assert_eq(fa__entry_make(&entry, function, log, "c", 1), FA_OK);
    fa__entry_encode(&entry, function, 4096, &out);
    cr_assert_null(decode_exact(out.data, out.len, function, 4096, &found));
    cr_assert_str_eq(found.function, function);
    cr_assert_str_eq(found.log, log);
    fa__entry_free(&found);
    fa__entry_free(&entry);
    fa__buf_free(&out);
    free(function);
    free(log);
}

Test(entry, F05_every_truncation_is_refused)
{
    fa__buf out = small_bytes();
    for (size_t len = 0; len < out.len; len++)
        expect_refused(out.data, len, "truncation", len);
    fa__buf_free(&out);
}

Test(entry, F05_bytes_behind_the_end_are_refused)
{
    fa__buf out = small_bytes();
    for (int i = 0; i < 40; i++) {
        fa__buf_bytes(&out, "", 1);
        expect_refused(out.data, out.len, "longer entry", out.len);
    }
    fa__buf_free(&out);
}

Test(entry, F05_every_changed_byte_is_refused)
{
    fa__buf out = small_bytes();
    for (size_t i = 0; i < out.len; i++) {
        const char kept = out.data[i];
        for (int change = 1; change < 256; change++) {
            out.data[i] = (char)(kept ^ change);
            expect_refused(out.data, out.len, "changed byte", i);
        }
        out.data[i] = kept;
    }
    fa__buf_free(&out);
}

static void seal(fa__buf *out)
{
    XXH128_canonical_t sum;
    XXH128_canonicalFromHash(&sum, XXH3_128bits(out->data, out->len - 16));
    memcpy(out->data + out->len - 16, sum.digest, 16);
}

/* With a checksum that is right, so that the lengths alone have to be caught. */
Test(entry, F05_lengths_that_overflow_are_refused)
{
    static const uint64_t lengths[] = {0,
                                       3,
                                       5,
                                       87,
                                       UINT32_MAX,
                                       INT64_MAX,
                                       UINT64_MAX,
                                       UINT64_MAX - 63,
                                       UINT64_MAX - 79,
                                       UINT64_C(1) << 63};
    for (int field = 0; field < 4; field++) {
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            fa__buf out = small_bytes();
            for (int b = 0; b < 8; b++)
                out.data[32 + 8 * field + b] = (char)(lengths[i] >> 8 * b);
            seal(&out);
            expect_refused(out.data, out.len, "length", i);
            fa__buf_free(&out);
        }
    }
}

/* Two lengths that cancel each other out when they are added without care. */
Test(entry, F05_lengths_that_wrap_around_are_refused)
{
    static const struct {
        uint64_t function, log;
    } cases[] = {{UINT64_MAX, 4},
                 {UINT64_MAX - 66, 70},
                 {UINT64_C(0x8000000000000001), UINT64_C(0x8000000000000002)}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fa__buf out = small_bytes();
        fa__entry entry;
        for (int b = 0; b < 8; b++) {
            out.data[40 + b] = (char)(cases[i].function >> 8 * b);
            out.data[48 + b] = (char)(cases[i].log >> 8 * b);
        }
        seal(&out);
        const char *problem = decode_exact(out.data, out.len, key_text, KEY_LEN, &entry);
        cr_assert_not_null(problem, "case %zu", i);
        cr_assert_str_eq(problem, "it is shorter than its header says", "case %zu: %s", i, problem);
        fa__buf_free(&out);
    }
}

Test(entry, another_format_version_is_named)
{
    fa__buf out = small_bytes();
    fa__entry entry;
    out.data[8] = 2;
    seal(&out);
    const char *problem = decode_exact(out.data, out.len, key_text, KEY_LEN, &entry);
    cr_assert_str_eq(problem, "it has another format version");
    fa__buf_free(&out);
}

Test(entry, F31_a_foreign_key_text_is_refused)
{
    static const char *const foreign[] = {"kez\n", "key", "key\n\n", "", "xkey\n"};
    fa__buf out = small_bytes();
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        fa__entry entry;
        const char *problem =
            decode_exact(out.data, out.len, foreign[i], strlen(foreign[i]), &entry);
        cr_assert_not_null(problem, "accepted for key \"%s\"", foreign[i]);
        cr_assert_str_eq(problem, "it belongs to another key");
    }
    fa__entry any;
    cr_assert_null(decode_exact(out.data, out.len, NULL, 0, &any));
    fa__entry_free(&any);
    fa__buf_free(&out);
}

Test(entry, a_text_with_a_nul_is_refused)
{
    for (size_t at = 68; at < 71; at++) {
        fa__buf out = small_bytes();
        out.data[at] = '\0';
        seal(&out);
        expect_refused(out.data, out.len, "NUL", at);
        fa__buf_free(&out);
    }
}

Test(entry, key_text_is_found_in_a_prefix)
{
    fa__buf out = small_bytes();
    const char *text = NULL;
    size_t len = 0;
    cr_assert(fa__entry_key_text(out.data, 64 + KEY_LEN, &text, &len));
    cr_assert_eq(len, KEY_LEN);
    cr_assert_eq(memcmp(text, key_text, len), 0);
    cr_assert_not(fa__entry_key_text(out.data, 64 + KEY_LEN - 1, &text, &len));
    cr_assert_not(fa__entry_key_text(out.data, 0, &text, &len));
    cr_assert_not(fa__entry_key_text(NULL, 0, &text, &len));
    fa__buf_free(&out);
}

Test(entry, freeing_is_repeatable)
{
    fa__entry entry = small_entry();
    fa__entry_free(&entry);
    fa__entry_free(&entry);
    fa__entry_free(NULL);
    cr_assert_null(entry.memory);
}
