/* What the tests of the disk cache share: a scratch directory for each test, keys and entries by
 * number, and looks at what lies in a directory. */
#ifndef FA_TEST_CACHE_FIXTURE_H
#define FA_TEST_CACHE_FIXTURE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "cache.h"
#include "file.h"

#define UNUSED __attribute__((unused))

static char scratch[PATH_MAX];

static void scratch_make_in(const char *base)
{
    snprintf(scratch, sizeof scratch, "%s/fajit-cache-XXXXXX", base);
    if (!mkdtemp(scratch))
        abort();
    unsetenv("FAJIT_CACHE_DIR");
    unsetenv("FAJIT_CACHE_PATH");
    unsetenv("FAJIT_CACHE_MAX_BYTES");
    unsetenv("XDG_CACHE_HOME");
}

static UNUSED void scratch_make(void)
{
    const char *base = getenv("TMPDIR");
    scratch_make_in(base && *base ? base : "/tmp");
}

/* In memory where there is such a place: for tests that make thousands of directories. */
static UNUSED void scratch_make_quick(void)
{
    if (access("/dev/shm", W_OK | X_OK) == 0)
        scratch_make_in("/dev/shm");
    else
        scratch_make();
}

static int remove_item(const char *path, const struct stat *info, int kind, struct FTW *ftw)
{
    (void)info, (void)ftw;
    return kind == FTW_DP || kind == FTW_DNR ? rmdir(path) : unlink(path);
}

static int open_item(const char *path, const struct stat *info, int kind, struct FTW *ftw)
{
    (void)info, (void)ftw;
    return kind == FTW_D || kind == FTW_DNR ? chmod(path, 0700) : 0;
}

static UNUSED void tree_remove(const char *path)
{
    nftw(path, open_item, 16, FTW_PHYS);
    nftw(path, remove_item, 16, FTW_PHYS | FTW_DEPTH);
}

static UNUSED void scratch_remove(void)
{
    tree_remove(scratch);
}

/* Returns when somebody waits for a lock of the cache, and has looked at what he waits for. */
static UNUSED void until_waited_for(fa__cache *cache)
{
    while (atomic_load(&fa__cache_statistics(cache)->lock_waits) == 0)
        usleep(1000);
    usleep(50000);
}

/* scratch/NAME in one of a few rotating buffers. */
static UNUSED const char *in_scratch(const char *name)
{
    static _Thread_local char room[8][PATH_MAX];
    static _Thread_local unsigned next;
    char *path = room[next++ % 8];
    if ((size_t)snprintf(path, PATH_MAX, "%s/%s", scratch, name) >= PATH_MAX)
        abort();
    return path;
}

/* ---- keys and entries ------------------------------------------------------------------------ */

static UNUSED fa__key key_of_text(const char *text)
{
    static const char digits[] = "0123456789abcdef";
    fa__key key = {0};
    XXH128_canonical_t hash;
    fa__buf_text(&key.text, text);
    XXH128_canonicalFromHash(&hash, XXH3_128bits(text, strlen(text)));
    for (int i = 0; i < 16; i++) {
        key.hash[i] = hash.digest[i];
        key.name[2 * i] = digits[hash.digest[i] >> 4];
        key.name[2 * i + 1] = digits[hash.digest[i] & 15];
    }
    return key;
}

static UNUSED fa__key key_number(unsigned n)
{
    char text[128];
    snprintf(text, sizeof text, "fajit key 1\nop rope\nlabel rope f32 D%u\narch sm_90a\n", n);
    return key_of_text(text);
}

static UNUSED fa__entry entry_number(unsigned n, size_t cubin_bytes)
{
    fa__entry entry;
    char function[32], log[32];
    unsigned char *cubin = malloc(cubin_bytes + 1);
    if (!cubin)
        abort();
    for (size_t i = 0; i < cubin_bytes; i++)
        cubin[i] = (unsigned char)(n * 131u + i * 7u + (i >> 8));
    snprintf(function, sizeof function, "kernel_%u", n);
    snprintf(log, sizeof log, "log of %u\n", n);
    if (fa__entry_make(&entry, function, log, cubin, cubin_bytes) != FA_OK)
        abort();
    entry.registers = n + 1;
    entry.spill_bytes = n + 2;
    entry.smem_static_bytes = n + 3;
    entry.compile_ns = (uint64_t)n << 32 | 5;
    free(cubin);
    return entry;
}

static UNUSED bool entry_equal(const fa__entry *a, const fa__entry *b)
{
    return a->registers == b->registers && a->spill_bytes == b->spill_bytes &&
           a->smem_static_bytes == b->smem_static_bytes && a->compile_ns == b->compile_ns &&
           strcmp(a->function, b->function) == 0 && strcmp(a->log, b->log) == 0 &&
           a->cubin_bytes == b->cubin_bytes && memcmp(a->cubin, b->cubin, a->cubin_bytes) == 0;
}

static UNUSED fa__cache *cache_open(const fa__cache_options *options)
{
    fa__cache *cache = NULL;
    if (fa__cache_open(options, &cache) != FA_OK || !cache)
        abort();
    return cache;
}

static UNUSED fa__cache *cache_in(const char *dir)
{
    return cache_open(&(fa__cache_options){.dir = dir});
}

static UNUSED void put_number(fa__cache *cache, unsigned n, size_t cubin_bytes)
{
    fa__key key = key_number(n);
    fa__entry entry = entry_number(n, cubin_bytes);
    fa__cache_put(cache, &key, &entry);
    fa__entry_free(&entry);
    fa__key_free(&key);
}

/* 1: hit with the right content. 0: miss. -1: hit with anything else. */
static UNUSED int get_number(fa__cache *cache, unsigned n, size_t cubin_bytes)
{
    fa__key key = key_number(n);
    fa__entry found, expected = entry_number(n, cubin_bytes);
    const bool hit = fa__cache_get(cache, &key, &found);
    const int result = !hit ? 0 : entry_equal(&found, &expected) ? 1 : -1;
    fa__entry_free(&found);
    fa__entry_free(&expected);
    fa__key_free(&key);
    return result;
}

static UNUSED size_t encoded_bytes(unsigned n, size_t cubin_bytes)
{
    fa__key key = key_number(n);
    fa__entry entry = entry_number(n, cubin_bytes);
    fa__buf out = {0};
    fa__entry_encode(&entry, key.text.data, key.text.len, &out);
    const size_t len = out.len;
    fa__buf_free(&out);
    fa__entry_free(&entry);
    fa__key_free(&key);
    return len;
}

/* ---- files ----------------------------------------------------------------------------------- */

static UNUSED const char *path_of_number(const char *dir, unsigned n)
{
    static _Thread_local char path[PATH_MAX];
    fa__key key = key_number(n);
    if ((size_t)snprintf(path, sizeof path, "%s/%.2s/%s.fajit", dir, key.name, key.name + 2) >=
        sizeof path)
        abort();
    fa__key_free(&key);
    return path;
}

static UNUSED void file_write(const char *path, const void *bytes, size_t len)
{
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, len, file) != len || fclose(file) != 0)
        abort();
}

static UNUSED bool file_exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

static UNUSED void file_set_age(const char *path, int64_t seconds)
{
    struct timespec times[2];
    clock_gettime(CLOCK_REALTIME, &times[1]);
    times[1].tv_sec -= seconds;
    times[0] = times[1];
    if (utimensat(AT_FDCWD, path, times, 0) != 0)
        abort();
}

static UNUSED int64_t file_age(const char *path)
{
    struct stat info;
    struct timespec now;
    if (stat(path, &info) != 0)
        abort();
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec - info.st_mtim.tv_sec;
}

typedef struct census {
    unsigned entries, temporaries, others;
    uint64_t entry_bytes;
} census;

static census counted;

static int census_item(const char *path, const struct stat *info, int kind, struct FTW *ftw)
{
    const char *name = path + ftw->base;
    const size_t len = strlen(name);
    if (kind != FTW_F)
        return 0;
    if (fa__file_is_temporary(name)) {
        counted.temporaries++;
    } else if (len > 6 && strcmp(name + len - 6, ".fajit") == 0) {
        counted.entries++;
        counted.entry_bytes += (uint64_t)info->st_size;
    } else {
        counted.others++;
    }
    return 0;
}

static UNUSED census take_census(const char *dir)
{
    counted = (census){0};
    nftw(dir, census_item, 16, FTW_PHYS);
    return counted;
}

/* ---- log lines ------------------------------------------------------------------------------- */

typedef struct log_catch {
    fa__log log;
    int warnings;
    char last_warning[1024];
} log_catch;

static void catch_line(void *user, fa_log_level level, const char *line)
{
    log_catch *caught = user;
    if (level <= FA_LOG_WARNING) {
        caught->warnings++;
        snprintf(caught->last_warning, sizeof caught->last_warning, "%s", line);
    }
}

static UNUSED void log_catch_init(log_catch *caught)
{
    *caught = (log_catch){.log = {.callback = catch_line, .level = FA_LOG_DEBUG}};
    caught->log.user = caught;
}

#endif
