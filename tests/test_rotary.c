/* Rotary angles without a GPU: what a scaling refuses, its defaults and labels, the rule that the
 * host makes; and the reference of the formulas against golden data. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"
#include "golden.h"
#include "ops/rotary.h"
#include "oracle/rope.h"
#include "oracle/rotary.h"

static fa_status check(fa_rope_angles angles, double *base, fa_rope_scaling *s, int rotary_dim)
{
    const fa__rotary r = {"rope", angles, base, s, rotary_dim};
    return fa__rotary_check(&r);
}

/* --- arithmetic --- */

Test(rotary, logarithm_of_the_base)
{
    /* Values of log2(base) * 2^54 by arithmetic of 200 bits. */
    const struct {
        double base;
        uint64_t value;
    } cases[] = {
        {2, UINT64_C(1) << 54},
        {4, UINT64_C(2) << 54},
        {10000, UINT64_C(239370146084580908)},
        {500000, UINT64_C(341040820617389378)},
        {1.0000000000000002, 6},
        {1.5, UINT64_C(10537747601094050)},
        {1.7976931348623157e308, UINT64_C(18446744073709551613)},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t value = fa__rotary_log2_q54(cases[i].base);
        uint64_t error = value > cases[i].value ? value - cases[i].value : cases[i].value - value;
        cr_expect(error <= 1, "log2(%g): %llu, not %llu", cases[i].base, (unsigned long long)value,
                  (unsigned long long)cases[i].value);
    }
}

Test(rotary, ramp_is_normalized)
{
    const struct {
        fa_rope_scaling s;
        double low, high; /* in units of the ramp, / 2^64 */
    } cases[] = {
        /* bands from 8192 / 1 to 8192 / 4 positions a turn */
        {{.kind = FA_ROPE_LLAMA3,
          .factor = 8,
          .original_max_position = 8192,
          .low_freq_factor = 1,
          .high_freq_factor = 4},
         1.0 / 8192,
         4.0 / 8192},
        /* pairs floor(16.13) and ceil(40.21) of base 10000, in units of 2^-48 */
        {{.kind = FA_ROPE_YARN,
          .factor = 16,
          .original_max_position = 2048,
          .beta_fast = 32,
          .beta_slow = 1},
         16 * 0x1p-16,
         41 * 0x1p-16},
    };
    for (size_t i = 0; i < 2; i++) {
        const fa__rotary_rule r = fa__rotary_rule_make(10000, &cases[i].s, 128, 0);
        cr_expect_float_eq((double)r.ramp_low * 0x1p-64, cases[i].low, 1e-15);
        cr_expect_float_eq((double)r.ramp_high * 0x1p-64, cases[i].high, 1e-15);
        cr_expect_float_eq((double)r.inverse_factor * 0x1p-64, 1 / cases[i].s.factor, 1e-16);
        const uint64_t span = (r.ramp_high - r.ramp_low) << r.ramp_shift;
        cr_expect(span >> 63, "case %zu", i);
        cr_expect(r.ramp_step >> 63, "case %zu", i);
        cr_expect_float_eq((double)r.ramp_step * (double)span, 0x1p127, 0x1p76, "case %zu", i);
    }
}

Test(rotary, factor_1_leaves_frequencies_as_they_are)
{
    const fa_rope_scaling s = {.kind = FA_ROPE_LINEAR, .factor = 1};
    cr_expect_eq(fa__rotary_rule_make(10000, &s, 64, 0).inverse_factor, UINT64_MAX);
}

/* --- specs --- */

#define YARN(by, ...)                                                                              \
    {                                                                                              \
        .kind = FA_ROPE_YARN, .factor = (by), .original_max_position = 4096, __VA_ARGS__           \
    }
#define LLAMA(...)                                                                                 \
    {                                                                                              \
        .kind = FA_ROPE_LLAMA3, .factor = 8, .original_max_position = 8192, __VA_ARGS__            \
    }

Test(rotary, refusals_name_the_field)
{
    const struct {
        fa_rope_angles angles;
        double base;
        int rotary_dim;
        fa_rope_scaling s;
        fa_status status;
        const char *word;
    } cases[] = {
        {0, 0, 64, {.factor = 2}, FA_ERR_VALUE, "factor = 2; it has no meaning with scaling none"},
        {0, 0, 64, {.beta_fast = 2}, FA_ERR_VALUE, "beta_fast"},
        {0, 0, 64, {.kind = FA_ROPE_LINEAR}, FA_ERR_VALUE, "factor = 0"},
        {0, 0, 64, {.kind = FA_ROPE_NTK}, FA_ERR_VALUE, "factor = 0"},
        {0,
         0,
         64,
         {.kind = FA_ROPE_LINEAR, .factor = 2, .original_max_position = 5},
         FA_ERR_VALUE,
         "original_max_position = 5"},
        {0,
         0,
         64,
         {.kind = FA_ROPE_NTK, .factor = 2, .sequence_length = 5},
         FA_ERR_VALUE,
         "sequence_length = 5"},
        {0,
         0,
         64,
         {.kind = FA_ROPE_DYNAMIC_NTK, .factor = 2},
         FA_ERR_VALUE,
         "original_max_position = 0"},
        {0, 0, 64, {.kind = FA_ROPE_YARN, .factor = 2}, FA_ERR_VALUE, "original_max_position = 0"},
        {0,
         0,
         64,
         {.kind = FA_ROPE_LLAMA3, .factor = 2},
         FA_ERR_VALUE,
         "original_max_position = 0"},
        {0, 0, 64, YARN(4, .low_freq_factor = 2), FA_ERR_VALUE, "low_freq_factor = 2"},
        {0, 0, 64, YARN(4, .beta_fast = 0.5), FA_ERR_VALUE, "beta_fast = 0.5"},
        {0, 0, 64, YARN(4, .beta_slow = 33), FA_ERR_VALUE, "smaller than beta_slow"},
        {0, 0, 64, LLAMA(.untruncated = true), FA_ERR_VALUE, "untruncated = 1"},
        {0, 0, 64, LLAMA(.low_freq_factor = 4), FA_ERR_VALUE, "high_freq_factor = 4"},
        {0, 0, 64, LLAMA(.high_freq_factor = 8192), FA_ERR_VALUE, "original_max_position"},
        {0, 0, 2, {.kind = FA_ROPE_NTK, .factor = 2}, FA_ERR_ROTARY_DIM, "rotary_dim = 2"},
        {0, 1e251, 64, {.kind = FA_ROPE_NTK, .factor = 2}, FA_ERR_VALUE, "base = 1e251"},
        {0, 1, 64, {0}, FA_ERR_VALUE, "base = 1"},
        {FA_ROPE_TABLES, 0, 64, YARN(4, 0), FA_ERR_VALUE, "scaling = yarn, but angles = tables"},
        {FA_ROPE_FREQUENCIES, 0, 64, LLAMA(0), FA_ERR_VALUE, "angles = frequencies"},
        {FA_ROPE_TABLES, 0, 64, {.attention_factor = 2}, FA_ERR_VALUE, "attention_factor = 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double base = cases[i].base;
        fa_rope_scaling s = cases[i].s;
        REFUSED(check(cases[i].angles, &base, &s, cases[i].rotary_dim), cases[i].status,
                cases[i].word);
    }
}

/* The table of parameters holds their ranges. */
Test(rotary, values_out_of_range)
{
    static const char *const bad[][2] = {{"scaling", "su"},          {"factor", "0.5"},
                                         {"factor", "1e7"},          {"factor", "nan"},
                                         {"beta_fast", "-1"},        {"low_freq_factor", "-1"},
                                         {"attention_factor", "-1"}, {"high_freq_factor", "1e9"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE);
        REFUSED(fa_spec_set(&spec, bad[i][0], bad[i][1]), FA_ERR_VALUE, bad[i][0]);
    }
    fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE);
    REFUSED(fa_spec_set(&spec, "original_max_position", "-1"), FA_ERR_SIZE, "-1");
}

/* Checking twice changes nothing: a spec that a manifest brings back is in its one form already. */
Test(rotary, defaults_are_filled_in_once)
{
    const fa_rope_scaling kinds[] = {
        {0},
        YARN(4, 0),
        LLAMA(0),
        {.kind = FA_ROPE_DYNAMIC_NTK, .factor = 2, .original_max_position = 9}};
    for (int angles = 0; angles < 3; angles++)
        for (size_t i = 0; i < (angles ? 1 : 4); i++) {
            double base = 0, again = 0;
            fa_rope_scaling s = kinds[i];
            OK(check((fa_rope_angles)angles, &base, &s, 64));
            fa_rope_scaling twice = s;
            again = base;
            OK(check((fa_rope_angles)angles, &again, &twice, 64));
            cr_expect_eq(memcmp(&s, &twice, sizeof s), 0);
            cr_expect_eq(base, again);
            cr_expect_eq(base, angles ? 0.0 : 10000.0);
        }
    double base = 0;
    fa_rope_scaling yarn = YARN(16, 0), llama = LLAMA(0);
    OK(check(FA_ROPE_COMPUTED, &base, &yarn, 64));
    cr_expect_eq(yarn.beta_fast, 32.0);
    cr_expect_eq(yarn.beta_slow, 1.0);
    cr_expect_float_eq(yarn.attention_factor, 1.2772588722239782, 1e-15);
    OK(check(FA_ROPE_COMPUTED, &base, &llama, 64));
    cr_expect_eq(llama.low_freq_factor, 1.0);
    cr_expect_eq(llama.high_freq_factor, 4.0);
    cr_expect_eq(llama.attention_factor, 1.0);
}

Test(rotary, labels)
{
    const struct {
        double base;
        fa_rope_scaling s;
        const char *text;
    } cases[] = {
        {0, {0}, ""},
        {5e5, {.kind = FA_ROPE_LINEAR, .factor = 4}, " base=500000 linear factor=4"},
        {0, YARN(4, 0), " yarn factor=4 original_max_position=4096"},
        {0, YARN(4, .untruncated = true, .beta_slow = 2, .attention_factor = 1),
         " yarn factor=4 original_max_position=4096 untruncated beta_slow=2 attention_factor=1"},
        {0, LLAMA(.high_freq_factor = 5),
         " llama3 factor=8 original_max_position=8192 "
         "high_freq_factor=5"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[256] = "";
        fa__buf label = fa__buf_on(text, sizeof text);
        double base = cases[i].base;
        fa_rope_scaling s = cases[i].s;
        OK(check(FA_ROPE_COMPUTED, &base, &s, 64));
        const fa__rotary r = {"rope", FA_ROPE_COMPUTED, &base, &s, 64};
        fa__rotary_label(&label, &r);
        cr_expect_str_eq(text, cases[i].text);
    }
}

/* --- the reference --- */

/* Made in float32: right to a few units of that. */
Test(rotary, golden_frequencies)
{
    const struct {
        const char *name;
        fa_rope_scaling s;
    } cases[] = {
        {"rope_linear", {.kind = FA_ROPE_LINEAR, .factor = 4}},
        {"rope_dynamic",
         {.kind = FA_ROPE_DYNAMIC_NTK, .factor = 2, .original_max_position = 65536}},
        {"rope_yarn", YARN(16, 0)},
        {"rope_llama3", LLAMA(0)},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[64];
        double golden[64];
        snprintf(name, sizeof name, "%s.inv_freq", cases[i].name);
        golden_read(name, golden, 64);
        for (int j = 0; j < 64; j++) {
            const double f = oracle_rotary_frequency(500000, &cases[i].s, 128, 131072, j);
            cr_expect(fabs(f - golden[j]) <= 1e-6 * golden[j], "%s: pair %d: %.9g, not %.9g", name,
                      j, f, golden[j]);
        }
    }
}

/* The golden outputs come from those frequencies as float32: given as a vector, they are met. */
Test(rotary, golden_outputs)
{
    static const int32_t positions[] = {0, 1, 4095, 60001};
    static const char *const names[] = {"rope_linear", "rope_dynamic", "rope_yarn", "rope_llama3"};
    for (size_t i = 0; i < 4; i++) {
        char name[64], why[256];
        double inv_freq[64], golden[2 * 4 * 128], worst = 0;
        oracle_case c;
        fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE);
        spec.rope = (fa_rope_spec){.angles = FA_ROPE_FREQUENCIES,
                                   .positions = FA_ROPE_VECTOR,
                                   .head_dim = 128,
                                   .batch = 1,
                                   .heads_q = 2,
                                   .seqlen = 4};
        if (i == 2)
            spec.rope.scaling.attention_factor = 1.2772588722239782;
        cr_assert(fa_oracle_rope.make_case(&spec, &spec, NULL, 4, &c, why, sizeof why), "%s", why);
        memcpy(oracle_find_tensor(&c, "positions")->host, positions, sizeof positions);
        snprintf(name, sizeof name, "%s.inv_freq", names[i]);
        golden_read(name, inv_freq, 64);
        for (int j = 0; j < 64; j++)
            ((float *)oracle_find_tensor(&c, "inv_freq")->host)[j] = (float)inv_freq[j];
        oracle_rope_expect(&c);
        snprintf(name, sizeof name, "%s.q", names[i]);
        golden_read(name, golden, 2 * 4 * 128);
        for (size_t k = 0; k < 2 * 4 * 128; k++)
            worst = fmax(worst, fabs(golden[k] - oracle_find_tensor(&c, "q_out")->expected[k]));
        cr_expect(worst <= 1e-10, "%s: off by %g", name, worst);
        fa_oracle_rope.free_case(&c);
    }
}
