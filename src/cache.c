#include "cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cache_impl.h"
#include "status.h"

#define DEFAULT_LOCK_TIMEOUT_MS 30000
/* How exact the order of last uses is; a use sooner after the last one costs no write. */
#define MARK_AFTER_S 60
/* Another process that clears the cache may take directories away while they are being filled. */
#define PUBLISH_ATTEMPTS 3

fa_log_level fa__cache_level(atomic_bool *warned)
{
    return atomic_exchange(warned, true) ? FA_LOG_DEBUG : FA_LOG_WARNING;
}

fa_status fa__cache_open(const fa__cache_options *options, fa__cache **out)
{
    *out = NULL;
    fa__cache *cache = calloc(1, sizeof *cache);
    if (!cache)
        return fa__fail_memory(sizeof *cache);
    pthread_mutex_init(&cache->dir_mutex, NULL);
    pthread_mutex_init(&cache->commit_mutex, NULL);
    cache->log = options->log;
    cache->lock_timeout_ms =
        options->lock_timeout_ms ? options->lock_timeout_ms : DEFAULT_LOCK_TIMEOUT_MS;
    const fa_status status = fa__cache_find_dirs(cache, options);
    if (status != FA_OK) {
        fa__cache_close(cache);
        return status;
    }
    *out = cache;
    return FA_OK;
}

void fa__cache_close(fa__cache *cache)
{
    if (!cache)
        return;
    for (size_t i = 0; i < cache->layer_count; i++)
        fa__buf_free(&cache->layers[i]);
    free(cache->layers);
    fa__buf_free(&cache->layer_list);
    fa__buf_free(&cache->problem_text);
    fa__buf_free(&cache->dir);
    pthread_mutex_destroy(&cache->commit_mutex);
    pthread_mutex_destroy(&cache->dir_mutex);
    free(cache);
}

/* ---- get ------------------------------------------------------------------------------------- */

/* Keeps the order of last uses in the entry's own modification time, which works where access times
 * are switched off. A directory that cannot be written to keeps its old order: eviction is then
 * impossible too, so that the failure has no consequence and is not reported. */
static void mark_used(const char *path, const fa__file_info *info)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const int64_t age_s = (int64_t)now.tv_sec - info->modified_ns / FA__CACHE_NANO;
    if (age_s > MARK_AFTER_S || age_s < -MARK_AFTER_S)
        (void)fa__file_touch(path);
}

static bool get_from(fa__cache *cache, const char *dir, bool writable, const fa__key *key,
                     fa__entry *entry)
{
    fa__buf path = {0};
    unsigned char *bytes = NULL;
    size_t len = 0;
    fa__file_info info = {0};
    char room[128];
    const char *problem = NULL;
    bool hit = false;
    fa__cache_entry_path(dir, key->name, &path);
    if (path.failed)
        goto done;
    const int error = fa__file_read(path.data, true, FA__CACHE_ENTRY_LIMIT, &bytes, &len, &info);
    if (error == ENOENT || error == ENOTDIR)
        goto done;
    if (error != 0)
        problem = fa__file_reason(error, room);
    else
        problem = fa__entry_decode(bytes, len, key->text.data, key->text.len, entry);
    if (problem) {
        fa__cache_log(cache, fa__cache_level(&cache->warned_damage),
                      "cache entry \"%s\" is ignored: %s", path.data, problem);
        goto done;
    }
    hit = true;
    atomic_fetch_add(&cache->stats.bytes_read, len);
    if (writable)
        mark_used(path.data, &info);
done:
    free(bytes);
    fa__buf_free(&path);
    return hit;
}

bool fa__cache_get(fa__cache *cache, const fa__key *key, fa__entry *entry)
{
    *entry = (fa__entry){0};
    for (size_t i = 0; i < cache->layer_count; i++)
        if (get_from(cache, cache->layers[i].data, false, key, entry))
            return true;
    return fa__cache_dir_check(cache, false) == 0 &&
           get_from(cache, cache->dir.data, true, key, entry);
}

/* ---- put ------------------------------------------------------------------------------------- */

/* Whether something lies at `path` that a get of this key would not accept. */
static bool is_damaged(const char *path, const fa__key *key)
{
    fa__file_info info;
    unsigned char *bytes = NULL;
    size_t len = 0;
    fa__entry entry;
    if (fa__file_stat(path, false, &info) != 0)
        return false;
    if (fa__file_read(path, true, FA__CACHE_ENTRY_LIMIT, &bytes, &len, NULL) != 0)
        return true;
    const char *problem = fa__entry_decode(bytes, len, key->text.data, key->text.len, &entry);
    fa__entry_free(&entry);
    free(bytes);
    return problem != NULL;
}

/* One attempt at writing `content` and giving it the name `path`. */
static int publish_once(fa__cache *cache, const fa__key *key, const char *path,
                        const fa__buf *content)
{
    fa__buf fan = {0}, temporary = {0};
    int error = fa__cache_dir_check(cache, true);
    if (error != 0)
        return error;
    fa__cache_fan_path(cache->dir.data, key->hash[0], &fan);
    error = fan.failed ? ENOMEM : fa__file_make_dir(fan.data, 0755);
    if (error == 0)
        error = fa__file_write_temporary(fan.data, 0644, content->data, content->len, &temporary);
    if (error == 0) {
        error = fa__cache_commit(cache, temporary.data, path, key->name, content->len);
        if (error != 0)
            (void)fa__file_remove(temporary.data); /* the commit's failure is what is reported */
    }
    if (error == ENOENT)
        fa__cache_dir_lost(cache);
    fa__buf_free(&temporary);
    fa__buf_free(&fan);
    return error;
}

static int publish(fa__cache *cache, const fa__key *key, const fa__buf *content, bool *repair)
{
    fa__buf path = {0};
    int error = ENOENT;
    fa__cache_entry_path(cache->dir.data, key->name, &path);
    if (path.failed)
        error = ENOMEM;
    else
        *repair = is_damaged(path.data, key);
    for (int attempt = 0; attempt < PUBLISH_ATTEMPTS && error == ENOENT; attempt++)
        error = publish_once(cache, key, path.data, content);
    fa__buf_free(&path);
    return error;
}

static void report_publish_failure(fa__cache *cache, const fa__key *key, const char *reason)
{
    atomic_fetch_add(&cache->stats.publish_failures, 1);
    fa__cache_set_problem(cache, "\"%s\" cannot be written to: %s", cache->dir.data, reason);
    fa__cache_log(cache, fa__cache_level(&cache->warned_publish),
                  "kernel %s is not kept in the cache directory \"%s\": %s (FAJIT_CACHE_DIR names "
                  "another directory)",
                  key->name, cache->dir.data, reason);
}

void fa__cache_put(fa__cache *cache, const fa__key *key, const fa__entry *entry)
{
    fa__buf content = {0};
    bool repair = false;
    char room[128];
    if (atomic_load(&cache->dir_state) == FA__DIR_NONE)
        return; /* said when that was found out */
    fa__entry_encode(entry, key->text.data, key->text.len, &content);
    if (!content.failed &&
        (content.len > cache->max_bytes || content.len > FA__CACHE_ENTRY_LIMIT)) {
        atomic_fetch_add(&cache->stats.publish_failures, 1);
        fa__cache_log(cache, fa__cache_level(&cache->warned_publish),
                      "kernel %s is not kept on disk: its %zu bytes are more than the whole cache "
                      "may have, %llu (FAJIT_CACHE_MAX_BYTES)",
                      key->name, content.len, (unsigned long long)cache->max_bytes);
        fa__buf_free(&content);
        return;
    }
    const int error = content.failed ? ENOMEM : publish(cache, key, &content, &repair);
    if (error == 0) {
        atomic_fetch_add(&cache->stats.bytes_written, content.len);
        if (repair)
            atomic_fetch_add(&cache->stats.repairs, 1);
    } else if (error == ENODEV && atomic_load(&cache->dir_state) == FA__DIR_NONE) {
        atomic_fetch_add(&cache->stats.publish_failures, 1); /* refused just now, and logged */
    } else {
        report_publish_failure(cache, key, fa__file_reason(error, room));
    }
    fa__buf_free(&content);
}

/* ---- what it is ------------------------------------------------------------------------------ */

static const char *text_of(const fa__buf *buf)
{
    return buf->data ? buf->data : "";
}

const char *fa__cache_dir(const fa__cache *cache)
{
    return text_of(&cache->dir);
}

const char *fa__cache_error(const fa__cache *cache)
{
    const char *problem = atomic_load(&cache->problem);
    return problem ? problem : "";
}

const char *fa__cache_path(const fa__cache *cache)
{
    return text_of(&cache->layer_list);
}

uint64_t fa__cache_max_bytes(const fa__cache *cache)
{
    return cache->max_bytes;
}

fa__cache_stats *fa__cache_statistics(fa__cache *cache)
{
    return &cache->stats;
}
