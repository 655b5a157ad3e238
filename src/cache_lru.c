/* DIR/size holds the sum of the sizes of all entries as 20 decimal digits and a newline. It is only
 * ever too large (an entry that is replaced or removed by hand is not subtracted), so that the cap
 * holds; counting anew puts it right. Whoever adds to it holds its lock until the entry has its
 * final name: a count by another process then sees either both or neither. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cache_impl.h"

#define TOTAL_LEN 21
#define LOCK_WAIT_MS 1000
#define LEFTOVER_AGE_S 3600
/* Where the lock does not work other processes' additions get lost now and then. */
#define COUNT_EVERY_UNLOCKED 32

typedef struct total {
    int fd; /* -1: no size file */
    bool locked, known;
    uint64_t bytes;
} total;

/* ---- the size file --------------------------------------------------------------------------- */

static bool lock_bounded(int fd)
{
    int error = fa__file_lock(fd, 0);
    for (int waited = 0; error == EAGAIN && waited < LOCK_WAIT_MS; waited++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        error = fa__file_lock(fd, 0);
    }
    return error == 0;
}

static bool parse_total(const char *text, size_t len, uint64_t *value)
{
    if (len != TOTAL_LEN || text[TOTAL_LEN - 1] != '\n')
        return false;
    *value = 0;
    for (int i = 0; i < TOTAL_LEN - 1; i++) {
        if (text[i] < '0' || text[i] > '9' || *value > (UINT64_MAX - 9) / 10)
            return false;
        *value = *value * 10 + (uint64_t)(text[i] - '0');
    }
    return true;
}

/* Opens and locks the size file; one that was removed between the two is opened anew. */
static total total_open(fa__cache *cache)
{
    total sum = {.fd = -1};
    fa__buf path = {0};
    char text[TOTAL_LEN + 1];
    size_t len = 0;
    fa__file_info info = {0};
    fa__buf_format(&path, "%s/size", cache->dir.data);
    for (int attempt = 0; attempt < 8 && !path.failed; attempt++) {
        if (fa__file_open(path.data, &sum.fd) != 0)
            break;
        sum.locked = lock_bounded(sum.fd);
        if (fa__file_stat_open(sum.fd, &info) != 0 || info.links > 0)
            break;
        fa__file_close(sum.fd);
        sum = (total){.fd = -1};
    }
    if (sum.fd >= 0 && fa__file_load(sum.fd, text, sizeof text, &len) == 0)
        sum.known = parse_total(text, len, &sum.bytes);
    fa__buf_free(&path);
    return sum;
}

/* A total that cannot be written is made unreadable, so that it is counted anew. */
static void total_store(fa__cache *cache, total *sum, uint64_t bytes)
{
    char text[TOTAL_LEN + 1];
    char room[128];
    sum->bytes = bytes;
    if (sum->fd < 0)
        return;
    snprintf(text, sizeof text, "%020" PRIu64 "\n", bytes);
    const int error = fa__file_store(sum->fd, text, TOTAL_LEN);
    if (error == 0)
        return;
    fa__cache_log(cache, FA_LOG_DEBUG, "\"%s/size\" cannot be written: %s", cache->dir.data,
                  fa__file_reason(error, room));
    if (fa__file_store(sum->fd, "", 0) != 0) {
        fa__buf path = {0};
        fa__buf_format(&path, "%s/size", cache->dir.data);
        if (!path.failed)
            (void)fa__file_remove(path.data); /* nothing is left to try: the next count repairs */
        fa__buf_free(&path);
    }
}

static void total_close(total *sum)
{
    if (sum->locked)
        fa__file_unlock(sum->fd, 0);
    if (sum->fd >= 0)
        fa__file_close(sum->fd);
}

int fa__cache_forget_total(fa__cache *cache)
{
    fa__buf path = {0};
    total sum = total_open(cache);
    fa__buf_format(&path, "%s/size", cache->dir.data);
    const int error = path.failed ? ENOMEM : fa__file_remove(path.data);
    total_close(&sum);
    fa__buf_free(&path);
    return error == ENOENT ? 0 : error;
}

/* ---- counting -------------------------------------------------------------------------------- */

typedef struct item {
    char name[33];
    uint64_t bytes;
    int64_t used_ns;
} item;

typedef struct inventory {
    fa__cache *cache;
    item *items;
    size_t count, capacity;
    uint64_t bytes;
    int64_t now_s;
    unsigned fan;
    bool failed; /* out of memory */
} inventory;

static void remove_in_fan(const inventory *all, const char *file)
{
    fa__buf path = {0};
    fa__cache_fan_path(all->cache->dir.data, all->fan, &path);
    fa__buf_format(&path, "/%s", file);
    if (!path.failed && fa__file_remove(path.data) == 0)
        fa__cache_log(all->cache, FA_LOG_DEBUG, "removed \"%s\", left by a process that died",
                      path.data);
    fa__buf_free(&path);
}

static bool take_stock(void *user, const char *file, const fa__file_info *info)
{
    inventory *all = user;
    item found = {.bytes = info->bytes, .used_ns = info->modified_ns};
    if (fa__file_is_temporary(file)) {
        if (info->regular && all->now_s - info->modified_ns / FA__CACHE_NANO > LEFTOVER_AGE_S)
            remove_in_fan(all, file);
        return true;
    }
    if (!info->regular || !fa__cache_entry_name(all->fan, file, found.name))
        return true;
    all->bytes += info->bytes;
    if (all->count == all->capacity) {
        const size_t capacity = all->capacity ? all->capacity * 2 : 256;
        item *items = realloc(all->items, capacity * sizeof *items);
        if (!items) {
            all->failed = true;
            return false;
        }
        all->items = items;
        all->capacity = capacity;
    }
    all->items[all->count++] = found;
    return true;
}

static inventory count_all(fa__cache *cache)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    inventory all = {.cache = cache, .now_s = now.tv_sec};
    fa__buf path = {0};
    for (; all.fan < FA__CACHE_FANOUT && !all.failed; all.fan++) {
        fa__buf_reset(&path);
        fa__cache_fan_path(cache->dir.data, all.fan, &path);
        all.failed = path.failed;
        if (!path.failed) {
            const int error = fa__file_list(path.data, take_stock, &all);
            all.failed |= error != 0 && error != ENOENT && error != ENOTDIR;
        }
    }
    fa__buf_free(&path);
    return all;
}

/* ---- eviction -------------------------------------------------------------------------------- */

static int by_last_use(const void *left, const void *right)
{
    const item *a = left, *b = right;
    if (a->used_ns != b->used_ns)
        return a->used_ns < b->used_ns ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Whether the file is gone afterwards. One that was used or replaced since it was counted stays. A
 * process that has it open keeps reading it: removing takes away the name alone. */
static bool evict(fa__cache *cache, const item *victim)
{
    fa__buf path = {0};
    fa__file_info info;
    bool gone = false;
    fa__cache_entry_path(cache->dir.data, victim->name, &path);
    if (!path.failed && fa__file_stat(path.data, false, &info) == 0 &&
        info.modified_ns == victim->used_ns && fa__file_remove(path.data) == 0) {
        gone = true;
        atomic_fetch_add(&cache->stats.evictions, 1);
        fa__cache_log(cache, FA_LOG_DEBUG, "evicted \"%s\"", path.data);
    }
    fa__buf_free(&path);
    return gone;
}

/* Counts; over the cap, removes the least recently used down to nine tenths of it, so that the next
 * puts need no count, but never `keep`. Returns the new total. */
static uint64_t make_room(fa__cache *cache, const char *keep, bool *complete)
{
    inventory all = count_all(cache);
    const uint64_t goal = cache->max_bytes - cache->max_bytes / 10;
    *complete = !all.failed;
    if (all.bytes > cache->max_bytes && all.count > 0) {
        qsort(all.items, all.count, sizeof *all.items, by_last_use);
        for (size_t i = 0; i < all.count && all.bytes > goal; i++)
            if (strcmp(all.items[i].name, keep) != 0 && evict(cache, &all.items[i]))
                all.bytes -= all.items[i].bytes;
    }
    if (all.bytes > cache->max_bytes)
        fa__cache_log(cache, fa__cache_level(&cache->warned_cap),
                      "\"%s\" holds %" PRIu64 " bytes, more than its %" PRIu64
                      ", and no more entries can be removed",
                      cache->dir.data, all.bytes, cache->max_bytes);
    free(all.items);
    return all.bytes;
}

static int rename_over(const char *temporary, const char *path)
{
    int error = fa__file_rename(temporary, path);
    if (error == EISDIR && fa__file_remove_dir(path) == 0) /* something else made it */
        error = fa__file_rename(temporary, path);
    return error;
}

int fa__cache_commit(fa__cache *cache, const char *temporary, const char *path, const char *name,
                     uint64_t bytes)
{
    bool count = false, complete = true;
    pthread_mutex_lock(&cache->commit_mutex);
    total sum = total_open(cache);
    const uint64_t before = sum.bytes;
    if (sum.known) /* added first: a crash in between leaves it too large, which is harmless */
        total_store(cache, &sum, before + bytes);
    const int error = rename_over(temporary, path);
    if (error != 0) {
        if (sum.known)
            total_store(cache, &sum, before);
        goto done;
    }
    if (!sum.locked)
        count = cache->unlocked_commits++ % COUNT_EVERY_UNLOCKED == 0;
    if (count || (sum.locked && !sum.known) || (sum.known && sum.bytes > cache->max_bytes)) {
        const uint64_t left = make_room(cache, name, &complete);
        if (complete)
            total_store(cache, &sum, left);
    }
done:
    total_close(&sum);
    pthread_mutex_unlock(&cache->commit_mutex);
    return error;
}
