#include "compiler_log.h"

#include <string.h>

/* The number that stands before `label`, as in "Used 32 registers" or "0 bytes spill stores"; 0
 * when there is none between `at` and `end`. */
static uint32_t number_before(const char *at, const char *end, const char *label)
{
    const char *found = at;
    size_t len = strlen(label);
    while ((found = strstr(found, label)) && found < end) {
        const char *digit = found;
        while (digit > at && digit[-1] == ' ')
            digit--;
        uint32_t value = 0, scale = 1;
        bool any = false;
        while (digit > at && digit[-1] >= '0' && digit[-1] <= '9') {
            value += scale * (uint32_t)(*--digit - '0');
            scale *= 10;
            any = true;
        }
        if (any)
            return value;
        found += len;
    }
    return 0;
}

/* Behind "Compiling entry function 'NAME'"; names have any length. NULL: there is none. */
static const char *report_of(const char *log, const char *function)
{
    static const char before[] = "Compiling entry function '";
    size_t len = strlen(function);
    for (const char *at = strstr(log, before); at; at = strstr(at, before)) {
        at += sizeof before - 1;
        if (strncmp(at, function, len) == 0 && at[len] == '\'')
            return at + len + 1;
    }
    return NULL;
}

bool fa__compiler_read_log(const char *log, const char *function, fa__entry *entry)
{
    const char *at = report_of(log, function);
    if (!at)
        return false;
    const char *next = strstr(at, "Compiling entry function");
    const char *end = next ? next : at + strlen(at);
    entry->registers = number_before(at, end, "registers");
    entry->spill_bytes =
        number_before(at, end, "bytes spill stores") + number_before(at, end, "bytes spill loads");
    entry->smem_static_bytes = number_before(at, end, "bytes smem");
    return entry->registers > 0;
}
