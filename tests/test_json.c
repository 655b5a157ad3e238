/* The JSON reader and writer. */
#include <criterion/criterion.h>
#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

#define QUOTED(text) "\"" text "\""

static fa__json *parse_ok(const char *text)
{
    fa__json *root = NULL;
    fa_status status = fa__json_parse(text, strlen(text), &root);

    cr_assert_eq(status, FA_OK, "%s: %s", text, fa_last_error());
    return root;
}

Test(json, tree_of_every_type)
{
    fa__json *root = parse_ok(
        " {\"a\": [1, -2.5e3, true, false, null, \"x\"],\n  \"b\": {}, "
        "\"c\": []}\n");
    const fa__json *a = fa__json_get(root, "a"), *b = fa__json_get(root, "b");

    cr_assert_eq(root->type, FA__JSON_OBJECT);
    cr_assert_eq(root->count, 3);
    cr_assert_eq(a->count, 6);
    static const fa__json_type types[] = {FA__JSON_NUMBER, FA__JSON_NUMBER, FA__JSON_BOOL,
                                          FA__JSON_BOOL,   FA__JSON_NULL,   FA__JSON_STRING};
    size_t i = 0;
    for (const fa__json *item = a->child; item; item = item->next)
        cr_assert_eq(item->type, types[i++]);
    cr_assert_eq(i, 6);
    cr_assert_str_eq(a->child->next->text, "-2.5e3");
    cr_assert(a->child->next->next->boolean);
    cr_assert_not(a->child->next->next->next->boolean);
    cr_assert_eq(b->type, FA__JSON_OBJECT);
    cr_assert_eq(b->count, 0);
    cr_assert_eq(b->key_line, 2);
    cr_assert_eq(b->key_column, 3);
    cr_assert_eq(b->line, 2);
    cr_assert_eq(b->column, 8);
    cr_assert_eq(fa__json_get(root, "c")->type, FA__JSON_ARRAY);
    cr_assert_null(fa__json_get(root, "d"));
    cr_assert_null(fa__json_get(a, "a"));
    fa__json_free(root);
}

Test(json, strings_are_decoded)
{
    fa__json *root = parse_ok(
        "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\u20AC\\ud83d\\ude00 "
        "\xc3\xa9\"");
    const char *expected = "\"\\/\b\f\n\r\tA\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 \xc3\xa9";

    cr_assert_str_eq(root->text, expected);
    cr_assert_eq(root->text_len, strlen(expected));
    fa__json_free(root);
}

typedef struct refusal {
    const char *text;
    const char *message; /* a part of it, with the position */
} refusal;

static const refusal refusals[] = {
    {"", "line 1 column 1: expected a value, found the end"},
    {"  \n ", "line 2 column 2: expected a value, found the end"},
    {"{", "line 1 column 2: expected a key in quotes, found the end"},
    {"[1, 2", "line 1 column 6: expected ',' or ']', found the end"},
    {"[1 2]", "line 1 column 4: expected ',' or ']', found '2'"},
    {"[1,]", "line 1 column 4: expected a value, found ']'"},
    {"[,1]", "line 1 column 2: expected a value, found ','"},
    {"{\"a\":1,}", "line 1 column 8: expected a key in quotes, found '}'"},
    {"{\"a\" 1}", "line 1 column 6: expected ':' after the key, found '1'"},
    {"{a: 1}", "line 1 column 2: expected a key in quotes, found 'a'"},
    {"{\"a\":1 \"b\":2}", "line 1 column 8: expected ',' or '}', found '\"'"},
    {"{} {}", "line 1 column 4: expected the end of the text, found '{'"},
    {"{}\n\nx", "line 3 column 1: expected the end of the text, found 'x'"},
    {"// no\n{}", "line 1 column 1: expected a value, found '/'"},
    {"tru", "line 1 column 1: expected a value, found 't'"},
    {"truex", "line 1 column 5: expected the end of the text, found 'x'"},
    {"NaN", "expected a value, found 'N'"},
    {"'a'", "expected a value, found '''"},
    {"\xef\xbb\xbf{}", "byte order mark"},
    /* numbers */
    {"01", "line 1 column 1: malformed number"},
    {"[1, -01]", "line 1 column 5: malformed number"},
    {"+1", "expected a value, found '+'"},
    {".5", "expected a value, found '.'"},
    {"5.", "malformed number"},
    {"-", "malformed number"},
    {"--1", "malformed number"},
    {"1e", "malformed number"},
    {"1e+", "malformed number"},
    {"1.5.2", "malformed number"},
    {"0x10", "malformed number"},
    {"1_000", "expected the end of the text, found '_'"},
    {"-Infinity", "malformed number"},
    /* strings */
    {"\"abc", "the text ends inside a string"},
    {"\"abc\\", "one of \" \\ / b f n r t u after a backslash, found the end"},
    {"\"abc\\\"", "the text ends inside a string"},
    {"\"a\nb\"", "line 1 column 3: control character 0x0a"},
    {"\"a\tb\"", "control character 0x09"},
    {"\"\\x41\"", "line 1 column 3: expected one of"},
    {"\"\\u12g4\"", "line 1 column 6: expected four hexadecimal digits"},
    {"\"\\u12\"", "expected four hexadecimal digits"},
    {"\"\\u0000\"", "\\u0000 is not allowed"},
    {"\"\\ud800\"", "\\ud800 is the first half of a surrogate pair"},
    {"\"\\ud800x\"", "\\ud800 is the first half"},
    {"\"\\ud800\\n\"", "\\ud800 is the first half"},
    {"\"\\ud800\\ud800\"", "\\ud800\\ud800 is not a surrogate pair"},
    {"\"\\udc00\"", "\\udc00 is the second half"},
    /* UTF-8: stray, cut, overlong, surrogate, too large; columns count characters */
    {"\"\xc3\xa9\x80\"", "line 1 column 3: byte 0x80 is not valid UTF-8"},
    {"\"\xc3\"", "byte 0xc3 is not valid UTF-8"},
    {"\"\xe2\x82\"", "byte 0xe2 is not valid UTF-8"},
    {"\"\xc0\xaf\"", "byte 0xc0 is not valid UTF-8"},
    {"\"\xe0\x80\xaf\"", "byte 0xe0 is not valid UTF-8"},
    {"\"\xf0\x80\x80\xaf\"", "byte 0xf0 is not valid UTF-8"},
    {"\"\xed\xa0\x80\"", "byte 0xed is not valid UTF-8"},
    {"\"\xf4\x90\x80\x80\"", "byte 0xf4 is not valid UTF-8"},
    {"\"\xff\"", "byte 0xff is not valid UTF-8"},
    {"\xc3\xa9", "found byte 0xc3"},
    /* duplicate keys, also written differently */
    {"{\"a\": 1,\n \"a\": 2}", "line 2 column 2: key \"a\" is there twice"},
    {"[{\"b\": 1, \"a\": 1, \"\\u0062\": 2}]", "line 1 column 19: key \"b\" is there twice"},
};

Test(json, malformed_text_is_refused_with_its_position)
{
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const refusal *r = &refusals[i];
        fa__json *root = (fa__json *)(uintptr_t)1;
        fa_status status = fa__json_parse(r->text, strlen(r->text), &root);
        cr_expect_eq(status, FA_ERR_MANIFEST, "%s was accepted", r->text);
        cr_expect_null(root);
        cr_expect(strstr(fa_last_error(), r->message) != NULL, "%s: got \"%s\", expected \"%s\"",
                  r->text, fa_last_error(), r->message);
        cr_expect(strncmp(fa_last_error(), "line ", 5) == 0, "%s", fa_last_error());
    }
}

Test(json, nul_bytes_are_refused)
{
    fa__json *root = NULL;

    cr_expect_eq(fa__json_parse("{}\0", 3, &root), FA_ERR_MANIFEST);
    cr_expect(strstr(fa_last_error(), "column 3") && strstr(fa_last_error(), "byte 0x00"), "%s",
              fa_last_error());
    cr_expect_eq(fa__json_parse("\"a\0b\"", 5, &root), FA_ERR_MANIFEST);
    cr_expect(strstr(fa_last_error(), "0x00"), "%s", fa_last_error());
    cr_expect_eq(fa__json_parse(NULL, 0, &root), FA_ERR_MANIFEST);
}

/* Every prefix of a document ends too early. */
Test(json, every_truncation_is_refused)
{
    static const char text[] =
        "{\"a\": [1.5e-3, \"\\u00e9\xc3\xa9\", {\"b\": true}, null], \"c\": \"\\ud83d\\ude00\"}";

    for (size_t len = 0; len < sizeof text - 1; len++) {
        char *exact = malloc(len + 1); /* of its own size, for the address sanitizer */
        fa__json *root = NULL;
        memcpy(exact, text, len);
        char *cut = realloc(exact, len ? len : 1);
        cr_expect_eq(fa__json_parse(cut, len, &root), FA_ERR_MANIFEST, "%zu bytes", len);
        free(cut);
    }
    fa__json_free(parse_ok(text));
}

Test(json, nesting_is_limited)
{
    char text[256] = "";
    fa__json *root = NULL;

    memset(text, '[', 64);
    memset(text + 64, ']', 64);
    fa__json_free(parse_ok(text));
    memset(text, '[', 65);
    memset(text + 65, ']', 65);
    cr_assert_eq(fa__json_parse(text, 130, &root), FA_ERR_MANIFEST);
    cr_assert(strstr(fa_last_error(), "column 65: nested deeper than 64 levels"), "%s",
              fa_last_error());
    char *deep = malloc(1 << 20);
    memset(deep, '[', 1 << 20);
    cr_assert_eq(fa__json_parse(deep, 1 << 20, &root), FA_ERR_MANIFEST);
    free(deep);
}

Test(json, objects_of_many_members_are_quick)
{
    fa__buf text = {0};

    fa__buf_text(&text, "{");
    for (int i = 0; i < 200000; i++)
        fa__buf_format(&text, "%s\"k%d\": %d", i ? "," : "", i, i);
    fa__buf_text(&text, "}");
    fa__json *root = parse_ok(text.data);
    cr_assert_eq(root->count, 200000);
    fa__json_free(root);
    fa__buf_free(&text);
}

Test(json, numbers_as_integers)
{
    static const struct {
        const char *text;
        bool ok;
        int64_t value;
    } cases[] = {
        {"0", true, 0},
        {"-0", true, 0},
        {"42", true, 42},
        {"9223372036854775807", true, INT64_MAX},
        {"-9223372036854775808", true, INT64_MIN},
        {"9223372036854775808", false, 0},
        {"-9223372036854775809", false, 0},
        {"99999999999999999999999999999", false, 0},
        {"1.0", false, 0},
        {"1e3", false, 0},
        {"01", false, 0},
        {"+1", false, 0},
        {" 1", false, 0},
        {"1 ", false, 0},
        {"", false, 0},
        {"-", false, 0},
        {"0x10", false, 0},
        {"\xd9\xa1", false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t value = 77;
        cr_expect_eq(fa__json_to_int(cases[i].text, &value), cases[i].ok, "%s", cases[i].text);
        cr_expect_eq(value, cases[i].ok ? cases[i].value : 77, "%s", cases[i].text);
    }
}

Test(json, numbers_as_doubles)
{
    static const struct {
        const char *text;
        bool ok;
        double value;
    } cases[] = {
        {"0", true, 0.0},          {"0.0e999", true, 0.0},
        {"1.5", true, 1.5},        {"-2.5E+3", true, -2500.0},
        {"1e308", true, 1e308},    {"5e-324", true, 5e-324},
        {"1e999", false, 0},       {"-1e999", false, 0},
        {"1e-999", false, 0},      {"0.1", true, 0.1},
        {"1,5", false, 0},         {"nan", false, 0},
        {"inf", false, 0},         {"Infinity", false, 0},
        {"0x1p3", false, 0},       {"1.", false, 0},
        {".5", false, 0},          {"", false, 0},
        {"1.5 ", false, 0},        {"9007199254740993", true, 9007199254740992.0},
        {"1e400000000", false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double value = 77;
        cr_expect_eq(fa__json_to_real(cases[i].text, &value), cases[i].ok, "%s", cases[i].text);
        cr_expect_eq(value, cases[i].ok ? cases[i].value : 77, "%s", cases[i].text);
    }
}

static void expect_real_text(double value, const char *expected)
{
    fa__buf out = {0};

    fa__json_real(&out, value);
    cr_expect_str_eq(out.data, expected);
    fa__buf_free(&out);
}

Test(json, doubles_are_written_shortest)
{
    expect_real_text(0.0, "0");
    expect_real_text(-0.0, "-0");
    expect_real_text(10000.0, "10000");
    expect_real_text(0.1, "0.1");
    expect_real_text(-1.5, "-1.5");
    expect_real_text(123.456, "123.456");
    expect_real_text(0.00001, "0.00001");
    expect_real_text(0.000001, "1e-6");
    expect_real_text(1e16, "10000000000000000");
    expect_real_text(1e17, "1e17");
    expect_real_text(1.25e300, "1.25e300");
    expect_real_text(DBL_MAX, "1.7976931348623157e308");
    expect_real_text(5e-324, "5e-324");
    expect_real_text((double)INFINITY, "null");
    expect_real_text((double)NAN, "null");
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

Test(json, written_doubles_read_back_exactly)
{
    uint64_t state = 88172645463325252ull;

    for (int i = 0; i < 20000; i++) {
        uint64_t bits = next_random(&state);
        double value = 0, back = 0;
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value))
            continue;
        fa__buf out = {0};
        fa__json_real(&out, value);
        cr_assert(fa__json_to_real(out.data, &back), "%s", out.data);
        cr_assert_eq(memcmp(&back, &value, sizeof back), 0, "%s is %a, not %a", out.data, back,
                     value);
        fa__json *root = parse_ok(out.data); /* and is JSON */
        cr_assert_eq(root->type, FA__JSON_NUMBER);
        fa__json_free(root);
        fa__buf_free(&out);
    }
}

Test(json, F37_a_decimal_comma_changes_nothing)
{
    char folder[] = "/tmp/fajit-locale-XXXXXX", command[256];
    const char *set = setlocale(LC_ALL, "de_DE.UTF-8");
    double value = 0;

    if (!set && mkdtemp(folder)) { /* few machines have one: make it */
        snprintf(command, sizeof command,
                 "localedef -c -i de_DE -f UTF-8 %s/de_DE.UTF-8 >/dev/null 2>&1", folder);
        if (system(command) == 0 && setenv("LOCPATH", folder, 1) == 0)
            set = setlocale(LC_ALL, "de_DE.UTF-8");
        snprintf(command, sizeof command, "rm -rf %s", folder);
        cr_assert_eq(system(command), 0);
    }
    if (!set)
        cr_skip_test("no locale with decimal commas, and localedef cannot make one");
    cr_assert_eq(localeconv()->decimal_point[0], ',');
    expect_real_text(1.5, "1.5");
    expect_real_text(1.25e300, "1.25e300");
    cr_expect(fa__json_to_real("1.5", &value) && value == 1.5);
    cr_expect_not(fa__json_to_real("1,5", &value));
    cr_expect_str_eq(setlocale(LC_ALL, NULL), set); /* F38: left alone */
}

Test(json, strings_are_written_with_escapes)
{
    fa__buf out = {0};

    fa__json_string(&out, "a\"\\/\b\f\n\r\t\x01\x7f\xc3\xa9");
    cr_expect_str_eq(out.data, "\"a\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u007f\xc3\xa9\"");
    fa__buf_reset(&out);
    fa__json_string(&out, "");
    cr_expect_str_eq(out.data, "\"\"");
    fa__buf_reset(&out);
    fa__json_string(&out, "x\xff\xc3");
    cr_expect_str_eq(out.data, QUOTED("x\xef\xbf\xbd\xef\xbf\xbd"));
    fa__buf_free(&out);
    cr_expect(fa__json_is_utf8("x\xc3\xa9"));
    cr_expect_not(fa__json_is_utf8("x\xff"));
    cr_expect_not(fa__json_is_utf8("\xc3"));
}

Test(json, written_strings_read_back)
{
    char text[1024], *to = text;
    fa__buf out = {0};

    for (int c = 1; c < 0x80; c++)
        *to++ = (char)c;
    memcpy(to, "\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf", 19);
    fa__json_string(&out, text);
    fa__json *root = parse_ok(out.data);
    cr_expect_str_eq(root->text, text);
    fa__json_free(root);
    fa__buf_free(&out);
}
