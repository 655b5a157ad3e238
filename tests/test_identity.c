/* What makes two kernels the same entry, and what does not. */
#include <criterion/criterion.h>
#include <locale.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utime.h>

#include "fixture.h"

typedef struct identity {
    char key[33];
    char *text;
} identity;

static identity identity_of(fa_context *ctx, const fa_spec *spec)
{
    fa_kernel *kernel = NULL;
    identity id = {0};
    fa_kernel_info_t info = {.size = sizeof info};
    fa_status status = fa_compile(ctx, spec, &kernel);
    cr_assert_eq(status, FA_OK, "%s", fa_last_error());
    OK(fa_kernel_info(kernel, &info));
    snprintf(id.key, sizeof id.key, "%s", info.key);
    id.text = strdup(info.key_text);
    cr_assert_not_null(id.text);
    fa_kernel_release(kernel);
    return id;
}

static void expect_identity(fa_context *ctx, const fa_spec *spec, const identity *base, bool same,
                            const char *what)
{
    identity id = identity_of(ctx, spec);
    cr_expect_eq(strcmp(id.key, base->key) == 0, same, "%s: the key %s\n%s", what,
                 same ? "changed" : "stayed", id.text);
    cr_expect_eq(strcmp(id.text, base->text) == 0, same, "%s: the key text %s", what,
                 same ? "changed" : "stayed");
    free(id.text);
}

/* A kernel with everything a template spec can hold. */
typedef struct rich {
    fa_spec spec;
    fa_constant constant[5];
    fa_header header[2];
    const char *option[2];
    char source[256], outer[128], inner[128];
} rich;

static void rich_init(rich *r)
{
    *r = (rich){.spec = FA_SPEC_INIT(FA_OP_TEMPLATE)};
    snprintf(r->source, sizeof r->source,
             "#include \"outer.h\"\n__global__ void scale(float *x)\n"
             "{\n    x[0] = N + R + B;\n}\n");
    snprintf(r->outer, sizeof r->outer, "#include \"inner.h\"\n#define OUTER 1\n");
    snprintf(r->inner, sizeof r->inner, "#define INNER 1\n");
    r->constant[0] = (fa_constant){.name = "N", .type = FA_CONSTANT_INT, .int_value = 3};
    r->constant[1] = (fa_constant){.name = "R", .type = FA_CONSTANT_FLOAT, .float_value = 1.5};
    r->constant[2] = (fa_constant){.name = "B", .type = FA_CONSTANT_BOOL, .int_value = 1};
    r->constant[3] = (fa_constant){.name = "T", .type = FA_CONSTANT_DTYPE, .int_value = FA_F16};
    r->constant[4] =
        (fa_constant){.name = "I", .type = FA_CONSTANT_IDENTIFIER, .identifier = "blockIdx"};
    r->header[0] = (fa_header){"outer.h", r->outer};
    r->header[1] = (fa_header){"inner.h", r->inner};
    r->option[0] = "--fmad=true";
    r->option[1] = "-DZ=1";
    r->spec.tmpl = (fa_template_spec){.name = "rich.cu",
                                      .source = r->source,
                                      .entry = "scale",
                                      .constants = r->constant,
                                      .constant_count = 5,
                                      .headers = r->header,
                                      .header_count = 2,
                                      .options = r->option,
                                      .option_count = 2};
}

/* --- content decides --- */

static void flip_each_byte(fa_context *ctx, const identity *base, rich *r, char *text,
                           const char *what)
{
    for (size_t i = 0; text[i]; i++) {
        char was = text[i], label[64];
        if (!strchr("0123456789", was)) /* stays a program: only digits are changed */
            continue;
        text[i] = was == '9' ? '8' : (char)(was + 1);
        snprintf(label, sizeof label, "byte %zu of %s", i, what);
        expect_identity(ctx, &r->spec, base, false, label);
        text[i] = was;
    }
    size_t len = strlen(text); /* white space counts too */
    strcpy(text + len, "\n");
    expect_identity(ctx, &r->spec, base, false, what);
    text[len] = '\0';
    expect_identity(ctx, &r->spec, base, true, what);
}

Test(identity, F29_every_byte_of_every_header_counts)
{
    fixture f;
    rich r;
    fixture_begin(&f);
    fa_context *ctx = fixture_offline("sm_90a");
    rich_init(&r);
    identity base = identity_of(ctx, &r.spec);
    flip_each_byte(ctx, &base, &r, r.outer, "the header included directly");
    flip_each_byte(ctx, &base, &r, r.inner, "the header included by the other");
    r.header[1].name = "inner2.h"; /* a name is content: it decides what an include finds */
    snprintf(r.outer, sizeof r.outer, "#include \"inner2.h\"\n#define OUTER 1\n");
    expect_identity(ctx, &r.spec, &base, false, "a header's name");
    free(base.text);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(identity, F31_same_name_with_another_body)
{
    fixture f;
    rich r;
    fixture_begin(&f);
    fa_context *ctx = fixture_offline("sm_90a");
    rich_init(&r);
    identity base = identity_of(ctx, &r.spec);
    char *three = strstr(r.source, "x[0]");
    cr_assert_not_null(three);
    three[2] = '1';
    expect_identity(ctx, &r.spec, &base, false, "the body");
    three[2] = '0';
    expect_identity(ctx, &r.spec, &base, true, "the body, back again");
    cr_expect_eq(f.nvrtc->calls("nvrtcCompileProgram"), 2);
    free(base.text);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(identity, F33_every_constant_counts)
{
    fixture f;
    rich r;
    fixture_begin(&f);
    fa_context *ctx = fixture_offline("sm_90a");
    rich_init(&r);
    identity base = identity_of(ctx, &r.spec);
    r.constant[0].int_value = 4;
    expect_identity(ctx, &r.spec, &base, false, "an integer");
    rich_init(&r);
    r.constant[1].float_value = 1.5000000000000002; /* the next double */
    expect_identity(ctx, &r.spec, &base, false, "a float by its last bit");
    rich_init(&r);
    r.constant[2].int_value = 0;
    expect_identity(ctx, &r.spec, &base, false, "a bool");
    rich_init(&r);
    r.constant[3].int_value = FA_BF16;
    expect_identity(ctx, &r.spec, &base, false, "a dtype");
    rich_init(&r);
    r.constant[4].identifier = "threadIdx";
    expect_identity(ctx, &r.spec, &base, false, "an identifier");
    rich_init(&r);
    r.constant[4].name = "J";
    expect_identity(ctx, &r.spec, &base, false, "a constant's name");
    rich_init(&r);
    r.constant[0].type = FA_CONSTANT_FLOAT;
    r.constant[0].float_value = 3;
    expect_identity(ctx, &r.spec, &base, false, "a constant's type");
    rich_init(&r);
    r.constant[0].float_value = 99; /* not this type's member: never read */
    r.constant[0].identifier = "unused";
    expect_identity(ctx, &r.spec, &base, true, "a member that the type does not use");
    free(base.text);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(identity, F33_every_option_counts_and_launch_settings_do_not)
{
    fixture f;
    rich r;
    fixture_begin(&f);
    fa_context *ctx = fixture_offline("sm_90a");
    rich_init(&r);
    identity base = identity_of(ctx, &r.spec);
    r.option[0] = "--fmad=false";
    expect_identity(ctx, &r.spec, &base, false, "an option");
    rich_init(&r);
    r.option[1] = "-DZ=2";
    expect_identity(ctx, &r.spec, &base, false, "a definition");
    rich_init(&r);
    r.spec.tmpl.option_count = 1;
    expect_identity(ctx, &r.spec, &base, false, "one option fewer");
    rich_init(&r); /* settings of the launch do not reach the compiler */
    r.spec.tmpl.smem_bytes = 1024;
    expect_identity(ctx, &r.spec, &base, true, "dynamic shared memory");
    r.spec.tmpl.cooperative = true;
    expect_identity(ctx, &r.spec, &base, true, "cooperative launch");
    cr_expect_eq(f.nvrtc->calls("nvrtcCompileProgram"), 4);
    free(base.text);
    fa_context_destroy(ctx);

    const char *const arch[] = {"sm_90", "sm_100a", "sm_80"};
    rich_init(&r);
    ctx = fixture_offline("sm_90a");
    base = identity_of(ctx, &r.spec);
    fa_context_destroy(ctx);
    for (size_t i = 0; i < 3; i++) {
        ctx = fixture_offline(arch[i]);
        expect_identity(ctx, &r.spec, &base, false, arch[i]);
        fa_context_destroy(ctx);
    }
    free(base.text);
    fixture_end(&f);
}

/* What a parameter needs beside it to have a meaning, and a value that differs from there. */
typedef struct company {
    const char *name, *with, *value;
} company;

static const company rope_company[] = {
    {"head_dim", "", "128"},
    {"scaling", "factor=4", "linear"}, /* the factor is refused without it */
    {"factor", "scaling=linear factor=4", "2"},
    {"original_max_position", "scaling=llama3 factor=4 original_max_position=8192", "4096"},
    {"sequence_length", "scaling=dynamic_ntk factor=4 original_max_position=8192", "16384"},
    {"untruncated", "scaling=yarn factor=4 original_max_position=8192", "true"},
    {"beta_fast", "scaling=yarn factor=4 original_max_position=8192", "16"},
    {"beta_slow", "scaling=yarn factor=4 original_max_position=8192", "2"},
    {"low_freq_factor", "scaling=llama3 factor=4 original_max_position=8192", "2"},
    {"high_freq_factor", "scaling=llama3 factor=4 original_max_position=8192", "8"},
    {"position_type", "positions=vector", "i64"},
    {"sections", "positions=vector", "split"},
    {"section_t", "positions=vector sections=split section_t=4 section_h=8 section_w=4", "8"},
    {"section_h", "positions=vector sections=split section_t=4 section_h=8 section_w=4", "4"},
    {"section_w", "positions=vector sections=split section_t=4 section_h=4 section_w=8", "4"},
    {"norm_unit_offset", "norm=rms", "true"},
    {"norm_eps", "norm=rms", "0.001"},
};

static void set_all(fa_spec *spec, const char *pairs)
{
    char text[256], *save = NULL;
    snprintf(text, sizeof text, "%s", pairs);
    for (char *pair = strtok_r(text, " ", &save); pair; pair = strtok_r(NULL, " ", &save)) {
        char *equals = strchr(pair, '=');
        cr_assert_not_null(equals);
        *equals = '\0';
        cr_assert_eq(fa_spec_set(spec, pair, equals + 1), FA_OK, "%s", fa_last_error());
    }
}

static company company_of(const fa_param_info *p)
{
    for (size_t i = 0; i < sizeof rope_company / sizeof rope_company[0]; i++)
        if (strcmp(rope_company[i].name, p->name) == 0)
            return rope_company[i];
    return (company){p->name, "",
                     p->kind == FA_PARAM_BOOL   ? "true"
                     : p->kind == FA_PARAM_ENUM ? p->names[1]
                     : p->kind == FA_PARAM_REAL ? "500000"
                                                : "16"};
}

/* What a changed parameter takes along so that the spec stays legal. */
static const char *taken_along(const char *name)
{
    return strcmp(name, "section_t") == 0   ? "section_h=4"
           : strcmp(name, "section_h") == 0 ? "section_t=8"
           : strcmp(name, "section_w") == 0 ? "section_h=8"
           : strcmp(name, "sections") == 0  ? "section_t=8 section_h=4 section_w=4"
                                            : "";
}

Test(identity, F33_every_rope_parameter_counts)
{
    fixture f;
    fa_op_info_t op;
    fixture_begin(&f);
    fa_context *ctx = fixture_offline("sm_90a");
    OK(fa_op_info(FA_OP_ROPE, &op));
    fa_spec plain = FA_SPEC_INIT(FA_OP_ROPE);
    plain.rope.head_dim = 64;
    plain.rope.rotary_dim = 32;
    plain.rope.heads_q = 32;
    plain.rope.heads_k = 4;
    for (size_t i = 0; i < op.param_count; i++) {
        const company c = company_of(&op.params[i]);
        fa_spec before = plain, after = plain;
        if (strcmp(c.name, "scaling") != 0)
            set_all(&before, c.with);
        set_all(&after, c.with);
        OK(fa_spec_set(&after, c.name, c.value));
        set_all(&after, taken_along(c.name));
        identity base = identity_of(ctx, &before);
        /* where things lie is known at the launch: the layout does not reach the compiler */
        expect_identity(ctx, &after, &base, strcmp(c.name, "layout") == 0, c.name);
        free(base.text);
    }
    identity base = identity_of(ctx, &plain);
    fa_spec spec = plain; /* two spellings of one kernel */
    spec.rope.base = 10000;
    spec.rope.scaling.attention_factor = 1;
    expect_identity(ctx, &spec, &base, true, "the defaults spelled out");
    free(base.text);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

/* --- compiler builds --- */

static void key_with(const char *library, char *key, size_t size)
{
    char path[PATH_MAX], name[64];
    const char *const argv[] = {"key", "5", NULL};
    snprintf(name, sizeof name, "lib%s.so", library);
    fixture_path(name, path, sizeof path);
    setenv("FAJIT_NVRTC_LIBRARY", path, 1);
    cr_assert_eq(fixture_run(key, size, argv), 0);
    cr_expect_eq(strlen(key), 32u, "%s", key);
}

Test(identity, F33_builds_of_one_compiler_version_are_told_apart)
{
    fixture f;
    const char *const libraries[] = {"fake_nvrtc", "fake_nvrtc_b", "fake_nvrtc_noid_a",
                                     "fake_nvrtc_noid_b", "fake_nvrtc_old"};
    char key[5][64], again[64];
    fixture_begin(&f);
    for (int i = 0; i < 5; i++) {
        key_with(libraries[i], key[i], sizeof key[i]);
        key_with(libraries[i], again, sizeof again);
        cr_expect_str_eq(again, key[i]);
        for (int j = 0; j < i; j++)
            cr_expect_str_neq(key[i], key[j], "%s and %s share a key", libraries[i], libraries[j]);
    }
    cr_expect_eq(fixture_compiles(&f), 5u);
    fixture_end(&f);
}

/* --- what does not count --- */

Test(identity, F34_F28_surroundings_do_not_count)
{
    fixture f;
    char key[64], again[64], elsewhere[300], path[PATH_MAX], copy[400], command[PATH_MAX + 500];
    const char *const argv[] = {"key", "5", NULL};
    fixture_begin(&f);
    cr_assert_eq(fixture_run(key, sizeof key, argv), 0);

    snprintf(elsewhere, sizeof elsewhere, "%s/else where", f.dir);
    cr_assert_eq(mkdir(elsewhere, 0700), 0);
    cr_assert_eq(chdir(elsewhere), 0);
    cr_assert_eq(fixture_run(again, sizeof again, argv), 0);
    cr_expect_str_eq(again, key, "the working directory counts");

    setenv("ZZZ_ONE", "1", 1);
    setenv("AAA_TWO", "2", 1);
    setenv("TZ", "Asia/Tokyo", 1);
    unsetenv("HOME");
    cr_assert_eq(fixture_run(again, sizeof again, argv), 0);
    cr_expect_str_eq(again, key, "the environment counts");

    fixture_path("libfake_nvrtc.so", path, sizeof path); /* the same build at another path */
    snprintf(copy, sizeof copy, "%s/libnvrtc-copy.so", elsewhere);
    snprintf(command, sizeof command, "cp '%s' '%s'", path, copy);
    cr_assert_eq(system(command), 0);
    setenv("FAJIT_NVRTC_LIBRARY", copy, 1);
    cr_assert_eq(fixture_run(again, sizeof again, argv), 0);
    cr_expect_str_eq(again, key, "the compiler's path counts");

    const struct utimbuf old = {.actime = 1, .modtime = 1};
    cr_assert_eq(utime(copy, &old), 0);
    cr_assert_eq(fixture_run(again, sizeof again, argv), 0);
    cr_expect_str_eq(again, key, "the compiler's file time counts");
    cr_expect_eq(fixture_compiles(&f), 1u);
    fixture_end(&f);
}

Test(identity, F26_F28_key_text_holds_no_path_time_or_device)
{
    fixture f;
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    scale_spec s;
    scale_spec_init(&s, 1);
    identity id = identity_of(ctx, &s.spec);
    cr_expect_null(strstr(id.text, f.dir));
    cr_expect_null(strstr(id.text, "/"), "a path in:\n%s", id.text);
    cr_expect_null(strstr(id.text, "look-alike"), "the device's name in:\n%s", id.text);
    cr_expect_not_null(strstr(id.text, "sm_90a"));
    free(id.text);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

/* A file whose time says "older" or "newer" than anything is still what its content is. */
Test(identity, F26_file_times_do_not_decide)
{
    fixture f;
    char command[700];
    fa_stats stats = {.size = sizeof stats};
    fixture_begin(&f);
    fa_context *ctx = fixture_context();
    fa_kernel_release(fixture_compile(ctx, 1));
    fa_context_destroy(ctx);
    const char *const times[] = {"1971-01-01", "2199-01-01"};
    for (int i = 0; i < 2; i++) {
        snprintf(command, sizeof command, "find '%s' -type f -exec touch -d %s {} +", f.cache,
                 times[i]);
        cr_assert_eq(system(command), 0);
        ctx = fixture_context();
        fa_kernel_release(fixture_compile(ctx, 1));
        OK(fa_stats_get(ctx, &stats));
        cr_expect_eq(stats.disk_hits, 1u, "%s", times[i]);
        fa_context_destroy(ctx);
    }
    fixture_end(&f);
}

/* --- locale --- */

static char *render_rich(fa_context *ctx)
{
    rich r;
    char *text = NULL;
    rich_init(&r);
    r.constant[1].float_value = 1234567.890625;
    OK(fa_render(ctx, &r.spec, FA_TEXT_SOURCE, &text));
    return text;
}

static char *render_rope(fa_context *ctx)
{
    char *text = NULL;
    fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE);
    spec.rope.head_dim = 64;
    spec.rope.base = 1234.5;
    OK(fa_render(ctx, &spec, FA_TEXT_SOURCE, &text));
    return text;
}

Test(identity, F37_decimal_commas_change_nothing)
{
    fixture f;
    char key[64], again[64], number[16];
    const char *const argv[] = {"key", "5", NULL};
    fixture_begin(&f);
    const char *name = fixture_comma_locale(&f);
    if (!name[0])
        cr_skip_test("no locale with decimal commas, and localedef cannot make one");
    fa_context *ctx = fixture_offline("sm_90a");
    char *source = render_rich(ctx), *rope = render_rope(ctx);
    fa_spec plain = FA_SPEC_INIT(FA_OP_ROPE), comma = FA_SPEC_INIT(FA_OP_ROPE);
    OK(fa_spec_set(&plain, "base", "1234.5"));
    cr_assert_eq(fixture_run(key, sizeof key, argv), 0);

    cr_assert_not_null(setlocale(LC_ALL, name));
    snprintf(number, sizeof number, "%.1f", 1.5);
    cr_assert_str_eq(number, "1,5", "the locale has no comma");
    char *source2 = render_rich(ctx), *rope2 = render_rope(ctx);
    cr_expect_str_eq(source2, source);
    cr_expect_str_eq(rope2, rope);
    OK(fa_spec_set(&comma, "base", "1234.5"));
    cr_expect_eq(comma.rope.base, plain.rope.base);
    setenv("LC_ALL", name, 1); /* the child calls setlocale */
    cr_assert_eq(fixture_run(again, sizeof again, argv), 0);
    cr_expect_str_eq(again, key);
    free(source);
    free(rope);
    free(source2);
    free(rope2);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(identity, F37_manifest_under_decimal_commas)
{
    fixture f;
    char path[400];
    fa_warm_report report;
    fa_kernel *kernel = NULL;
    fixture_begin(&f);
    const char *name = fixture_comma_locale(&f);
    if (!name[0])
        cr_skip_test("no locale with decimal commas, and localedef cannot make one");
    cr_assert_not_null(setlocale(LC_ALL, name));
    fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE);
    spec.rope.head_dim = 64;
    spec.rope.base = 1234.5;
    fa_context *ctx = fixture_offline("sm_90a");
    OK(fa_compile(ctx, &spec, &kernel));
    fa_kernel_release(kernel);
    snprintf(path, sizeof path, "%s/m.json", f.dir);
    OK(fa_manifest_write(ctx, path));
    fa_context_destroy(ctx);
    setlocale(LC_ALL, "C");
    ctx = fixture_offline("sm_90a");
    OK(fa_warm_manifest(ctx, path, NULL, &report));
    cr_expect_eq(report.from_disk, 1u);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

typedef struct flipper {
    const char *name;
    atomic_bool stop;
} flipper;

static void *flip_locale(void *arg)
{
    flipper *fl = arg;
    locale_t comma = newlocale(LC_ALL_MASK, fl->name, (locale_t)0);
    while (!atomic_load(&fl->stop)) {
        uselocale(comma);
        usleep(50);
        uselocale(LC_GLOBAL_LOCALE);
    }
    freelocale(comma);
    return NULL;
}

Test(identity, F38_another_thread_flips_its_locale)
{
    fixture f;
    pthread_t thread;
    flipper fl = {.name = "C.UTF-8"};
    fixture_begin(&f);
    const char *name = fixture_comma_locale(&f);
    if (name[0])
        fl.name = name;
    const char *before = setlocale(LC_ALL, NULL);
    fa_context *ctx = fixture_offline("sm_90a");
    char *source = render_rich(ctx);
    cr_assert_eq(pthread_create(&thread, NULL, flip_locale, &fl), 0);
    for (int i = 0; i < 300; i++) {
        char *again = render_rich(ctx);
        cr_expect_str_eq(again, source);
        free(again);
        fa_kernel_release(fixture_compile(ctx, i % 8));
    }
    atomic_store(&fl.stop, true);
    pthread_join(thread, NULL);
    cr_expect_str_eq(setlocale(LC_ALL, NULL), before);
    free(source);
    fa_context_destroy(ctx);
    fixture_end(&f);
}
