/* What the files of the disk cache share. Nothing else includes this.
 *
 *     cache.c        open, get, put
 *     cache_dirs.c   which directories, and whether they can be trusted
 *     cache_lock.c   one compile among processes
 *     cache_lru.c    the running total and eviction
 *     cache_visit.c  walking every entry
 */
#ifndef FA_CACHE_IMPL_H
#define FA_CACHE_IMPL_H

#include <pthread.h>

#include "cache.h"
#include "file.h"

#define FA__CACHE_SUFFIX ".fajit"
#define FA__CACHE_FANOUT 256
#define FA__CACHE_REST_LEN 36 /* 30 digits and the suffix */
#define FA__CACHE_NANO INT64_C(1000000000)
/* No kernel is near this; a file that claims to be is not worth reading. */
#define FA__CACHE_ENTRY_LIMIT (UINT64_C(1) << 30)

typedef enum fa__cache_dir_state {
    FA__DIR_NONE,      /* there is no writable directory, or it was refused: `problem` says why */
    FA__DIR_UNCHECKED, /* not there yet, or not looked at */
    FA__DIR_READY,     /* there, this user's alone */
} fa__cache_dir_state;

struct fa__cache {
    fa__buf dir;     /* the writable directory, absolute; fixed once opened */
    fa__buf *layers; /* the read-only directories in use, absolute */
    size_t layer_count;
    fa__buf layer_list; /* the same, ':' between */
    uint64_t max_bytes;
    uint32_t lock_timeout_ms;
    const fa__log *log;

    pthread_mutex_t dir_mutex;     /* creating and checking the writable directory; `problem` */
    _Atomic int dir_state;         /* fa__cache_dir_state */
    _Atomic(const char *) problem; /* set once: readers keep the pointer */
    fa__buf problem_text;          /* what it points to */

    pthread_mutex_t commit_mutex; /* the threads of this process, before the lock on DIR/size */
    unsigned unlocked_commits;
    atomic_bool warned_damage, warned_publish, warned_cap;
    fa__cache_stats stats;
};

#define fa__cache_log(cache, level, ...)                                                           \
    do {                                                                                           \
        if ((cache)->log)                                                                          \
            fa__log_write((cache)->log, (level), __VA_ARGS__);                                     \
    } while (0)

/* A warning the first time, for debugging afterwards: a disk that fails does so often. */
fa_log_level fa__cache_level(atomic_bool *warned);

/* dirs: resolves options and environment. Fails only for lack of memory. */
fa_status fa__cache_find_dirs(fa__cache *cache, const fa__cache_options *options);
/* Whether the writable directory is there and trusted. 0, or why not: ENOENT when it is missing and
 * not to be created, ENODEV when there is none or it was refused. */
int fa__cache_dir_check(fa__cache *cache, bool create);
/* The directory has gone since it was checked. */
void fa__cache_dir_lost(fa__cache *cache);
/* Remembers, the first time, why nothing can be written: fa__cache_error. */
void fa__cache_set_problem(fa__cache *cache, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Appends DIR/ab, and DIR/ab/rest.fajit. */
void fa__cache_fan_path(const char *dir, unsigned fan, fa__buf *out);
void fa__cache_entry_path(const char *dir, const char *name, fa__buf *out);
/* Whether `file` is "30 digits.fajit"; then name is the 32 digits. */
bool fa__cache_entry_name(unsigned fan, const char *file, char name[33]);

/* lru: renames a finished temporary file to `path` (of key `name`), keeps the running total and
 * evicts. 0, or the errno value of the rename. */
int fa__cache_commit(fa__cache *cache, const char *temporary, const char *path, const char *name,
                     uint64_t bytes);
/* Takes out the size file under its lock, so that the next commit counts anew. */
int fa__cache_forget_total(fa__cache *cache);

#endif
