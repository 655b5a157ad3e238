/* The device, emulated or real, gives what was recorded: one test for each case of
 * tests/conformance. */
#include <dirent.h>
#include <stdio.h>

#include "conformance.h"
#include "gpu_fixture.h"

static const char *root(void)
{
    const char *path = getenv("FAJIT_TEST_ROOT");
    cr_assert_not_null(path, "FAJIT_TEST_ROOT has to be the checkout");
    return path;
}

static int32_t sm_of_device(void)
{
    fa_device_info_t device = {.size = sizeof device};
    OK(fa_device_info(0, &device));
    return device.compute_major * 10 + device.compute_minor;
}

/* Checks the record itself; ends the test when there is nothing to compare with. */
static void read_record(const conform_case *c, const char *source, const uint32_t *in,
                        conform_record *r)
{
    char path[4096];
    conform_record now = {.words = 0};
    snprintf(path, sizeof path, "%s/tests/conformance/recorded/%s.bin", root(), c->name);
    const int found = conform_record_read(path, c, r);
    if (found == 0)
        cr_skip_test("not recorded yet: run scripts/record-conformance on a GPU host");
    cr_assert_eq(found, 1, "%s is damaged: record again, see scripts/record-conformance", path);
    cr_assert_null(strstr(r->device, "emulated"), "%s was recorded on the emulator, not on a GPU",
                   path);
    conform_record_identify(c, source, in, &now);
    cr_assert(r->text == now.text && r->inputs == now.inputs && r->words == now.words,
              "%s is stale, because %s changed: record again, see scripts/record-conformance", path,
              r->text != now.text ? "the kernel" : "its inputs");
}

static void check(const char *name)
{
    enum { MESSAGE = 16384 };
    fixture f;
    static char message[MESSAGE];
    conform_record r;
    const char *why = "";
    const conform_case *c = conform_find(name);
    cr_assert_not_null(c, "no case %s", name);
    char *source = conform_source(root(), c);
    cr_assert_not_null(source, "no kernel %s.cu", name);
    const size_t rows = conform_rows(c);
    uint32_t *in = calloc(rows * conform_words_in(c), sizeof *in),
             *out = calloc(rows * conform_words_out(c), sizeof *out);
    cr_assert(in && out);
    conform_inputs(c, in);
    read_record(c, source, in, &r);
    fa_context *ctx = open_device(&f, 0);
    if (sm_of_device() < c->least_sm)
        cr_skip_test("needs sm_%d", (int)c->least_sm);
    if (c->same_sm && r.sm != sm_of_device())
        cr_skip_test("recorded on %s, and architectures differ in this", r.device);
    cr_assert_eq(conform_execute(ctx, c, source, in, out, &why), FA_OK, "%s", why);
    cr_expect(conform_compare(c, in, out, &r, message, MESSAGE), "not as recorded on %s:%s",
              r.device, message);
    conform_record_free(&r);
    free(source);
    free(in);
    free(out);
    close_device(&f, ctx);
}

#define CASES(X)                                                                                   \
    X(approximate)                                                                                 \
    X(arithmetic)                                                                                  \
    X(arithmetic_double)                                                                           \
    X(atomics)                                                                                     \
    X(barriers)                                                                                    \
    X(clock)                                                                                       \
    X(copies)                                                                                      \
    X(elect)                                                                                       \
    X(fast_math)                                                                                   \
    X(float_to_integer)                                                                            \
    X(flush_to_zero)                                                                               \
    X(fp8_codes)                                                                                   \
    X(fp8_rounding)                                                                                \
    X(half_codes)                                                                                  \
    X(half_rounding)                                                                               \
    X(integer)                                                                                     \
    X(integer_to_float)                                                                            \
    X(matrix_layout)                                                                               \
    X(matrix_moves)                                                                                \
    X(mma_bf16)                                                                                    \
    X(mma_bf16_k8)                                                                                 \
    X(mma_bf16_tiny)                                                                               \
    X(mma_e4m3)                                                                                    \
    X(mma_e4m3_e5m2)                                                                               \
    X(mma_e5m2)                                                                                    \
    X(mma_e5m2_e4m3)                                                                               \
    X(mma_f16)                                                                                     \
    X(mma_f16_k8)                                                                                  \
    X(mma_f16_tiny)                                                                                \
    X(mma_fp8_tiny)                                                                                \
    X(mma_half_sums)                                                                               \
    X(mma_half_sums_k8)                                                                            \
    X(mma_half_tiny)                                                                               \
    X(mma_tf32)                                                                                    \
    X(mma_tf32_k4)                                                                                 \
    X(precise)                                                                                     \
    X(rounding)                                                                                    \
    X(uncontracted)                                                                                \
    X(warp)

#define CASE(name)                                                                                 \
    Test(conformance, name)                                                                        \
    {                                                                                              \
        check(#name);                                                                              \
    }
CASES(CASE)

Test(conformance_table, every_case_has_a_test)
{
#define NAME(name) #name,
    static const char *const names[] = {CASES(NAME)};
    const size_t count = sizeof names / sizeof *names;
    cr_expect_eq(count, conform_case_count);
    for (size_t i = 0; i < conform_case_count; i++) {
        size_t found = 0;
        for (size_t k = 0; k < count; k++)
            found += strcmp(names[k], conform_cases[i].name) == 0;
        cr_expect_eq(found, 1u, "%s has %zu tests", conform_cases[i].name, found);
        cr_expect_null(conform_cases[i].columns[CONFORM_MAX_COLUMNS - 1].name,
                       "%s has more columns than there is room for", conform_cases[i].name);
    }
}

Test(conformance_table, every_record_has_a_case)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/conformance/recorded", root());
    DIR *folder = opendir(path);
    cr_assert_not_null(folder, "no folder %s", path);
    for (struct dirent *e; (e = readdir(folder)) != NULL;) {
        char *end = strrchr(e->d_name, '.');
        if (!end || strcmp(end, ".bin") != 0)
            continue;
        *end = '\0';
        cr_expect_not_null(conform_find(e->d_name), "the record %s.bin is of no case", e->d_name);
    }
    closedir(folder);
}
