/* Strings and numbers of JSON, without the locale. */
#include "json_text.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

size_t fa__utf8_length(const unsigned char *p, size_t available)
{
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    size_t len = 0;
    uint32_t code = 0;

    if (available == 0)
        return 0;
    if (p[0] < 0x80)
        return 1;
    if ((p[0] & 0xe0) == 0xc0) {
        len = 2;
        code = p[0] & 0x1fu;
    } else if ((p[0] & 0xf0) == 0xe0) {
        len = 3;
        code = p[0] & 0x0fu;
    } else if ((p[0] & 0xf8) == 0xf0) {
        len = 4;
        code = p[0] & 0x07u;
    }
    if (len == 0 || len > available)
        return 0;
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (p[i] & 0x3fu);
    }
    if (code < smallest[len] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
        return 0;
    return len;
}

size_t fa__utf8_encode(uint32_t code, char *to)
{
    if (code < 0x80) {
        to[0] = (char)code;
        return 1;
    }
    size_t len = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = len - 1; i > 0; i--) {
        to[i] = (char)(0x80u | (code & 0x3fu));
        code >>= 6;
    }
    to[0] = (char)(lead[len] | code);
    return len;
}

bool fa__json_is_utf8(const char *text)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t left = strlen(text), step = 0;

    for (; left > 0; p += step, left -= step) {
        step = fa__utf8_length(p, left);
        if (step == 0)
            return false;
    }
    return true;
}

void fa__json_string(fa__buf *out, const char *text)
{
    static const char letters[] = "\"\\bfnrt", meanings[] = "\"\\\b\f\n\r\t";
    const unsigned char *p = (const unsigned char *)text;
    size_t left = strlen(text);

    fa__buf_text(out, "\"");
    while (left > 0) {
        size_t bytes = fa__utf8_length(p, left);
        const char *meaning = strchr(meanings, *p);
        if (meaning)
            fa__buf_format(out, "\\%c", letters[meaning - meanings]);
        else if (*p < 0x20 || *p == 0x7f)
            fa__buf_format(out, "\\u%04x", *p);
        else if (bytes > 0)
            fa__buf_bytes(out, p, bytes);
        else
            fa__buf_text(out, "\xef\xbf\xbd");
        bytes = bytes ? bytes : 1;
        p += bytes;
        left -= bytes;
    }
    fa__buf_text(out, "\"");
}

static size_t digits_length(const char *text, size_t len)
{
    size_t n = 0;

    while (n < len && text[n] >= '0' && text[n] <= '9')
        n++;
    return n;
}

size_t fa__json_number_length(const char *text, size_t len)
{
    size_t n = len > 0 && text[0] == '-';
    size_t digits = digits_length(text + n, len - n);

    if (digits == 0)
        return 0;
    n += text[n] == '0' ? 1 : digits;
    if (n < len && text[n] == '.' && (digits = digits_length(text + n + 1, len - n - 1)) > 0)
        n += 1 + digits;
    if (n < len && (text[n] == 'e' || text[n] == 'E')) {
        size_t sign = n + 1 < len && (text[n + 1] == '+' || text[n + 1] == '-');
        digits = digits_length(text + n + 1 + sign, len - n - 1 - sign);
        if (digits > 0)
            n += 1 + sign + digits;
    }
    return n;
}

bool fa__json_to_real(const char *text, double *out)
{
    size_t len = strlen(text);
    bool zero = true;

    if (len == 0 || fa__json_number_length(text, len) != len)
        return false;
    for (const char *p = text; *p && *p != 'e' && *p != 'E'; p++)
        zero = zero && (*p < '1' || *p > '9');
    /* Neither reads nor changes the process's or the thread's locale. */
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c_locale)
        return false;
    double value = strtod_l(text, NULL, c_locale);
    freelocale(c_locale);
    if (!isfinite(value) || (value == 0.0 && !zero))
        return false;
    *out = value;
    return true;
}

bool fa__json_to_int(const char *text, int64_t *out)
{
    size_t len = strlen(text), sign = text[0] == '-';

    if (len == 0 || fa__json_number_length(text, len) != len ||
        sign + digits_length(text + sign, len - sign) != len)
        return false;
    int saved = errno;
    errno = 0;
    long long value = strtoll(text, NULL, 10);
    bool in_range = errno == 0;
    errno = saved;
    if (in_range)
        *out = value;
    return in_range;
}

/* `digits` with the point after the first one, times 10^exponent: plainly where that is short. */
static void write_decimal(fa__buf *out, const char *digits, size_t count, int exponent)
{
    if (exponent >= 0 && exponent < 17) {
        size_t whole = (size_t)exponent + 1, given = count < whole ? count : whole;
        fa__buf_bytes(out, digits, given);
        for (size_t i = given; i < whole; i++)
            fa__buf_text(out, "0");
        if (count > whole) {
            fa__buf_text(out, ".");
            fa__buf_bytes(out, digits + whole, count - whole);
        }
    } else if (exponent < 0 && exponent >= -5) {
        fa__buf_text(out, "0.");
        for (int i = -1; i > exponent; i--)
            fa__buf_text(out, "0");
        fa__buf_bytes(out, digits, count);
    } else {
        fa__buf_bytes(out, digits, 1);
        if (count > 1) {
            fa__buf_text(out, ".");
            fa__buf_bytes(out, digits + 1, count - 1);
        }
        fa__buf_format(out, "e%d", exponent);
    }
}

/* Splits what "%.*e" prints into digits and exponent. The locale's decimal mark, whatever its
 * bytes, is not a digit and falls out. */
static size_t split_scientific(const char *printed, char *digits, int *exponent)
{
    const char *e = strchr(printed, 'e');
    size_t count = 0;

    for (const char *p = printed; p < e; p++)
        if (*p >= '0' && *p <= '9')
            digits[count++] = *p;
    while (count > 1 && digits[count - 1] == '0')
        count--;
    *exponent = (int)strtol(e + 1, NULL, 10);
    return count;
}

void fa__json_real(fa__buf *out, double value)
{
    fa__buf decimal = {0};

    if (!isfinite(value)) {
        fa__buf_text(out, "null");
        return;
    }
    for (int precision = 0; precision < 17; precision++) { /* 17 digits tell all doubles apart */
        char printed[64], digits[32];
        int exponent = 0;
        double back = 0;
        snprintf(printed, sizeof printed, "%.*e", precision, fabs(value));
        size_t count = split_scientific(printed, digits, &exponent);
        fa__buf_reset(&decimal);
        fa__buf_text(&decimal, signbit(value) ? "-" : "");
        write_decimal(&decimal, digits, count, exponent);
        if (decimal.failed || (fa__json_to_real(decimal.data, &back) && back == value))
            break;
    }
    out->failed = out->failed || decimal.failed;
    fa__buf_bytes(out, decimal.data, decimal.len);
    fa__buf_free(&decimal);
}
