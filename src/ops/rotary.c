/* Frequencies of rotary embeddings. See rotary.h. */
#include "ops/rotary.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "json.h"
#include "status.h"

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF /* a fused multiply-add would round once where others round twice */
#endif

__extension__ typedef unsigned __int128 u128;

const char *const fa__rotary_style_names[] = {"half", "interleaved", NULL};
const char *const fa__rotary_angles_names[] = {"computed", "tables", "frequencies", NULL};
const char *const fa__rotary_scaling_names[] = {"none", "linear", "ntk", "dynamic_ntk",
                                                "yarn", "llama3", NULL};
const char *const fa__index_names[] = {"i32", "i64", NULL};

#define DEFAULT_BETA_FAST 32.0
#define DEFAULT_BETA_SLOW 1.0
#define DEFAULT_LOW_FREQ_FACTOR 1.0
#define DEFAULT_HIGH_FREQ_FACTOR 4.0
#define MAX_NTK_BASE 1e250 /* times factor^2 it is still a finite double */

/* --- arithmetic --- */

/* x = mantissa * 2^exponent, the mantissa of 53 bits. */
static uint64_t split(double x, int *exponent)
{
    double fraction = frexp(x, exponent);
    *exponent -= 53;
    return (uint64_t)ldexp(fraction, 53);
}

static uint64_t multiply_high(uint64_t a, uint64_t b)
{
    return (uint64_t)((u128)a * b >> 64);
}

/* a / b * 2^64, at most 2^64 - 1; a and b positive. */
static uint64_t ratio_q64(double a, double b)
{
    int exponent_a, exponent_b;
    const uint64_t mantissa_a = split(a, &exponent_a), mantissa_b = split(b, &exponent_b);
    const u128 quotient = ((u128)mantissa_a << 64) / mantissa_b; /* from 2^63 to below 2^65 */
    const int right = exponent_b - exponent_a;
    if (right < 0)
        return UINT64_MAX;
    const u128 shifted = right > 127 ? 0 : quotient >> right;
    return shifted >> 64 ? UINT64_MAX : (uint64_t)shifted;
}

/* By the series of the inverse hyperbolic tangent: log2(m) = 2 / ln 2 * (r + r^3/3 + r^5/5 + ...)
 * with r = (m - 1) / (m + 1), m within a factor of sqrt(2) from 1, so that r^2 < 0.03. */
uint64_t fa__rotary_log2_q54(double x)
{
    const uint64_t two_over_ln2_q62 = UINT64_C(0xb8aa3b295c17f0bb);
    const uint64_t one = UINT64_C(1) << 52, root2 = UINT64_C(6369051672525772); /* * 2^52 */
    uint64_t bits = 0;
    memcpy(&bits, &x, sizeof bits);
    int64_t exponent = (int64_t)(bits >> 52) - 1023;
    const uint64_t mantissa = (bits & (one - 1)) | one;
    const bool below = mantissa > root2; /* m = mantissa / 2^53 < 1 */
    if (below)
        exponent++;
    const uint64_t unit = below ? 2 * one : one;
    const uint64_t difference = below ? unit - mantissa : mantissa - unit;
    const uint64_t ratio = (uint64_t)(((u128)difference << 64) / (mantissa + unit));
    const uint64_t square = multiply_high(ratio, ratio);
    /* Multiplied instead of divided: some launches come by here. Term 27 is below 2^-70. */
    static const uint64_t inverse[] = {UINT64_MAX / 3,  UINT64_MAX / 5,  UINT64_MAX / 7,
                                       UINT64_MAX / 9,  UINT64_MAX / 11, UINT64_MAX / 13,
                                       UINT64_MAX / 15, UINT64_MAX / 17, UINT64_MAX / 19,
                                       UINT64_MAX / 21, UINT64_MAX / 23, UINT64_MAX / 25};
    uint64_t power = ratio, sum = ratio;
    for (size_t i = 0; i < sizeof inverse / sizeof inverse[0]; i++) {
        power = multiply_high(power, square);
        sum += multiply_high(power, inverse[i]);
    }
    const uint64_t fraction = (multiply_high(sum, two_over_ln2_q62) + 128) >> 8; /* * 2^54 */
    const uint64_t whole = (uint64_t)exponent << 54;
    return below ? whole - fraction : whole + fraction;
}

/* log2(x) for positive x, to double. */
static double log2_of(double x)
{
    return x >= 1 ? (double)fa__rotary_log2_q54(x) * 0x1p-54
                  : -((double)fa__rotary_log2_q54(1 / x) * 0x1p-54);
}

static double default_attention_factor(const fa_rope_scaling *s)
{
    if (s->kind != FA_ROPE_YARN)
        return 1;
    const double natural = log2_of(s->factor) * 0.693147180559945309;
    const double part = 0.1 * natural;
    return part + 1;
}

/* --- checking --- */

static fa_status refuse_real(const char *op, const char *name, double value, const char *reason)
{
    fa__buf text = {0};
    fa__json_real(&text, value);
    fa_status status = fa__fail(FA_ERR_VALUE, "%s: %s = %s; %s (fa_%s_spec.scaling.%s)", op, name,
                                text.data ? text.data : "?", reason, op, name);
    fa__buf_free(&text);
    return status;
}

/* Members that a kind of scaling uses, a bit each. */
enum { FACTOR = 1, ORIGINAL = 2, LENGTH = 4, BETAS = 8, LLAMA = 16 };

static const unsigned members_of[] = {
    [FA_ROPE_UNSCALED] = 0,
    [FA_ROPE_LINEAR] = FACTOR,
    [FA_ROPE_NTK] = FACTOR,
    [FA_ROPE_DYNAMIC_NTK] = FACTOR | ORIGINAL | LENGTH,
    [FA_ROPE_YARN] = FACTOR | ORIGINAL | BETAS,
    [FA_ROPE_LLAMA3] = FACTOR | ORIGINAL | LLAMA,
};

static fa_status refuse_unused(const char *op, const fa_rope_scaling *s)
{
    const unsigned uses = members_of[s->kind];
    const struct {
        unsigned member;
        const char *name;
        double value;
    } members[] = {
        {FACTOR, "factor", s->factor},
        {ORIGINAL, "original_max_position", s->original_max_position},
        {LENGTH, "sequence_length", s->sequence_length},
        {BETAS, "untruncated", s->untruncated},
        {BETAS, "beta_fast", s->beta_fast},
        {BETAS, "beta_slow", s->beta_slow},
        {LLAMA, "low_freq_factor", s->low_freq_factor},
        {LLAMA, "high_freq_factor", s->high_freq_factor},
    };
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        if (members[i].value == 0 || uses & members[i].member)
            continue;
        char reason[96];
        fa__buf text = fa__buf_on(reason, sizeof reason);
        fa__buf_format(&text, "it has no meaning with scaling %s; leave it at 0",
                       fa__rotary_scaling_names[s->kind]);
        return refuse_real(op, members[i].name, members[i].value, reason);
    }
    if (uses & FACTOR && s->factor == 0)
        return refuse_real(op, "factor", 0, "this scaling needs one, 1 to 1e6");
    if (uses & ORIGINAL && s->original_max_position == 0)
        return refuse_real(op, "original_max_position", 0, "this scaling needs the trained length");
    return FA_OK;
}

static fa_status check_bounds(const char *op, const fa_rope_scaling *s)
{
    if (s->kind == FA_ROPE_YARN && s->beta_fast < s->beta_slow)
        return refuse_real(op, "beta_fast", s->beta_fast, "it is smaller than beta_slow");
    if (s->kind == FA_ROPE_LLAMA3 && s->high_freq_factor <= s->low_freq_factor)
        return refuse_real(op, "high_freq_factor", s->high_freq_factor,
                           "it must be larger than low_freq_factor");
    if (s->kind == FA_ROPE_LLAMA3 && s->high_freq_factor >= s->original_max_position)
        return refuse_real(op, "high_freq_factor", s->high_freq_factor,
                           "it must be smaller than original_max_position");
    return FA_OK;
}

static bool is_ntk(const fa_rope_scaling *s)
{
    return s->kind == FA_ROPE_NTK || s->kind == FA_ROPE_DYNAMIC_NTK;
}

static fa_status check_base(const fa__rotary *r)
{
    const char *reason =
        *r->base == 1 ? "over 1 is needed, or 0 for 10000"
        : r->angles != FA_ROPE_COMPUTED || !is_ntk(r->scaling) || *r->base <= MAX_NTK_BASE
            ? NULL
            : "at most 1e250 with NTK scaling";
    if (!reason)
        return FA_OK;
    fa__buf text = {0};
    fa__json_real(&text, *r->base);
    fa_status status = fa__fail(FA_ERR_VALUE, "%s: base = %s; %s (fa_%s_spec.base)", r->op,
                                text.data ? text.data : "?", reason, r->op);
    fa__buf_free(&text);
    return status;
}

static void fill(double *value, double by)
{
    *value = *value == 0 ? by : *value;
}

fa_status fa__rotary_check(const fa__rotary *r)
{
    fa_rope_scaling *s = r->scaling;
    if (r->angles != FA_ROPE_COMPUTED && s->kind != FA_ROPE_UNSCALED)
        return fa__fail(FA_ERR_VALUE,
                        "%s: scaling = %s, but angles = %s hold their scaling already; it belongs "
                        "to computed angles (fa_%s_spec.scaling.kind)",
                        r->op, fa__rotary_scaling_names[s->kind],
                        fa__rotary_angles_names[r->angles], r->op);
    if (r->angles == FA_ROPE_TABLES && s->attention_factor != 0)
        return refuse_real(r->op, "attention_factor", s->attention_factor,
                           "tables hold it already; leave it at 0");
    fa_status status = check_base(r);
    if (!status)
        status = refuse_unused(r->op, s);
    if (status)
        return status;
    if (is_ntk(s) && r->rotary_dim == 2)
        return fa__fail(FA_ERR_ROTARY_DIM,
                        "%s: rotary_dim = 2 has no frequency that NTK scaling could change; at "
                        "least 4 (fa_%s_spec.rotary_dim)",
                        r->op, r->op);
    if (s->kind == FA_ROPE_YARN) {
        fill(&s->beta_fast, DEFAULT_BETA_FAST);
        fill(&s->beta_slow, DEFAULT_BETA_SLOW);
    }
    if (s->kind == FA_ROPE_LLAMA3) {
        fill(&s->low_freq_factor, DEFAULT_LOW_FREQ_FACTOR);
        fill(&s->high_freq_factor, DEFAULT_HIGH_FREQ_FACTOR);
    }
    if (r->angles != FA_ROPE_TABLES)
        fill(&s->attention_factor, default_attention_factor(s));
    if (r->angles == FA_ROPE_COMPUTED)
        fill(r->base, ROTARY_DEFAULT_BASE);
    else
        *r->base = 0;
    return check_bounds(r->op, s);
}

/* --- launches --- */

fa_status fa__rotary_check_dims(const char *op, const fa_rope_scaling *s, int64_t head_dim,
                                int64_t rotary_dim, int32_t head_dim_limit)
{
    if (head_dim > head_dim_limit)
        return fa__fail(FA_ERR_LIMIT,
                        "%s: head_dim = %" PRId64 "; at most %d (fa_%s_args.head_dim)", op,
                        head_dim, head_dim_limit, op);
    if (rotary_dim % 2)
        return fa__fail(FA_ERR_ROTARY_DIM,
                        "%s: all of head_dim = %" PRId64
                        " is to be rotated, which is odd (fa_%s_args.head_dim)",
                        op, head_dim, op);
    if (rotary_dim == 2 && is_ntk(s))
        return fa__fail(FA_ERR_ROTARY_DIM,
                        "%s: head_dim = 2 has no frequency that NTK scaling could change; at "
                        "least 4 (fa_%s_args.head_dim)",
                        op, op);
    if (head_dim && rotary_dim > head_dim)
        return fa__fail(FA_ERR_ROTARY_DIM,
                        "%s: head_dim = %" PRId64
                        " is smaller than the kernel's rotary_dim = %" PRId64
                        " (fa_%s_args.head_dim)",
                        op, head_dim, rotary_dim, op);
    return FA_OK;
}

fa_status fa__rotary_length(const char *op, const fa_rope_scaling *s, int32_t given,
                            int64_t *length)
{
    *length = 0;
    if (s->kind != FA_ROPE_DYNAMIC_NTK)
        return FA_OK;
    fa_status status = fa__size_resolve(op, "sequence_length", s->sequence_length, given, length);
    if (!status && !*length)
        return fa__fail(FA_ERR_SIZE,
                        "%s: sequence_length = 0; dynamic_ntk scales for a length of at least 1 "
                        "(fa_%s_args.sequence_length)",
                        op, op);
    return status;
}

/* --- the rule --- */

/* log2 of the base, times 2^54, with NTK scaling in it. */
static uint64_t scaled_log2_base(double base, const fa_rope_scaling *s, int64_t rotary_dim,
                                 int64_t sequence_length)
{
    const uint64_t plain = fa__rotary_log2_q54(base);
    double stretch = s->factor;
    if (s->kind == FA_ROPE_DYNAMIC_NTK) {
        if (sequence_length <= s->original_max_position)
            return plain;
        stretch *= (double)sequence_length;
        stretch /= s->original_max_position;
        stretch -= s->factor - 1;
    } else if (s->kind != FA_ROPE_NTK) {
        return plain;
    }
    const u128 power = (u128)fa__rotary_log2_q54(stretch) * (uint64_t)rotary_dim;
    return plain + (uint64_t)(power / (uint64_t)(rotary_dim - 2));
}

/* YARN climbs along pairs, in units of 2^-48; LLAMA3 along frequencies, in turns. */
static void set_ramp(fa__rotary_rule *rule, uint64_t low, uint64_t high)
{
    rule->ramp_low = low;
    rule->ramp_high = high;
    if (high <= low) { /* a step behind it */
        rule->ramp_high = low < UINT64_MAX ? low + 1 : low;
        return;
    }
    rule->ramp_shift = __builtin_clzll(high - low);
    const u128 step = ((u128)1 << 127) / ((high - low) << rule->ramp_shift); /* 2^63 to 2^64 */
    rule->ramp_step = step >> 64 ? UINT64_MAX : (uint64_t)step;
}

/* The pair that turns beta times in the trained length. */
static double yarn_pair(const fa_rope_scaling *s, double beta, double base, int64_t rotary_dim)
{
    const double turn = 6.283185307179586477 * beta;
    const double logarithm = log2_of((double)s->original_max_position / turn);
    return (double)rotary_dim * logarithm / (2 * log2_of(base));
}

/* Within 0 and rotary_dim - 1, in units of 2^-48; rounded down (up 0) or up (1) unless exact. */
static uint64_t pair_q48(double pair, int64_t rotary_dim, bool exact, int up)
{
    const double last = (double)rotary_dim - 1;
    pair = pair < 0 ? 0 : pair > last ? last : pair;
    if (exact)
        return (uint64_t)(0x1p48 * pair);
    const uint64_t whole = (uint64_t)pair;
    return (whole + (up && pair > (double)whole ? 1 : 0)) << 48;
}

fa__rotary_rule fa__rotary_rule_make(double base, const fa_rope_scaling *s, int64_t rotary_dim,
                                     int64_t sequence_length)
{
    fa__rotary_rule rule = {0};
    const uint64_t log2_base = scaled_log2_base(base, s, rotary_dim, sequence_length);
    rule.quotient = log2_base / (uint64_t)rotary_dim;
    rule.remainder = (uint32_t)(log2_base % (uint64_t)rotary_dim);
    if (s->kind == FA_ROPE_LINEAR || s->kind == FA_ROPE_YARN || s->kind == FA_ROPE_LLAMA3)
        rule.inverse_factor = ratio_q64(1, s->factor);
    if (s->kind == FA_ROPE_YARN) {
        const double low = yarn_pair(s, s->beta_fast, base, rotary_dim);
        const double high = yarn_pair(s, s->beta_slow, base, rotary_dim);
        set_ramp(&rule, pair_q48(low, rotary_dim, s->untruncated, 0),
                 pair_q48(high, rotary_dim, s->untruncated, 1));
    }
    if (s->kind == FA_ROPE_LLAMA3)
        set_ramp(&rule, ratio_q64(s->low_freq_factor, s->original_max_position),
                 ratio_q64(s->high_freq_factor, s->original_max_position));
    return rule;
}

/* --- text --- */

void fa__rotary_prologue(fa__buf *source, const fa__rotary *r)
{
    const fa_rope_scaling *s = r->scaling;
    const bool computed = r->angles == FA_ROPE_COMPUTED;
    const bool baked = computed && !fa__rotary_waits(s, r->rotary_dim);
    fa__rotary_rule rule = {0};
    uint64_t log2_base = 0;
    if (baked) {
        rule = fa__rotary_rule_make(*r->base, s, r->rotary_dim, s->sequence_length);
        log2_base = rule.quotient * (uint64_t)r->rotary_dim + rule.remainder;
    }
    fa__prologue_int(source, "ANGLES", (int64_t)r->angles);
    fa__prologue_int(source, "SCALING", (int64_t)s->kind);
    fa__prologue_real(source, "ATTENTION_FACTOR",
                      s->attention_factor == 0 ? 1 : s->attention_factor);
    fa__prologue_bool(source, "RULE_BAKED", baked);
    fa__prologue_int(source, "LOG2_BASE_Q54", (int64_t)log2_base);
    fa__prologue_int(source, "INVERSE_FACTOR_Q64", (int64_t)rule.inverse_factor);
    fa__prologue_int(source, "RAMP_LOW", (int64_t)rule.ramp_low);
    fa__prologue_int(source, "RAMP_HIGH", (int64_t)rule.ramp_high);
    fa__prologue_int(source, "RAMP_STEP", (int64_t)rule.ramp_step);
    fa__prologue_int(source, "RAMP_SHIFT", rule.ramp_shift);
}

static void label_real(fa__buf *label, const char *name, double value, double usual)
{
    if (value == usual)
        return;
    fa__buf_format(label, " %s=", name);
    fa__json_real(label, value);
}

void fa__rotary_label(fa__buf *label, const fa__rotary *r)
{
    const fa_rope_scaling *s = r->scaling;
    if (r->angles == FA_ROPE_COMPUTED)
        label_real(label, "base", *r->base, ROTARY_DEFAULT_BASE);
    if (s->kind != FA_ROPE_UNSCALED)
        fa__buf_format(label, " %s", fa__rotary_scaling_names[s->kind]);
    label_real(label, "factor", s->factor, 0);
    label_real(label, "original_max_position", s->original_max_position, 0);
    label_real(label, "sequence_length", s->sequence_length, 0);
    if (s->untruncated)
        fa__buf_text(label, " untruncated");
    if (s->kind == FA_ROPE_YARN) {
        label_real(label, "beta_fast", s->beta_fast, DEFAULT_BETA_FAST);
        label_real(label, "beta_slow", s->beta_slow, DEFAULT_BETA_SLOW);
    }
    if (s->kind == FA_ROPE_LLAMA3) {
        label_real(label, "low_freq_factor", s->low_freq_factor, DEFAULT_LOW_FREQ_FACTOR);
        label_real(label, "high_freq_factor", s->high_freq_factor, DEFAULT_HIGH_FREQ_FACTOR);
    }
    if (r->angles != FA_ROPE_TABLES)
        label_real(label, "attention_factor", s->attention_factor, default_attention_factor(s));
}
