#include "buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

fa__buf fa__buf_on(void *memory, size_t size)
{
    return (fa__buf){.data = memory, .capacity = size, .borrowed = true};
}

void fa__buf_free(fa__buf *buf)
{
    if (!buf->borrowed)
        free(buf->data);
    *buf = (fa__buf){0};
}

void fa__buf_reset(fa__buf *buf)
{
    buf->len = 0;
    buf->failed = false;
    if (buf->data)
        buf->data[0] = '\0';
}

/* Makes room for `more` bytes and the NUL behind them. */
static bool grow(fa__buf *buf, size_t more)
{
    if (buf->failed)
        return false;
    if (more >= SIZE_MAX / 4 || buf->len >= SIZE_MAX / 4) {
        buf->failed = true;
        return false;
    }
    size_t need = buf->len + more + 1;
    if (need <= buf->capacity)
        return true;
    size_t capacity = buf->capacity ? buf->capacity : 256;
    while (capacity < need)
        capacity *= 2;
    char *data = buf->borrowed ? malloc(capacity) : realloc(buf->data, capacity);
    if (!data) {
        buf->failed = true;
        return false;
    }
    if (buf->borrowed && buf->len)
        memcpy(data, buf->data, buf->len);
    buf->borrowed = false;
    buf->data = data;
    buf->capacity = capacity;
    return true;
}

void fa__buf_bytes(fa__buf *buf, const void *bytes, size_t len)
{
    if (!grow(buf, len))
        return;
    if (len)
        memcpy(buf->data + buf->len, bytes, len);
    buf->len += len;
    buf->data[buf->len] = '\0';
}

void fa__buf_text(fa__buf *buf, const char *text)
{
    fa__buf_bytes(buf, text, strlen(text));
}

void fa__buf_format(fa__buf *buf, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    int len = vsnprintf(NULL, 0, format, ap);
    va_end(ap);
    if (len < 0) {
        buf->failed = true;
        return;
    }
    if (!grow(buf, (size_t)len))
        return;
    va_start(ap, format);
    vsnprintf(buf->data + buf->len, (size_t)len + 1, format, ap);
    va_end(ap);
    buf->len += (size_t)len;
}

void fa__buf_hexfloat(fa__buf *buf, double value)
{
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof bits);
    uint64_t fraction = bits & ((UINT64_C(1) << 52) - 1);
    int exponent = (int)(bits >> 52 & 0x7ff);
    const char *sign = bits >> 63 ? "-" : "";
    if (exponent == 0 && fraction == 0) {
        fa__buf_format(buf, "%s0x0p+0", sign);
        return;
    }
    int lead = exponent ? 1 : 0; /* 0: denormal */
    int power = exponent ? exponent - 1023 : -1022;
    int digits = 13;
    while (digits > 0 && (fraction & 15) == 0) {
        fraction >>= 4;
        digits--;
    }
    if (digits)
        fa__buf_format(buf, "%s0x%d.%0*llxp%+d", sign, lead, digits, (unsigned long long)fraction,
                       power);
    else
        fa__buf_format(buf, "%s0x%dp%+d", sign, lead, power);
}

static void little_endian(fa__buf *buf, uint64_t value, size_t bytes)
{
    unsigned char out[8];
    for (size_t i = 0; i < bytes; i++)
        out[i] = (unsigned char)(value >> 8 * i);
    fa__buf_bytes(buf, out, bytes);
}

void fa__buf_u32le(fa__buf *buf, uint32_t value)
{
    little_endian(buf, value, 4);
}

void fa__buf_u64le(fa__buf *buf, uint64_t value)
{
    little_endian(buf, value, 8);
}
