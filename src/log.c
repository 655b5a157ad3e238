#include "log.h"

#include <stdarg.h>
#include <stdio.h>

void fa__log_write(const fa__log *log, fa_log_level level, const char *format, ...)
{
    fa_log_level limit = log->level == FA_LOG_DEFAULT ? FA_LOG_WARNING : log->level;
    if (!log->callback || level > limit)
        return;
    char line[1024];
    va_list ap;
    va_start(ap, format);
    vsnprintf(line, sizeof line, format, ap);
    va_end(ap);
    log->callback(log->user, level, line);
}
