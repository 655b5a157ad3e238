/* Rotary angles in double precision. See rotary.h. */
#include "rotary.h"

#include <math.h>

static double given(double value, double otherwise)
{
    return value != 0 ? value : otherwise;
}

static double plain(double base, int64_t rotary_dim, int64_t j)
{
    return pow(base, -2.0 * (double)j / (double)rotary_dim);
}

static double ntk(double base, double stretch, int64_t rotary_dim, int64_t j)
{
    const double dim = (double)rotary_dim;
    return plain(base * pow(stretch, dim / (dim - 2)), rotary_dim, j);
}

/* The pair that turns `rotations` times in the trained length. */
static double correction_dim(double rotations, double length, double base, int64_t rotary_dim)
{
    return (double)rotary_dim * log(length / (rotations * 2 * M_PI)) / (2 * log(base));
}

static double yarn(double base, const fa_rope_scaling *s, int64_t rotary_dim, int64_t j)
{
    const double length = s->original_max_position;
    double low = correction_dim(given(s->beta_fast, 32), length, base, rotary_dim);
    double high = correction_dim(given(s->beta_slow, 1), length, base, rotary_dim);
    if (!s->untruncated) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, (double)rotary_dim - 1);
    double ramp = high > low ? ((double)j - low) / (high - low) : (double)j > low;
    ramp = fmin(fmax(ramp, 0), 1);
    const double f = plain(base, rotary_dim, j);
    return f * (1 - ramp) + f / s->factor * ramp;
}

static double llama3(double base, const fa_rope_scaling *s, int64_t rotary_dim, int64_t j)
{
    const double low = given(s->low_freq_factor, 1), high = given(s->high_freq_factor, 4);
    const double length = s->original_max_position;
    const double f = plain(base, rotary_dim, j), wavelength = 2 * M_PI / f;
    if (wavelength < length / high)
        return f;
    if (wavelength > length / low)
        return f / s->factor;
    const double smooth = (length / wavelength - low) / (high - low);
    return (1 - smooth) * f / s->factor + smooth * f;
}

double oracle_rotary_frequency(double base, const fa_rope_scaling *s, int64_t rotary_dim,
                               int64_t sequence_length, int64_t j)
{
    const double original = s->original_max_position, length = (double)sequence_length;
    base = given(base, 10000);
    switch (s->kind) {
    case FA_ROPE_LINEAR:
        return plain(base, rotary_dim, j) / s->factor;
    case FA_ROPE_NTK:
        return ntk(base, s->factor, rotary_dim, j);
    case FA_ROPE_DYNAMIC_NTK:
        return length <= original
                   ? plain(base, rotary_dim, j)
                   : ntk(base, s->factor * length / original - (s->factor - 1), rotary_dim, j);
    case FA_ROPE_YARN:
        return yarn(base, s, rotary_dim, j);
    case FA_ROPE_LLAMA3:
        return llama3(base, s, rotary_dim, j);
    case FA_ROPE_UNSCALED:
        break;
    }
    return plain(base, rotary_dim, j);
}

double oracle_rotary_attention_factor(const fa_rope_scaling *s)
{
    return given(s->attention_factor, s->kind == FA_ROPE_YARN ? 0.1 * log(s->factor) + 1 : 1);
}

void oracle_rotary_angles(const oracle_angles *a, int64_t position, double *cosines, double *sines)
{
    const int64_t pairs = a->rotary_dim / 2;
    const bool inside = position >= 0 && position < a->max_position;
    const double factor = oracle_rotary_attention_factor(a->scaling);
    for (int64_t j = 0; j < pairs; j++) {
        if (a->cos) {
            cosines[j] = inside ? (double)a->cos[position * pairs + j] : (double)NAN;
            sines[j] = inside ? (double)a->sin[position * pairs + j] : (double)NAN;
            continue;
        }
        const double angle =
            (double)position * (a->inv_freq
                                    ? (double)a->inv_freq[j]
                                    : oracle_rotary_frequency(a->base, a->scaling, a->rotary_dim,
                                                              a->sequence_length, j));
        cosines[j] = factor * cos(angle);
        sines[j] = factor * sin(angle);
    }
}

void oracle_rotary_turn(double *head, fa_rope_style style, int64_t rotary_dim,
                        const double *cosines, const double *sines)
{
    const int64_t pairs = rotary_dim / 2;
    for (int64_t j = 0; j < pairs; j++) {
        double *a = &head[style == FA_ROPE_HALF ? j : 2 * j];
        double *b = &head[style == FA_ROPE_HALF ? j + pairs : 2 * j + 1];
        const double turned = *a * cosines[j] - *b * sines[j];
        *b = *b * cosines[j] + *a * sines[j];
        *a = turned;
    }
}
