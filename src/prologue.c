/* The typed constants that precede a template: the only text an instance adds to it. They are
 * `inline` because NVRTC puts the process number and the working directory into names of internal
 * linkage, and a cubin must not depend on either. */
#include "op.h"

#include <limits.h>

void fa__prologue_begin(fa__buf *source)
{
    fa__buf_text(source, "#define FAJIT_INSTANCE 1\n");
}

void fa__prologue_int(fa__buf *source, const char *name, int64_t value)
{
    if (value == INT64_MIN) /* has no literal of its own */
        fa__buf_format(source, "inline constexpr long long %s = -9223372036854775807LL - 1;\n",
                       name);
    else if (value >= INT32_MIN + 1 && value <= INT32_MAX)
        fa__buf_format(source, "inline constexpr int %s = %lld;\n", name, (long long)value);
    else
        fa__buf_format(source, "inline constexpr long long %s = %lldLL;\n", name, (long long)value);
}

void fa__prologue_bool(fa__buf *source, const char *name, bool value)
{
    fa__buf_format(source, "inline constexpr bool %s = %s;\n", name, value ? "true" : "false");
}

void fa__prologue_real(fa__buf *source, const char *name, double value)
{
    fa__buf_format(source, "inline constexpr double %s = ", name);
    fa__buf_hexfloat(source, value);
    fa__buf_text(source, ";\n");
}

void fa__prologue_dtype(fa__buf *source, const char *name, fa_dtype dtype)
{
    if (dtype == FA_F32)
        fa__buf_format(source, "using %s = float;\n", name);
    else
        fa__buf_format(source, "#include \"fajit/dtype.cuh\"\nusing %s = fajit::%s;\n", name,
                       fa__dtype_name(dtype));
}

void fa__prologue_fields(fa__buf *source, const void *fields, size_t bytes)
{
    const int32_t *value = fields;
    for (size_t i = 0; i < bytes / sizeof *value; i++)
        fa__buf_format(source, "%s%d", i ? ", " : "{", value[i]);
    fa__buf_text(source, "}");
}

void fa__prologue_end(fa__buf *source, const char *file)
{
    fa__buf_text(source, "#line 1 \"");
    for (const char *c = file; *c; c++) {
        if (*c == '"' || *c == '\\')
            fa__buf_text(source, "\\");
        fa__buf_bytes(source, c, 1);
    }
    fa__buf_text(source, "\"\n");
}
