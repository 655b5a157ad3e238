#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* secure_getenv */
#endif
#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache_impl.h"
#include "status.h"

#define DEFAULT_MAX_BYTES (UINT64_C(1) << 30)

/* A program that runs with another user's rights must not take directories from its caller. */
static const char *environment(const char *name)
{
    const char *value = secure_getenv(name);
    return value && *value ? value : NULL;
}

void fa__cache_set_problem(fa__cache *cache, const char *format, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    pthread_mutex_lock(&cache->dir_mutex);
    if (!atomic_load(&cache->problem)) {
        fa__buf_text(&cache->problem_text, text);
        atomic_store(&cache->problem,
                     cache->problem_text.failed ? "out of memory" : cache->problem_text.data);
    }
    pthread_mutex_unlock(&cache->dir_mutex);
}

/* ---- the writable directory ------------------------------------------------------------------ */

static bool home_from_passwd(fa__buf *out)
{
    struct passwd record, *found = NULL;
    size_t size = 1024;
    for (; size <= 1024 * 1024; size *= 4) {
        char *room = malloc(size);
        if (!room)
            return false;
        const int error = getpwuid_r(geteuid(), &record, room, size, &found);
        const bool usable = error == 0 && found && found->pw_dir && found->pw_dir[0] == '/';
        if (usable)
            fa__buf_text(out, found->pw_dir);
        free(room);
        if (error != ERANGE)
            return usable;
    }
    return false;
}

/* Appends the directory's path as configured; false when nothing says where. */
static bool choose_dir(const fa__cache_options *options, fa__buf *out)
{
    const char *xdg = environment("XDG_CACHE_HOME");
    const char *home = environment("HOME");
    const char *variable = environment("FAJIT_CACHE_DIR");
    if (options->dir && *options->dir) {
        fa__buf_text(out, options->dir);
    } else if (variable) {
        fa__buf_text(out, variable);
    } else if (xdg && xdg[0] == '/') {
        fa__buf_format(out, "%s/fajit", xdg);
    } else if (home && home[0] == '/') {
        fa__buf_format(out, "%s/.cache/fajit", home);
    } else {
        if (!home_from_passwd(out))
            return false;
        fa__buf_text(out, "/.cache/fajit");
    }
    return true;
}

static void resolve_dir(fa__cache *cache, const fa__cache_options *options)
{
    fa__buf chosen = {0};
    if (!choose_dir(options, &chosen)) {
        fa__cache_set_problem(cache,
                              "there is no home directory to keep a cache in; set "
                              "FAJIT_CACHE_DIR to a directory of your own");
    } else if (!chosen.failed) {
        const int error = fa__file_absolute(chosen.data, &cache->dir);
        if (error != 0 && error != ENOMEM) {
            char room[128];
            fa__buf_reset(&cache->dir);
            fa__cache_set_problem(cache,
                                  "the cache directory \"%s\" is relative and the working "
                                  "directory has no name (%s); set FAJIT_CACHE_DIR to an absolute "
                                  "path",
                                  chosen.data, fa__file_reason(error, room));
        }
    }
    cache->dir.failed |= chosen.failed;
    fa__buf_free(&chosen);
    while (cache->dir.len > 1 && cache->dir.data[cache->dir.len - 1] == '/')
        cache->dir.data[--cache->dir.len] = '\0';
}

/* Whoever can write there decides what runs on this user's GPU. */
static bool trusted(fa__cache *cache, const fa__file_info *info, char *why, size_t size)
{
    const char *dir = cache->dir.data;
    if (!info->directory)
        snprintf(why, size, "\"%s\" is not a directory", dir);
    else if (info->owner != geteuid())
        snprintf(why, size, "\"%s\" belongs to user %" PRIu32 ", not to this one (%lu)", dir,
                 info->owner, (unsigned long)geteuid());
    else if (info->permissions & (S_IWGRP | S_IWOTH))
        snprintf(why, size,
                 "\"%s\" can be written by other users (mode %04" PRIo32
                 "; chmod 700 "
                 "would do)",
                 dir, info->permissions);
    else
        return true;
    return false;
}

static int check_locked(fa__cache *cache, bool create, char *why, size_t size)
{
    const int state = atomic_load(&cache->dir_state);
    if (state != FA__DIR_UNCHECKED)
        return state == FA__DIR_READY ? 0 : ENODEV;
    fa__file_info info;
    int error = fa__file_stat(cache->dir.data, true, &info);
    if (error == ENOENT && create) {
        error = fa__file_make_dirs(cache->dir.data, 0700);
        if (error == 0)
            error = fa__file_stat(cache->dir.data, true, &info);
    }
    if (error != 0)
        return error;
    const bool good = trusted(cache, &info, why, size);
    atomic_store(&cache->dir_state, good ? FA__DIR_READY : FA__DIR_NONE);
    return good ? 0 : ENODEV;
}

int fa__cache_dir_check(fa__cache *cache, bool create)
{
    if (atomic_load(&cache->dir_state) == FA__DIR_READY)
        return 0;
    char why[800] = "";
    pthread_mutex_lock(&cache->dir_mutex);
    const int error = check_locked(cache, create, why, sizeof why);
    pthread_mutex_unlock(&cache->dir_mutex);
    if (why[0]) {
        fa__cache_set_problem(cache, "%s; set FAJIT_CACHE_DIR to a directory of your own", why);
        fa__cache_log(cache, FA_LOG_WARNING, "no disk cache: %s", fa__cache_error(cache));
    }
    return error;
}

void fa__cache_dir_lost(fa__cache *cache)
{
    int ready = FA__DIR_READY;
    atomic_compare_exchange_strong(&cache->dir_state, &ready, FA__DIR_UNCHECKED);
}

/* ---- the read-only directories --------------------------------------------------------------- */

/* Naming a directory vouches for its owner; one that everybody can write to has none. */
static void add_layer(fa__cache *cache, const char *path)
{
    fa__buf absolute = {0};
    fa__file_info info;
    char room[128];
    int error = fa__file_absolute(path, &absolute);
    if (error == 0)
        error = fa__file_stat(absolute.data, true, &info);
    if (error == 0 && !info.directory)
        error = ENOTDIR;
    if (error != 0) {
        fa__cache_log(cache, FA_LOG_WARNING,
                      "read-only cache directory \"%s\" is not used: %s (FAJIT_CACHE_PATH)", path,
                      fa__file_reason(error, room));
    } else if (info.permissions & S_IWOTH) {
        fa__cache_log(cache, FA_LOG_WARNING,
                      "read-only cache directory \"%s\" is not used: everybody can write to it "
                      "(mode %04" PRIo32 "; FAJIT_CACHE_PATH)",
                      path, info.permissions);
    } else {
        if (cache->layer_list.len > 0)
            fa__buf_text(&cache->layer_list, ":");
        fa__buf_text(&cache->layer_list, absolute.data);
        cache->layers[cache->layer_count++] = absolute;
        return;
    }
    cache->layer_list.failed |= absolute.failed;
    fa__buf_free(&absolute);
}

static fa_status resolve_layers(fa__cache *cache, const char *list)
{
    size_t parts = 1;
    for (const char *c = list; *c; c++)
        parts += *c == ':';
    cache->layers = calloc(parts, sizeof *cache->layers);
    char *copy = strdup(list);
    if (cache->layers && copy) {
        char *rest = NULL;
        for (char *part = strtok_r(copy, ":", &rest); part; part = strtok_r(NULL, ":", &rest))
            add_layer(cache, part);
    }
    const bool complete = cache->layers && copy && !cache->layer_list.failed;
    free(copy);
    return complete ? FA_OK : fa__fail_memory(parts * sizeof *cache->layers);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static uint64_t choose_max_bytes(fa__cache *cache, uint64_t given)
{
    const char *text = environment("FAJIT_CACHE_MAX_BYTES");
    if (given > 0)
        return given;
    if (!text)
        return DEFAULT_MAX_BYTES;
    uint64_t value = 0;
    const char *c = text;
    for (; *c >= '0' && *c <= '9' && value <= (UINT64_MAX - 9) / 10; c++)
        value = value * 10 + (uint64_t)(*c - '0');
    if (*c == '\0' && value > 0)
        return value;
    fa__cache_log(cache, FA_LOG_WARNING,
                  "FAJIT_CACHE_MAX_BYTES=\"%s\" is not a number of bytes from 1; %" PRIu64
                  " is used",
                  text, DEFAULT_MAX_BYTES);
    return DEFAULT_MAX_BYTES;
}

fa_status fa__cache_find_dirs(fa__cache *cache, const fa__cache_options *options)
{
    const char *list = options->path ? options->path : environment("FAJIT_CACHE_PATH");
    cache->max_bytes = choose_max_bytes(cache, options->max_bytes);
    if (options->disabled) {
        fa__cache_set_problem(cache, "switched off by the no_disk_cache option");
        return FA_OK;
    }
    if (list && resolve_layers(cache, list) != FA_OK)
        return FA_ERR_OUT_OF_MEMORY;
    resolve_dir(cache, options);
    if (cache->dir.failed)
        return fa__fail_memory(cache->dir.len + 1);
    if (cache->dir.len == 0) {
        fa__cache_log(cache, FA_LOG_WARNING, "no disk cache: %s", fa__cache_error(cache));
        return FA_OK;
    }
    atomic_store(&cache->dir_state, FA__DIR_UNCHECKED);
    if (fa__cache_dir_check(cache, false) == ENODEV)
        fa__buf_reset(&cache->dir);
    return FA_OK;
}

void fa__cache_fan_path(const char *dir, unsigned fan, fa__buf *out)
{
    fa__buf_format(out, "%s/%02x", dir, fan);
}

void fa__cache_entry_path(const char *dir, const char *name, fa__buf *out)
{
    fa__buf_format(out, "%s/%.2s/%s%s", dir, name, name + 2, FA__CACHE_SUFFIX);
}

bool fa__cache_entry_name(unsigned fan, const char *file, char name[33])
{
    if (strspn(file, "0123456789abcdef") != 30 || strcmp(file + 30, FA__CACHE_SUFFIX) != 0)
        return false;
    snprintf(name, 33, "%02x%.30s", fan & 0xff, file);
    return true;
}
