#include "fake_core.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_FUNCTIONS 64
#define MAX_KINDS 8

typedef struct books {
    int calls, inside, peak, latency_ms;
} books;

pthread_mutex_t fake_mutex = PTHREAD_MUTEX_INITIALIZER;

/* The books have a lock of their own, so that an entry point may be counted with the objects' lock
 * held or not. */
static pthread_mutex_t book_mutex = PTHREAD_MUTEX_INITIALIZER;
static books book[MAX_FUNCTIONS];
static char armed_function[64];
static int armed_in, armed_code; /* armed_in: calls left; 0 means every call */
static char first_violation[512];
static int set_version_value;
static struct {
    const char *kind;
    int count;
} live[MAX_KINDS];

static books *book_of(const char *function)
{
    for (int i = 0; fake_names[i]; i++)
        if (strcmp(fake_names[i], function) == 0)
            return &book[i];
    fprintf(stderr, "the look-alike has no function %s\n", function);
    abort();
}

static void write_count_file(const char *function)
{
    const char *path = getenv("FAKE_COUNT_FILE");
    if (!path || strcmp(function, "nvrtcCompileProgram") != 0)
        return;
    char line[128];
    int len = snprintf(line, sizeof line, "%s %ld\n", function, (long)getpid());
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, line, (size_t)len) != len)
        fake_violate("cannot append to %s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
}

static int latency_of(const books *b, const char *function)
{
    const char *variable = getenv("FAKE_LATENCY_MS");
    if (b->latency_ms == 0 && variable && strcmp(function, "nvrtcCompileProgram") == 0)
        return atoi(variable);
    return b->latency_ms;
}

int fake_enter(const char *function)
{
    int code = 0;
    pthread_mutex_lock(&book_mutex);
    books *b = book_of(function);
    b->calls++;
    b->inside++;
    if (b->inside > b->peak)
        b->peak = b->inside;
    int latency = latency_of(b, function);
    if (strcmp(armed_function, function) == 0) {
        if (armed_in == 0)
            code = armed_code;
        else if (--armed_in == 0) {
            code = armed_code;
            armed_function[0] = '\0';
        }
    }
    pthread_mutex_unlock(&book_mutex);

    write_count_file(function);
    if (latency > 0) {
        struct timespec t = {.tv_sec = latency / 1000, .tv_nsec = latency % 1000 * 1000000L};
        while (nanosleep(&t, &t) != 0 && errno == EINTR)
            continue;
    }
    return code;
}

void fake_leave(const char *function)
{
    pthread_mutex_lock(&book_mutex);
    book_of(function)->inside--;
    pthread_mutex_unlock(&book_mutex);
}

void fake_violate(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&book_mutex);
    if (!first_violation[0])
        vsnprintf(first_violation, sizeof first_violation, format, args);
    pthread_mutex_unlock(&book_mutex);
    va_end(args);
}

static int *live_of(const char *kind)
{
    for (int i = 0; i < MAX_KINDS; i++) {
        if (!live[i].kind)
            live[i].kind = kind;
        if (strcmp(live[i].kind, kind) == 0)
            return &live[i].count;
    }
    abort();
}

/* `kind` is a literal: it is kept. */
void fake_count(const char *kind, int change)
{
    pthread_mutex_lock(&book_mutex);
    *live_of(kind) += change;
    pthread_mutex_unlock(&book_mutex);
}

static int control_live(const char *kind)
{
    int count = 0;
    pthread_mutex_lock(&book_mutex);
    for (int i = 0; i < MAX_KINDS && live[i].kind; i++)
        if (strcmp(live[i].kind, kind) == 0)
            count = live[i].count;
    pthread_mutex_unlock(&book_mutex);
    return count;
}

static void control_reset(void)
{
    pthread_mutex_lock(&book_mutex);
    for (int i = 0; i < MAX_FUNCTIONS; i++)
        book[i] = (books){.inside = book[i].inside};
    armed_function[0] = '\0';
    first_violation[0] = '\0';
    pthread_mutex_unlock(&book_mutex);
}

static void control_fail(const char *function, int nth, int code)
{
    pthread_mutex_lock(&book_mutex);
    armed_function[0] = '\0';
    if (function) {
        (void)book_of(function);
        snprintf(armed_function, sizeof armed_function, "%s", function);
    }
    armed_in = nth;
    armed_code = code;
    pthread_mutex_unlock(&book_mutex);
}

static int control_calls(const char *function)
{
    pthread_mutex_lock(&book_mutex);
    int calls = book_of(function)->calls;
    pthread_mutex_unlock(&book_mutex);
    return calls;
}

static int control_peak(const char *function)
{
    pthread_mutex_lock(&book_mutex);
    int peak = book_of(function)->peak;
    pthread_mutex_unlock(&book_mutex);
    return peak;
}

static void control_set_latency_ms(const char *function, int ms)
{
    pthread_mutex_lock(&book_mutex);
    book_of(function)->latency_ms = ms;
    pthread_mutex_unlock(&book_mutex);
}

static void control_set_version(int version)
{
    pthread_mutex_lock(&book_mutex);
    set_version_value = version;
    pthread_mutex_unlock(&book_mutex);
}

int fake_version(void)
{
    pthread_mutex_lock(&book_mutex);
    int version = set_version_value;
    pthread_mutex_unlock(&book_mutex);
    return version;
}

static const char *control_violation(void)
{
    return first_violation;
}

static const char *control_function(int i)
{
    for (int n = 0; n < i; n++)
        if (!fake_names[n])
            return NULL;
    return fake_names[i];
}

void fake_core_control(fake_control *control)
{
    control->reset = control_reset;
    control->fail = control_fail;
    control->calls = control_calls;
    control->peak = control_peak;
    control->set_latency_ms = control_set_latency_ms;
    control->set_version = control_set_version;
    control->live = control_live;
    control->violation = control_violation;
    control->function = control_function;
}
