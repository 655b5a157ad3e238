#include "print.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>

#include "block.h"

namespace fajit_emu {

namespace {

constexpr int LAUNCH_FAILED = 719, MAX_VALUES = 32;

std::atomic<bool> printed;

// Past one conversion, from the character after its percent sign; null: a device has none such.
// *values: how many it takes.
const char *conversion_end(const char *at, int *values)
{
    *values = 0;
    if (*at == '%')
        return at + 1;
    at += strspn(at, "# 0+-");
    for (int part = 0; part < 2; part++) { // width, precision
        if (part == 1 && *at++ != '.') {
            at--;
            break;
        }
        if (*at == '*') {
            at++;
            (*values)++;
        } else {
            at += strspn(at, "0123456789");
        }
    }
    if (*at == 'h')
        at++;
    else
        for (int i = 0; i < 2 && *at == 'l'; i++)
            at++;
    if (!*at || !strchr("cdiouxXpeEfgGaAs", *at))
        return nullptr;
    (*values)++;
    return at + 1;
}

// How many values a format takes. Does not return for one that a device does not know.
int count_values(const char *format)
{
    int all = 0, values = 0;
    for (const char *at = strchr(format, '%'); at; at = strchr(at, '%')) {
        const char *end = conversion_end(at + 1, &values);
        all += values;
        if (!end || all > MAX_VALUES)
            block_runtime.fail(LAUNCH_FAILED, {"printf", format, 0},
                               "a device prints no such conversion, or not so many values");
        at = end;
    }
    return all;
}

// Without the parameter that stands for __launch_bounds__.
std::string without_bounds(std::string function)
{
    static const char type[] = "fajit_emu::bounds<";
    size_t begin = function.find(type);
    if (begin == std::string::npos)
        return function;
    int open = 1, brackets = 0;
    size_t end = begin + sizeof type - 1;
    for (; end < function.size() && open; end++) {
        const char c = function[end];
        brackets += c == '(' ? 1 : c == ')' ? -1 : 0;
        if (!brackets)
            open += c == '<' ? 1 : c == '>' ? -1 : 0;
    }
    if (function.compare(end, 2, ", ") == 0)
        end += 2;
    if (begin >= 2 && function.compare(begin - 2, 2, "::") == 0)
        begin -= 2;
    return function.erase(begin, end - begin);
}

} // namespace

int print(const char *format, va_list values)
{
    if (!format)
        return -1;
    const int count = count_values(format);
    vprintf(format, values);
    printed = true;
    return count;
}

void print_assertion(const site &where, const char *condition, const char *function,
                     const thread_view &who)
{
    const uint3 &b = who.block_idx, &t = who.thread_idx;
    print_show();
    fprintf(stderr, "%s:%d: %s: block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `%s` failed.\n",
            where.file, where.line, without_bounds(function).c_str(), b.x, b.y, b.z, t.x, t.y, t.z,
            condition);
}

void print_show()
{
    if (printed.exchange(false))
        fflush(stdout);
}

} // namespace fajit_emu
