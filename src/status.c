#include "status.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The message grows to any length (compiler logs), so it lives on the heap, owned by its thread. */
typedef struct message {
    size_t capacity;
    char text[];
} message;

static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool key_made;

static void make_key(void)
{
    key_made = pthread_key_create(&key, free) == 0;
}

/* Room for len + 1 bytes in this thread's message; NULL when there is no memory for it. */
static char *reserve(size_t len)
{
    pthread_once(&key_once, make_key);
    if (!key_made)
        return NULL;
    message *old = pthread_getspecific(key);
    if (old && old->capacity > len)
        return old->text;
    size_t capacity = len + 1 < 512 ? 512 : len + 1;
    message *grown = malloc(sizeof *grown + capacity);
    if (!grown)
        return NULL;
    grown->capacity = capacity;
    grown->text[0] = '\0';
    if (pthread_setspecific(key, grown)) {
        free(grown);
        return NULL;
    }
    free(old);
    return grown->text;
}

fa_status fa__fail(fa_status status, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    int len = vsnprintf(NULL, 0, format, ap);
    va_end(ap);
    if (len < 0)
        return fa__fail_text(status, fa_status_name(status));

    /* The arguments may point into the old message, so the new one is made beside it. */
    char *text = malloc((size_t)len + 1);
    if (!text)
        return fa__fail_text(status, "out of host memory while writing an error message");
    va_start(ap, format);
    vsnprintf(text, (size_t)len + 1, format, ap);
    va_end(ap);
    fa__fail_text(status, text);
    free(text);
    return status;
}

fa_status fa__fail_text(fa_status status, const char *text)
{
    size_t len = strlen(text);
    char *room = reserve(len);
    if (!room) {
        /* Keep as much as the message already has room for. */
        message *old = key_made ? pthread_getspecific(key) : NULL;
        if (old)
            snprintf(old->text, old->capacity, "%s", text);
        return status;
    }
    memmove(room, text, len + 1);
    return status;
}

fa_status fa__fail_memory(size_t bytes)
{
    return fa__fail(FA_ERR_OUT_OF_MEMORY, "cannot allocate %zu bytes of host memory", bytes);
}

fa_status fa__check_out_struct(const char *what, size_t size, size_t known)
{
    if (size == 0)
        return fa__fail(FA_ERR_STRUCT_SIZE, "%s.size is 0; set it to sizeof(%s)", what, what);
    if (size < known || size > 65536)
        return fa__fail(FA_ERR_STRUCT_SIZE, "%s.size is %zu; this library knows %zu bytes", what,
                        size, known);
    return FA_OK;
}

fa_status fa__check_struct(const char *what, const void *filled, size_t size, size_t known)
{
    fa_status status = fa__check_out_struct(what, size, known);
    if (status)
        return status;
    const unsigned char *bytes = filled;
    for (size_t i = known; i < size; i++)
        if (bytes[i])
            return fa__fail(FA_ERR_STRUCT_SIZE,
                            "%s.size is %zu and byte %zu is set; this library knows %zu bytes (the "
                            "program was built against a newer fajit.h)",
                            what, size, i, known);
    return FA_OK;
}

const char *fa_last_error(void)
{
    pthread_once(&key_once, make_key);
    message *m = key_made ? pthread_getspecific(key) : NULL;
    return m ? m->text : "";
}

const char *fa_status_name(fa_status status)
{
    switch (status) {
#define NAME(name, value, text)                                                                    \
    case name:                                                                                     \
        return #name;
        FA_STATUS_LIST(NAME)
#undef NAME
    }
    return "FA_ERR_?";
}

const char *fa_status_text(fa_status status)
{
    switch (status) {
#define CASE(name, value, text)                                                                    \
    case name:                                                                                     \
        return text;
        FA_STATUS_LIST(CASE)
#undef CASE
    }
    return "";
}

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

const char *fa_version(void)
{
    return TEXT(FA_VERSION_MAJOR) "." TEXT(FA_VERSION_MINOR) "." TEXT(FA_VERSION_PATCH);
}
