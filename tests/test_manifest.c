/* Manifests in both directions. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "manifest.h"

#define FRAME(kernels) "{\"fajit_manifest\": 1, \"kernels\": [" kernels "]}"
#define TEMPLATE(members) FRAME("{\"op\": \"template\", " members "}")
#define SOURCE "\"source\": \"x\", \"entry\": \"e\""

static fa__manifest parse_ok(const char *text)
{
    fa__manifest m = {0};
    fa_status status = fa__manifest_parse(text, strlen(text), &m);

    cr_assert_eq(status, FA_OK, "%s: %s", text, fa_last_error());
    return m;
}

Test(manifest, rope_by_names_and_aliases)
{
    fa__manifest m = parse_ok(FRAME(
        "{\"op\": \"rope\", \"dtype\": \"bf16\", \"style\": \"interleaved\", \"angles\": "
        "\"tables\", \"positions\": \"vector\", \"layout\": \"bnhd\", \"in_place\": true, "
        "\"head_dim\": 128, \"rotary_dim\": 64, \"batch\": 4, \"heads_q\": 32, \"heads_k\": 8, "
        "\"seqlen\": 4096, \"base\": 5e5},\n"
        "{\"D\": 64, \"op\": \"rope\", \"B\": 2, \"H\": 3, \"G\": 1, \"N\": 7}, {\"op\": "
        "\"rope\"}"));

    cr_assert_eq(m.count, 3);
    const fa_rope_spec *r = &m.specs[0].rope;
    cr_expect_eq(m.specs[0].size, sizeof(fa_spec));
    cr_expect_eq(m.specs[0].op, FA_OP_ROPE);
    cr_expect(r->dtype == FA_BF16 && r->style == FA_ROPE_INTERLEAVED &&
              r->angles == FA_ROPE_TABLES && r->positions == FA_ROPE_VECTOR &&
              r->layout == FA_LAYOUT_BNHD && r->in_place);
    cr_expect(r->head_dim == 128 && r->rotary_dim == 64 && r->batch == 4 && r->heads_q == 32 &&
              r->heads_k == 8 && r->seqlen == 4096);
    cr_expect_eq(r->base, 500000.0);
    r = &m.specs[1].rope;
    cr_expect(r->head_dim == 64 && r->batch == 2 && r->heads_q == 3 && r->heads_k == 1 &&
              r->seqlen == 7);
    fa_spec zero = FA_SPEC_INIT(FA_OP_ROPE);
    cr_expect_eq(memcmp(&m.specs[2].rope, &zero.rope, sizeof zero.rope), 0);
    fa__manifest_free(&m);
    cr_expect(m.specs == NULL && m.count == 0 && m.memory == NULL);
    fa__manifest_free(&m);
}

Test(manifest, no_kernels)
{
    fa__manifest m = parse_ok(FRAME(""));

    cr_expect_eq(m.count, 0);
    fa__manifest_free(&m);
}

Test(manifest, template_with_everything)
{
    fa__manifest m = parse_ok(TEMPLATE(
        "\"name\": \"scale.cu\", \"source\": \"line\\n\\\"two\\\"\", \"entry\": \"scale<T>\", "
        "\"constants\": {\"N\": {\"int\": -9223372036854775808}, \"S\": {\"float\": 0.1}, "
        "\"B\": {\"bool\": true}, \"T\": {\"dtype\": \"bf16\"}, \"I\": {\"identifier\": "
        "\"foo::bar\"}, \"F\": {\"float\": 3}}, \"headers\": {\"a/x.cuh\": \"text\", \"y.cuh\": "
        "\"\"}, \"options\": [\"--fmad=false\", \"-lineinfo\"], \"smem_bytes\": 4294967295, "
        "\"cluster\": [2, 1, 1], \"cooperative\": true, \"programmatic_launch\": true"));
    const fa_template_spec *t = &m.specs[0].tmpl;
    const fa_constant *c = t->constants;

    cr_assert_eq(m.count, 1);
    cr_assert_eq(m.specs[0].op, FA_OP_TEMPLATE);
    cr_expect_str_eq(t->name, "scale.cu");
    cr_expect_str_eq(t->source, "line\n\"two\"");
    cr_expect_str_eq(t->entry, "scale<T>");
    cr_assert_eq(t->constant_count, 6);
    cr_expect(c[0].type == FA_CONSTANT_INT && c[0].int_value == INT64_MIN);
    cr_expect(c[1].type == FA_CONSTANT_FLOAT && c[1].float_value == 0.1);
    cr_expect(c[2].type == FA_CONSTANT_BOOL && c[2].int_value == 1);
    cr_expect(c[3].type == FA_CONSTANT_DTYPE && c[3].int_value == FA_BF16);
    cr_expect_eq(c[4].type, FA_CONSTANT_IDENTIFIER);
    cr_expect_str_eq(c[4].identifier, "foo::bar");
    cr_expect_str_eq(c[4].name, "I");
    cr_expect(c[5].type == FA_CONSTANT_FLOAT && c[5].float_value == 3.0);
    cr_assert_eq(t->header_count, 2);
    cr_expect_str_eq(t->headers[0].name, "a/x.cuh");
    cr_expect_str_eq(t->headers[0].text, "text");
    cr_expect_str_eq(t->headers[1].text, "");
    cr_assert_eq(t->option_count, 2);
    cr_expect_str_eq(t->options[1], "-lineinfo");
    cr_expect_eq(t->smem_bytes, UINT32_MAX);
    cr_expect(t->cluster[0] == 2 && t->cluster[1] == 1 && t->cluster[2] == 1);
    cr_expect(t->cooperative && t->programmatic_launch);
    fa__manifest_free(&m);
}

typedef struct refusal {
    const char *text;
    const char *message; /* parts of it, with '|' between */
} refusal;

static const refusal refusals[] = {
    /* the frame */
    {"[]", "line 1 column 1: a manifest is an object"},
    {"{}", "line 1 column 1: this is no manifest: it has no \"fajit_manifest\""},
    {"{\"kernels\": []}", "it has no \"fajit_manifest\""},
    {"{\"fajit_manifest\": 2, \"new\": 0}", "line 1 column 20: \"fajit_manifest\" must be 1"},
    {"{\"fajit_manifest\": 1.0, \"kernels\": []}", "\"fajit_manifest\" must be 1"},
    {"{\"fajit_manifest\": \"1\", \"kernels\": []}", "\"fajit_manifest\" must be 1"},
    {"{\"fajit_manifest\": 1}", "the manifest has no \"kernels\""},
    {"{\"fajit_manifest\": 1, \"kernels\": {}}", "column 34: \"kernels\" must be an array"},
    {"{\"fajit_manifest\": 1,\n\"kernel\": []}", "line 2 column 1: unknown key \"kernel\""},
    {"{\"fajit_manifest\": 1, \"fajit_manifest\": 1, \"kernels\": []}", "is there twice"},
    {FRAME("") "x", "expected the end of the text, found 'x'"},
    /* an operation */
    {FRAME("7"), "every element of \"kernels\" must be an object"},
    {FRAME("{}"), "line 1 column 35: the kernel has no \"op\""},
    {FRAME("{\"dtype\": \"f32\"}"), "the kernel has no \"op\""},
    {FRAME("{\"op\": 2}"), "\"op\" must be a string"},
    {FRAME("{\"op\": \"ropes\"}"), "column 42: \"ropes\" is no operation|template, rope"},
    {FRAME("\n{\"op\": \"rope\",\n  \"head_dims\": 64}"),
     "line 3 column 3: |no parameter 'head_dims'|head_dim (D)"},
    {FRAME("{\"op\": \"rope\", \"D\": 64, \"head_dim\": 64}"),
     "head_dim and D are the same parameter"},
    {FRAME("{\"op\": \"rope\", \"D\": 64, \"D\": 64}"), "key \"D\" is there twice"},
    {FRAME("{\"op\": \"rope\", \"op\": \"rope\"}"), "key \"op\" is there twice"},
    {FRAME("{\"op\": \"rope\",\n\"dtype\": \"f64\"}"), "line 2 column 10: |f64|f32, f16, bf16"},
    {FRAME("{\"op\": \"rope\", \"dtype\": 0}"), "rope.dtype must be a string"},
    {FRAME("{\"op\": \"rope\", \"D\": \"64\"}"), "rope.head_dim must be an integer"},
    {FRAME("{\"op\": \"rope\", \"D\": 64.0}"), "head_dim|64.0"},
    {FRAME("{\"op\": \"rope\", \"D\": 1e2}"), "head_dim|1e2"},
    {FRAME("{\"op\": \"rope\", \"D\": 1025}"), "head_dim|1025|1024"},
    {FRAME("{\"op\": \"rope\", \"D\": -1}"), "head_dim|-1"},
    {FRAME("{\"op\": \"rope\", \"N\": 4294967297}"), "seqlen|4294967297"},
    {FRAME("{\"op\": \"rope\", \"N\": 99999999999999999999}"), "seqlen|99999999999999999999"},
    {FRAME("{\"op\": \"rope\", \"D\": null}"), "rope.head_dim must be an integer"},
    {FRAME("{\"op\": \"rope\", \"in_place\": 1}"), "rope.in_place must be true or false"},
    {FRAME("{\"op\": \"rope\", \"base\": \"x\"}"), "rope.base must be a number"},
    {FRAME("{\"op\": \"rope\", \"base\": 1e999}"), "base|1e999"},
    {FRAME("{\"op\": \"rope\", \"base\": -5}"), "base|-5"},
    {FRAME("{\"op\": \"rope\", \"source\": \"x\"}"), "no parameter 'source'"},
    /* a template */
    {TEMPLATE("\"source\": \"x\""), "the template has no \"entry\""},
    {TEMPLATE("\"entry\": \"x\""), "the template has no \"source\""},
    {TEMPLATE(SOURCE ", \"dtype\": \"f32\""), "template has no parameter 'dtype'|programmatic_"},
    {TEMPLATE(SOURCE ", \"name\": 4"), "\"name\" must be a string"},
    {TEMPLATE(SOURCE ", \"constants\": []"), "\"constants\" must be an object"},
    {TEMPLATE(SOURCE ", \"constants\": {\"N\": 4}"), "constant \"N\" must be an object"},
    {TEMPLATE(SOURCE ", \"constants\": {\"N\": {}}"), "constant \"N\" must be an object of one"},
    {TEMPLATE(SOURCE ", \"constants\": {\"N\": {\"int\": 1, \"float\": 2}}"), "of one member"},
    {TEMPLATE(SOURCE ", \"constants\": {\"N\": {\"text\": \"4\"}}"), "\"text\" is no type"},
    {TEMPLATE(SOURCE ", \"constants\": {\"N\": {\"int\": 4.5}}"), "64-bit integer"},
    {TEMPLATE(SOURCE ", \"constants\": {\"N\": {\"int\": 9223372036854775808}}"), "64-bit integer"},
    {TEMPLATE(SOURCE ", \"constants\": {\"N\": {\"int\": \"4\"}}"), "64-bit integer"},
    {TEMPLATE(SOURCE ", \"constants\": {\"N\": {\"float\": 1e999}}"), "a double holds"},
    {TEMPLATE(SOURCE ", \"constants\": {\"N\": {\"bool\": 1}}"), "true or false"},
    {TEMPLATE(SOURCE ", \"constants\": {\"N\": {\"dtype\": \"f64\"}}"), "f32, f16, bf16"},
    {TEMPLATE(SOURCE ", \"constants\": {\"N\": {\"dtype\": 1}}"), "f32, f16, bf16"},
    {TEMPLATE(SOURCE ", \"constants\": {\"N\": {\"identifier\": 1}}"), "must be a string"},
    {TEMPLATE(SOURCE ", \"constants\": {\"N\": {\"int\": 1}, \"N\": {\"int\": 1}}"), "twice"},
    {TEMPLATE(SOURCE ", \"headers\": [\"x\"]"), "\"headers\" must be an object"},
    {TEMPLATE(SOURCE ", \"headers\": {\"x\": 1}"), "\"x\" must be a string"},
    {TEMPLATE(SOURCE ", \"options\": \"-G\""), "\"options\" must be an array"},
    {TEMPLATE(SOURCE ", \"options\": [1]"), "every element of \"options\" must be a string"},
    {TEMPLATE(SOURCE ", \"smem_bytes\": -1"), "\"smem_bytes\" must be an integer from 0"},
    {TEMPLATE(SOURCE ", \"smem_bytes\": 4294967296"), "\"smem_bytes\" must be an integer from 0"},
    {TEMPLATE(SOURCE ", \"cluster\": [1, 2]"), "three elements [x, y, z], not 2"},
    {TEMPLATE(SOURCE ", \"cluster\": [1, 2, \"3\"]"), "\"cluster\" must be an integer"},
    {TEMPLATE(SOURCE ", \"cluster\": 2"), "\"cluster\" must be an array"},
    {TEMPLATE(SOURCE ", \"cooperative\": \"yes\""), "\"cooperative\" must be true or false"},
    {TEMPLATE(SOURCE ", \"entry\": \"\\u0000\""), "\\u0000 is not allowed"},
};

static bool holds_parts(const char *text, const char *parts)
{
    char copy[256];

    snprintf(copy, sizeof copy, "%s", parts);
    for (char *save = NULL, *part = strtok_r(copy, "|", &save); part;
         part = strtok_r(NULL, "|", &save))
        if (!strstr(text, part))
            return false;
    return true;
}

Test(manifest, a_problem_is_refused_with_its_position)
{
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const refusal *r = &refusals[i];
        fa__manifest m = {.count = 7};
        fa_status status = fa__manifest_parse(r->text, strlen(r->text), &m);
        cr_expect_eq(status, FA_ERR_MANIFEST, "%s was accepted", r->text);
        cr_expect(m.specs == NULL && m.count == 0 && m.memory == NULL);
        cr_expect(holds_parts(fa_last_error(), r->message), "%s: got \"%s\", expected \"%s\"",
                  r->text, fa_last_error(), r->message);
        cr_expect(strncmp(fa_last_error(), "line ", 5) == 0, "%s", fa_last_error());
    }
}

Test(manifest, the_number_of_kernels_is_limited)
{
    fa__buf text = {0};
    fa__manifest m = {0};

    fa__buf_text(&text, "{\"fajit_manifest\": 1, \"kernels\": [0");
    for (int i = 0; i < 100000; i++)
        fa__buf_text(&text, ",0");
    fa__buf_text(&text, "]}");
    cr_assert_eq(fa__manifest_parse(text.data, text.len, &m), FA_ERR_MANIFEST);
    cr_assert(holds_parts(fa_last_error(), "100001 elements|100000"), "%s", fa_last_error());
    fa__buf_free(&text);
}

/* --- writing --- */

static void write_all(fa__buf *out, const fa_spec *specs, size_t count)
{
    fa__manifest_begin(out);
    for (size_t i = 0; i < count; i++)
        cr_assert_eq(fa__manifest_add(out, &specs[i], i == 0), FA_OK, "%s", fa_last_error());
    fa__manifest_end(out);
}

Test(manifest, written_text_is_pinned)
{
    fa_spec specs[2] = {FA_SPEC_INIT(FA_OP_ROPE), FA_SPEC_INIT(FA_OP_TEMPLATE)};
    fa_constant constants[] = {{.name = "N", .int_value = 4},
                               {.name = "S", .type = FA_CONSTANT_FLOAT, .float_value = 0.5}};
    fa__buf out = {0};

    specs[0].rope = (fa_rope_spec){.dtype = FA_BF16, .head_dim = 64, .base = 1e6};
    specs[1].tmpl = (fa_template_spec){
        .source = "a\nb", .entry = "k", .constants = constants, .constant_count = 2};
    write_all(&out, specs, 2);
    cr_expect_str_eq(
        out.data,
        "{\n  \"fajit_manifest\": 1,\n  \"kernels\": [\n"
        "    {\"op\": \"rope\", \"dtype\": \"bf16\", \"head_dim\": 64, \"base\": 1000000},\n"
        "    {\"op\": \"template\", \"entry\": \"k\", \"source\": \"a\\nb\", "
        "\"constants\": {\"N\": {\"int\": 4}, \"S\": {\"float\": 0.5}}}\n"
        "  ]\n}\n");
    fa__buf_reset(&out);
    write_all(&out, NULL, 0);
    fa__manifest m = parse_ok(out.data);
    cr_expect_eq(m.count, 0);
    fa__manifest_free(&m);
    fa__buf_free(&out);
}

/* Each member at a value that is not its default comes back, by the table: a parameter added later
 * is covered. */
Test(manifest, every_rope_parameter_comes_back)
{
    fa_op_info_t info;

    cr_assert_eq(fa_op_info(FA_OP_ROPE, &info), FA_OK);
    cr_assert_gt(info.param_count, 0);
    for (size_t i = 0; i < info.param_count; i++) {
        const fa_param_info *p = &info.params[i];
        const char *value = p->kind == FA_PARAM_BOOL   ? "true"
                            : p->kind == FA_PARAM_ENUM ? p->names[1]
                            : p->kind == FA_PARAM_REAL
                                ? (p->max < 10001 ? "0.123456789012" : "10000.123456789012")
                                : "64";
        fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE), plain = FA_SPEC_INIT(FA_OP_ROPE);
        fa__buf out = {0};
        cr_assert_eq(fa_spec_set(&spec, p->name, value), FA_OK, "%s", fa_last_error());
        cr_assert_neq(memcmp(&spec.rope, &plain.rope, sizeof spec.rope), 0, "%s", p->name);
        write_all(&out, &spec, 1);
        fa__manifest m = parse_ok(out.data);
        cr_assert_eq(m.count, 1);
        cr_expect_eq(memcmp(&m.specs[0].rope, &spec.rope, sizeof spec.rope), 0, "%s: %s", p->name,
                     out.data);
        fa__manifest_free(&m);
        fa__buf_free(&out);
    }
}

Test(manifest, a_template_comes_back)
{
    const fa_constant constants[] = {
        {.name = "N", .type = FA_CONSTANT_INT, .int_value = INT64_MIN},
        {.name = "S", .type = FA_CONSTANT_FLOAT, .float_value = 0.1},
        {.name = "Z", .type = FA_CONSTANT_FLOAT, .float_value = -0.0},
        {.name = "B", .type = FA_CONSTANT_BOOL, .int_value = 1},
        {.name = "T", .type = FA_CONSTANT_DTYPE, .int_value = FA_F16},
        {.name = "I", .type = FA_CONSTANT_IDENTIFIER, .identifier = "a::b"}};
    const fa_header headers[] = {{"x \"y\".cuh", "#pragma once\n"}, {"\xc3\xa9", ""}};
    const char *const options[] = {"-DX=\"1\"", "--fmad=false"};
    fa_spec spec = FA_SPEC_INIT(FA_OP_TEMPLATE);
    fa__buf out = {0}, again = {0};

    spec.tmpl = (fa_template_spec){.name = "n.cu",
                                   .source = "\\ \t \x01 \xf0\x9f\x98\x80 */ \" \r\n",
                                   .entry = "k<4>",
                                   .constants = constants,
                                   .constant_count = 6,
                                   .headers = headers,
                                   .header_count = 2,
                                   .options = options,
                                   .option_count = 2,
                                   .smem_bytes = 49153,
                                   .cluster = {2, 1, 1},
                                   .cooperative = true,
                                   .programmatic_launch = true};
    write_all(&out, &spec, 1);
    fa__manifest m = parse_ok(out.data);
    const fa_template_spec *t = &m.specs[0].tmpl;
    cr_expect_str_eq(t->source, spec.tmpl.source);
    cr_assert_eq(t->constant_count, 6);
    for (size_t i = 0; i < 6; i++) {
        cr_expect_str_eq(t->constants[i].name, constants[i].name);
        cr_expect_eq(t->constants[i].type, constants[i].type);
        cr_expect_eq(t->constants[i].int_value, constants[i].int_value);
        cr_expect_eq(
            memcmp(&t->constants[i].float_value, &constants[i].float_value, sizeof(double)), 0);
    }
    cr_assert_eq(t->header_count, 2);
    cr_expect_str_eq(t->headers[0].name, headers[0].name);
    cr_expect_str_eq(t->headers[1].name, headers[1].name);
    cr_expect_str_eq(t->options[0], options[0]);
    cr_expect(t->smem_bytes == 49153 && t->cluster[0] == 2 && t->cooperative &&
              t->programmatic_launch);
    write_all(&again, m.specs, m.count);
    cr_expect_str_eq(again.data, out.data);
    fa__manifest_free(&m);
    fa__buf_free(&out);
    fa__buf_free(&again);
}

static void expect_not_written(const fa_spec *spec, fa_status expected)
{
    fa__buf out = {0};

    fa__manifest_begin(&out);
    size_t before = out.len;
    cr_expect_eq(fa__manifest_add(&out, spec, true), expected, "%s", fa_last_error());
    cr_expect_eq(out.len, before);
    cr_expect_eq(strlen(out.data), before);
    fa__buf_free(&out);
}

Test(manifest, what_json_cannot_hold_is_refused)
{
    fa_spec spec = FA_SPEC_INIT(FA_OP_TEMPLATE), rope = FA_SPEC_INIT(FA_OP_ROPE), none = {0};
    fa_constant constant = {
        .name = "N", .type = FA_CONSTANT_FLOAT, .float_value = (double)__builtin_inff()};

    spec.tmpl = (fa_template_spec){.source = "caf\xe9", .entry = "k"};
    expect_not_written(&spec, FA_ERR_VALUE);
    spec.tmpl =
        (fa_template_spec){.source = "", .entry = "k", .constants = &constant, .constant_count = 1};
    expect_not_written(&spec, FA_ERR_VALUE);
    rope.rope.dtype = (fa_dtype)9;
    expect_not_written(&rope, FA_ERR_VALUE);
    expect_not_written(&none, FA_ERR_UNKNOWN_NAME);
}
