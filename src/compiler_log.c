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
static const char *report_of(const char *log, const char *function, size_t len)
{
    static const char before[] = "Compiling entry function '";
    for (const char *at = strstr(log, before); at; at = strstr(at, before)) {
        at += sizeof before - 1;
        if (strncmp(at, function, len) == 0 && at[len] == '\'')
            return at + len + 1;
    }
    return NULL;
}

static void keep_larger(uint32_t *most, uint32_t value)
{
    *most = value > *most ? value : *most;
}

static bool read_one(const char *log, const char *function, size_t len, fa__entry *entry)
{
    const char *at = report_of(log, function, len);
    if (!at)
        return false;
    const char *next = strstr(at, "Compiling entry function");
    const char *end = next ? next : at + strlen(at);
    const uint32_t registers = number_before(at, end, "registers");
    keep_larger(&entry->registers, registers);
    keep_larger(&entry->spill_bytes, number_before(at, end, "bytes spill stores") +
                                         number_before(at, end, "bytes spill loads"));
    keep_larger(&entry->smem_static_bytes, number_before(at, end, "bytes smem"));
    return registers > 0;
}

bool fa__compiler_read_log(const char *log, const char *functions, fa__entry *entry)
{
    entry->registers = entry->spill_bytes = entry->smem_static_bytes = 0;
    for (const char *name = functions; *name;) {
        const size_t len = strcspn(name, "\n");
        if (!read_one(log, name, len, entry))
            return false;
        name += len + (name[len] ? 1 : 0);
    }
    return entry->registers > 0;
}
