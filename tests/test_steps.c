/* The pure steps of the pipeline: status, buffers, architectures, constants, prologue, spec tables,
 * key. */
#include <criterion/criterion.h>
#include <float.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "arch.h"
#include "key.h"
#include "op.h"
#include "status.h"
#include "template_text.h"

/* --- status --- */

Test(status, every_code_has_its_name)
{
#define CHECK(name, value, text)                                                                   \
    cr_expect_eq((int)(name), value);                                                              \
    cr_expect_str_eq(fa_status_name(name), #name);                                                 \
    cr_expect_str_eq(fa_status_text(name), text);                                                  \
    cr_expect(strlen(text) > 3);
    FA_STATUS_LIST(CHECK)
#undef CHECK
    cr_expect_str_eq(fa_status_name((fa_status)9999), "FA_ERR_?");
    cr_expect_str_eq(fa_status_text((fa_status)9999), "");
}

Test(status, codes_are_unique)
{
    static const int values[] = {
#define VALUE(name, value, text) value,
        FA_STATUS_LIST(VALUE)
#undef VALUE
    };
    size_t n = sizeof values / sizeof values[0];
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            cr_expect_neq(values[i], values[j]);
}

Test(status, message_may_quote_the_previous_one)
{
    cr_expect_eq(fa__fail(FA_ERR_SIZE, "first %d", 1), FA_ERR_SIZE);
    fa__fail(FA_ERR_SIZE, "second after '%s'", fa_last_error());
    cr_expect_str_eq(fa_last_error(), "second after 'first 1'");
}

Test(status, F23_long_messages_are_kept_whole)
{
    char *text = malloc(100001);
    memset(text, 'x', 100000);
    text[100000] = '\0';
    fa__fail(FA_ERR_COMPILE, "%s|end", text);
    cr_expect_eq(strlen(fa_last_error()), 100004);
    fa__fail(FA_ERR_SIZE, "short");
    cr_expect_str_eq(fa_last_error(), "short");
    free(text);
}

/* --- buffers --- */

Test(buf, leaves_the_stack_when_it_grows)
{
    char room[8];
    fa__buf b = fa__buf_on(room, sizeof room);
    fa__buf_text(&b, "1234567");
    cr_expect_eq((void *)b.data, (void *)room);
    fa__buf_text(&b, "8");
    cr_expect_neq((void *)b.data, (void *)room);
    cr_expect_str_eq(b.data, "12345678");
    fa__buf_free(&b);
}

Test(buf, hexfloat_reads_back_exactly)
{
    static const double values[] = {0,
                                    1,
                                    -1,
                                    0.1,
                                    10000,
                                    1e300,
                                    -2.5,
                                    DBL_MIN,
                                    5e-324,
                                    DBL_MAX,
                                    1.0 / 3,
                                    1e-310,
                                    4503599627370497.0};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        fa__buf b = {0};
        fa__buf_hexfloat(&b, values[i]);
        double back = strtod(b.data, NULL);
        cr_expect(memcmp(&back, &values[i], sizeof back) == 0, "%s is not %a", b.data, values[i]);
        fa__buf_free(&b);
    }
}

Test(buf, little_endian)
{
    fa__buf b = {0};
    fa__buf_u32le(&b, 0x04030201);
    fa__buf_u64le(&b, UINT64_C(0x0c0b0a0908070605));
    for (int i = 0; i < 12; i++)
        cr_expect_eq(b.data[i], i + 1);
    fa__buf_free(&b);
}

/* --- architectures --- */

Test(arch, F45_default_has_the_feature_suffix_from_9_0)
{
    static const struct {
        int major, minor;
        const char *name;
    } cases[] = {{8, 0, "sm_80"},    {8, 6, "sm_86"},    {8, 9, "sm_89"},    {9, 0, "sm_90a"},
                 {10, 0, "sm_100a"}, {10, 3, "sm_103a"}, {12, 0, "sm_120a"}, {7, 5, "sm_75"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[16];
        fa__target target;
        fa__arch_name(cases[i].major, cases[i].minor, name);
        cr_expect_str_eq(name, cases[i].name);
        cr_expect_eq(fa__arch_parse(name, &target), FA_OK);
        cr_expect_eq(target.cc, cases[i].major * 10 + cases[i].minor);
    }
}

Test(arch, F41_malformed_names_are_refused)
{
    static const char *const bad[] = {"",        "sm_",          "90a",    "sm_9", "sm_90b",
                                      "sm_90aa", "sm_90 ",       "sm_090", "sm_",  "compute_90",
                                      "sm_1000", "sm_90a,sm_80", "sm_60",  "SM_90"};
    fa__target target;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_expect_eq(fa__arch_parse(bad[i], &target), FA_ERR_ARCH, "'%s'", bad[i]);
}

/* --- text that becomes source or options --- */

Test(template_text, constants_cannot_smuggle_text)
{
    static const char *const bad[] = {"",      "1a",       "a b", "a;b",  "a\nb", "a=1",
                                      "int",   "__x",      "_X",  "x__y", "fa_x", "FAJIT_INSTANCE",
                                      "fajit", "\xc3\xa4", "a.b", "for"};
    static const char *const good[] = {"N", "head_dim", "_n", "x1", "TILE_M", "f"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_expect(fa__template_bad_name(bad[i]), "'%s'", bad[i]);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        cr_expect_null(fa__template_bad_name(good[i]), "'%s'", good[i]);
    cr_expect(fa__template_bad_name(NULL));
}

Test(template_text, identifiers)
{
    static const char *const bad[] = {"", "::a", "a::", "a:b", "a::1", "a b", "a(", "a;", "a\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_expect(fa__template_bad_identifier(bad[i]), "'%s'", bad[i]);
    cr_expect_null(fa__template_bad_identifier("a::b_1::C"));
    cr_expect_null(fa__template_bad_identifier("plus"));
}

Test(template_text, F14_options_that_reach_outside_are_refused)
{
    static const char *const bad[] = {"-Ifoo",
                                      "--include-path=x",
                                      "-include=x",
                                      "-arch=sm_80",
                                      "--gpu-architecture=sm_80",
                                      "-pch",
                                      "--pch-dir=/tmp",
                                      "--create-pch=x",
                                      "--use-pch=x",
                                      "-dlto",
                                      "-rdc=true",
                                      "--time=x",
                                      "foo",
                                      "",
                                      "--ptxas-options=-o,x",
                                      "-Xptxas",
                                      "-Xptxas=--output-file=x",
                                      "-G\n",
                                      "--maxrregcount 32"};
    static const char *const good[] = {
        "-lineinfo",           "-G", "--use_fast_math", "-DX=1", "--maxrregcount=64",
        "--ptxas-options=-O3", "-w"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_expect(fa__template_bad_option(bad[i]), "'%s'", bad[i]);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        cr_expect_null(fa__template_bad_option(good[i]), "'%s'", good[i]);
}

Test(template_text, entries)
{
    cr_expect(fa__template_good_entry("scale"));
    cr_expect(fa__template_good_entry("ns::scale<float, 4>"));
    cr_expect_not(fa__template_good_entry(""));
    cr_expect_not(fa__template_good_entry("a\"b"));
    cr_expect_not(fa__template_good_entry("a;b"));
    cr_expect_not(fa__template_good_entry("a\nb"));
    cr_expect_not(fa__template_good_entry("<x>"));
}

/* --- prologue --- */

Test(prologue, declarations)
{
    fa__buf b = {0};
    fa__prologue_begin(&b);
    fa__prologue_int(&b, "A", -5);
    fa__prologue_int(&b, "B", INT64_C(1) << 40);
    fa__prologue_int(&b, "C", INT64_MIN);
    fa__prologue_bool(&b, "D", true);
    fa__prologue_real(&b, "E", 0.5);
    fa__prologue_dtype(&b, "F", FA_F32);
    fa__prologue_dtype(&b, "G", FA_BF16);
    fa__prologue_fields(&b, (int32_t[]){7, -8, 0}, 3 * sizeof(int32_t));
    fa__prologue_end(&b, "x \"y\"\\z.cu");
    cr_expect_str_eq(b.data,
                     "#define FAJIT_INSTANCE 1\n"
                     "inline constexpr int A = -5;\n"
                     "inline constexpr long long B = 1099511627776LL;\n"
                     "inline constexpr long long C = -9223372036854775807LL - 1;\n"
                     "inline constexpr bool D = true;\n"
                     "inline constexpr double E = 0x1p-1;\n"
                     "using F = float;\n"
                     "#include \"fajit/dtype.cuh\"\nusing G = fajit::bf16;\n"
                     "{7, -8, 0}"
                     "#line 1 \"x \\\"y\\\"\\\\z.cu\"\n");
    fa__buf_free(&b);
}

/* --- key --- */

static fa__key key_of(const char *source, const char *header, const char *option, const char *arch,
                      const char *compiler)
{
    fa__program program = {.file = "k.cu", .entry = "k"};
    fa__header_ref headers[] = {{"h.cuh", header}};
    const char *options[] = {option};
    fa__target target = {.cc = 90};
    fa__key key;
    strcpy(target.arch, arch);
    fa__buf_text(&program.source, source);
    fa__buf_text(&program.label, "k N=4");
    program.headers = headers;
    program.header_count = 1;
    program.options = options;
    program.option_count = option ? 1 : 0;
    cr_assert_eq(fa__key_make(&fa__op_template, &program, &target, compiler, &key), FA_OK);
    fa__buf_free(&program.source);
    fa__buf_free(&program.label);
    return key;
}

Test(key, F26_F29_F33_F46_everything_that_matters_changes_it)
{
    fa__key base = key_of("s", "h", "-G", "sm_90a", "nvrtc 13.0 build 1");
    fa__key other[] = {
        key_of("S", "h", "-G", "sm_90a", "nvrtc 13.0 build 1"),
        key_of("s", "H", "-G", "sm_90a", "nvrtc 13.0 build 1"),
        key_of("s", "h", "-g", "sm_90a", "nvrtc 13.0 build 1"),
        key_of("s", "h", NULL, "sm_90a", "nvrtc 13.0 build 1"),
        key_of("s", "h", "-G", "sm_90", "nvrtc 13.0 build 1"),
        key_of("s", "h", "-G", "sm_90a", "nvrtc 13.0 build 2"),
        key_of("s", "h", "-G\narch sm_80", "sm_90a", "nvrtc 13.0 build 1"),
    };
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++) {
        cr_expect_str_neq(base.name, other[i].name, "variant %zu", i);
        fa__key_free(&other[i]);
    }
    fa__key again = key_of("s", "h", "-G", "sm_90a", "nvrtc 13.0 build 1");
    cr_expect_str_eq(base.name, again.name);
    cr_expect_str_eq(base.text.data, again.text.data);
    fa__key_free(&again);
    fa__key_free(&base);
}

Test(key, F33_options_that_only_change_the_log_do_not_split_the_cache)
{
    fa__key none = key_of("s", "h", NULL, "sm_90a", "c");
    static const char *const quiet[] = {"-w", "--disable-warnings", "--diag-suppress=177",
                                        "--display-error-number"};
    for (size_t i = 0; i < sizeof quiet / sizeof quiet[0]; i++) {
        fa__key key = key_of("s", "h", quiet[i], "sm_90a", "c");
        cr_expect_str_eq(none.name, key.name, "%s", quiet[i]);
        fa__key_free(&key);
    }
    fa__key_free(&none);
}

Test(key, text_is_readable_and_pinned)
{
    fa__key key = key_of("#define FAJIT_INSTANCE 1\nconstexpr int N = 4;\n#line 1 \"k.cu\"\nbody",
                         "h", "-G", "sm_90a", "nvrtc 13.0 build 1");
    char field[32];
    cr_expect_str_eq(key.text.data,
                     "fajit key 1\n"
                     "op template\n"
                     "label k N=4\n"
                     "arch sm_90a\n"
                     "compiler nvrtc 13.0 build 1\n"
                     "entry k\n"
                     "prologue #define FAJIT_INSTANCE 1\n"
                     "prologue constexpr int N = 4;\n"
                     "source 1b32b6823594de77ca0f913d5094a763 65 as k.cu\n"
                     "header dd8307607436e2c77045c205f5ef6a66 1 as h.cuh\n"
                     "option -G\n");
    fa__key_field(key.text.data, key.text.len, "arch", field, sizeof field);
    cr_expect_str_eq(field, "sm_90a");
    fa__key_field(key.text.data, key.text.len, "label", field, sizeof field);
    cr_expect_str_eq(field, "k N=4");
    fa__key_field(key.text.data, key.text.len, "nothing", field, sizeof field);
    cr_expect_str_eq(field, "");
    fa__key_field(key.text.data, key.text.len, "compiler", field, 6);
    cr_expect_str_eq(field, "nvrtc");
    fa__key_free(&key);
}
