/* The context's log callback. */
#ifndef FA_LOG_H
#define FA_LOG_H

#include "fajit.h"

typedef struct fa__log {
    fa_log_callback callback; /* NULL: silent */
    void *user;
    fa_log_level level;
} fa__log;

/* printf without floating-point conversions; costs nothing below the level. */
void fa__log_write(const fa__log *log, fa_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
