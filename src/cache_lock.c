#include <errno.h>
#include <time.h>

#include "cache_impl.h"
#include "clock.h"

#define POLL_FIRST_MS 1
#define POLL_LAST_MS 20

static int64_t now_ms(void)
{
    return (int64_t)(fa__now_ns() / 1000000u);
}

static void sleep_ms(int64_t ms)
{
    const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&pause, NULL); /* a signal only makes the next look come sooner */
}

static uint64_t lock_offset(const fa__key *key)
{
    uint64_t value = 0;
    for (int i = 0; i < 8; i++)
        value = value << 8 | key->hash[i];
    return value & INT64_MAX;
}

/* Opens the lock file anew: each opening owns its locks, so that threads exclude each other too. */
static int open_lock_file(fa__cache *cache, int *fd)
{
    fa__buf path = {0};
    int error = fa__cache_dir_check(cache, true);
    if (error != 0)
        return error;
    fa__buf_format(&path, "%s/lock", cache->dir.data);
    error = path.failed ? ENOMEM : fa__file_open(path.data, fd);
    if (error == ENOENT)
        fa__cache_dir_lost(cache);
    fa__buf_free(&path);
    return error;
}

/* The state of the key's file, to notice that another process has published it. A damaged file may
 * lie there from the start: only a different one counts. */
static fa__file_info look(const char *path)
{
    fa__file_info info = {0};
    if (fa__file_stat(path, false, &info) != 0)
        info = (fa__file_info){0};
    return info;
}

static bool has_appeared(const char *path, const fa__file_info *before)
{
    const fa__file_info now = look(path);
    return now.regular && (now.inode != before->inode || now.device != before->device ||
                           now.modified_ns != before->modified_ns || now.bytes != before->bytes);
}

/* 0: locked. ECANCELED: the entry appeared. ETIMEDOUT. Else: locks do not work here. */
static int wait_for_lock(fa__cache *cache, int fd, uint64_t offset, const char *path)
{
    int error = fa__file_lock(fd, offset);
    if (error != EAGAIN)
        return error;
    atomic_fetch_add(&cache->stats.lock_waits, 1);
    const fa__file_info before = look(path);
    const int64_t deadline = now_ms() + cache->lock_timeout_ms;
    int64_t pause = POLL_FIRST_MS;
    while (error == EAGAIN) {
        const int64_t left = deadline - now_ms();
        if (left <= 0)
            return ETIMEDOUT;
        sleep_ms(pause < left ? pause : left);
        pause = pause * 2 < POLL_LAST_MS ? pause * 2 : POLL_LAST_MS;
        if (has_appeared(path, &before))
            return ECANCELED;
        error = fa__file_lock(fd, offset);
    }
    return error;
}

int fa__cache_lock(fa__cache *cache, const fa__key *key)
{
    fa__buf path = {0};
    int fd = -1;
    char room[128];
    if (atomic_load(&cache->dir_state) == FA__DIR_NONE)
        return -1;
    int error = open_lock_file(cache, &fd);
    if (error == ENOENT) /* the directory went away since it was checked */
        error = open_lock_file(cache, &fd);
    fa__cache_entry_path(cache->dir.data, key->name, &path);
    if (error == 0)
        error = path.failed ? ENOMEM : wait_for_lock(cache, fd, lock_offset(key), path.data);
    if (error == ETIMEDOUT) {
        atomic_fetch_add(&cache->stats.lock_timeouts, 1);
        fa__cache_log(cache, FA_LOG_INFO,
                      "kernel %s: another process has had the lock for %u ms; not waiting longer",
                      key->name, (unsigned)cache->lock_timeout_ms);
    } else if (error != 0 && error != ECANCELED) {
        fa__cache_log(cache, FA_LOG_DEBUG, "kernel %s: no lock in \"%s\": %s", key->name,
                      cache->dir.data, fa__file_reason(error, room));
    }
    if (error != 0 && fd >= 0) {
        fa__file_close(fd);
        fd = -1;
    }
    fa__buf_free(&path);
    return fd;
}

void fa__cache_unlock(fa__cache *cache, const fa__key *key, int token)
{
    (void)cache;
    if (token < 0)
        return;
    /* Closing alone would leave the lock to a child that was forked meanwhile. */
    fa__file_unlock(token, lock_offset(key));
    fa__file_close(token);
}
