#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cache_impl.h"
#include "digest.h"
#include "status.h"

/* Enough for the key text of nearly every entry; a longer one is read whole. */
#define PREFIX_BYTES 65536u

typedef bool (*walker)(void *user, const char *dir, unsigned fan, const char *file,
                       const fa__file_info *info);

typedef struct walk {
    walker call;
    void *user;
    const char *dir;
    unsigned fan;
    bool stopped;
} walk;

static bool step(void *user, const char *file, const fa__file_info *info)
{
    walk *state = user;
    state->stopped = !state->call(state->user, state->dir, state->fan, file, info);
    return !state->stopped;
}

/* Every file in the fan-out directories of one layer, until `call` returns false. *stopped may be
 * NULL. */
static fa_status walk_layer(const char *dir, walker call, void *user, bool *stopped)
{
    walk state = {.call = call, .user = user, .dir = dir};
    fa__buf path = {0};
    char room[128];
    fa_status status = FA_OK;
    for (; state.fan < FA__CACHE_FANOUT && !state.stopped && status == FA_OK; state.fan++) {
        fa__buf_reset(&path);
        fa__cache_fan_path(dir, state.fan, &path);
        if (path.failed) {
            status = fa__fail_memory(strlen(dir) + 4);
            break;
        }
        const int error = fa__file_list(path.data, step, &state);
        if (error != 0 && error != ENOENT && error != ENOTDIR)
            status = fa__fail(FA_ERR_IO, "cannot list cache directory \"%s\": %s", path.data,
                              fa__file_reason(error, room));
    }
    if (stopped)
        *stopped = state.stopped;
    fa__buf_free(&path);
    return status;
}

/* *there: whether the writable directory can be walked. One that is missing or refused is empty. */
static fa_status look_for_dir(fa__cache *cache, bool *there)
{
    char room[128];
    const int error = fa__cache_dir_check(cache, false);
    *there = error == 0;
    if (error == 0 || error == ENOENT || error == ENODEV)
        return FA_OK;
    return fa__fail(FA_ERR_IO, "cannot look at cache directory \"%s\": %s", cache->dir.data,
                    fa__file_reason(error, room));
}

/* ---- visit ----------------------------------------------------------------------------------- */

typedef struct visit {
    fa__cache *cache;
    fa_cache_visitor visitor;
    void *user;
    bool verify, remove_damaged, writable;
    fa_status status; /* what ended the walk, besides the visitor */
} visit;

/* A text that fits its place: the label of a key can be long. */
typedef struct fields {
    fa__buf name;
    char arch[64];
} fields;

static void read_fields(const char *text, size_t len, fields *out)
{
    char *label = malloc(len + 1);
    if (!label)
        return;
    fa__key_field(text, len, "label", label, len + 1);
    fa__key_field(text, len, "arch", out->arch, sizeof out->arch);
    fa__buf_text(&out->name, label);
    free(label);
}

/* NULL when the text's hash is the name of the file. */
static const char *check_name(const char *text, size_t len, const char *name)
{
    uint8_t hash[16];
    char digits[33];
    fa__digest(text, len, hash);
    fa__digest_hex(hash, sizeof hash, digits);
    return strcmp(name, digits) == 0 ? NULL : "it belongs to another key than its file name says";
}

/* Reads what is needed; returns what is wrong, NULL for nothing. */
static const char *inspect(const char *path, const char *name, bool verify, fields *out,
                           char room[128])
{
    unsigned char *bytes = NULL;
    size_t len = 0, text_len = 0;
    const char *text = NULL, *problem = NULL;
    int error = EFBIG;
    if (!verify) {
        error = fa__file_read_prefix(path, true, PREFIX_BYTES, &bytes, &len);
        if (error == 0 && len == PREFIX_BYTES &&
            !fa__entry_key_text(bytes, len, &text, &text_len)) {
            free(bytes);
            bytes = NULL;
            error = EFBIG;
        }
    }
    if (error == EFBIG)
        error = fa__file_read(path, true, FA__CACHE_ENTRY_LIMIT, &bytes, &len, NULL);
    if (error != 0)
        return fa__file_reason(error, room);
    if (verify) {
        fa__entry entry;
        problem = fa__entry_decode(bytes, len, NULL, 0, &entry);
        fa__entry_free(&entry);
    }
    if (!problem && !fa__entry_key_text(bytes, len, &text, &text_len))
        problem = "it is not a fajit cache entry";
    if (!problem && verify)
        problem = check_name(text, text_len, name);
    if (!problem)
        read_fields(text, text_len, out);
    free(bytes);
    return problem;
}

static bool visit_file(void *user, const char *dir, unsigned fan, const char *file,
                       const fa__file_info *info)
{
    visit *state = user;
    fa__buf path = {0};
    fields found = {0};
    char name[33], room[128], why[128];
    bool go_on = true;
    if (!fa__cache_entry_name(fan, file, name))
        return true;
    fa__cache_entry_path(dir, name, &path);
    if (path.failed) {
        state->status = fa__fail_memory(strlen(dir) + FA__CACHE_REST_LEN + 5);
        return false;
    }
    const char *problem = inspect(path.data, name, state->verify, &found, room);
    const bool damaged = state->verify && problem;
    if (damaged && state->remove_damaged && state->writable) {
        const int error =
            info->directory ? fa__file_remove_dir(path.data) : fa__file_remove(path.data);
        if (error != 0 && error != ENOENT)
            state->status = fa__fail(FA_ERR_IO, "cannot remove damaged cache entry \"%s\": %s",
                                     path.data, fa__file_reason(error, why));
    }
    const fa_cache_entry entry = {
        .path = path.data,
        .key = name,
        .name = found.name.data ? found.name.data : "",
        .arch = found.arch,
        .bytes = info->bytes,
        .used_unix_s = info->modified_ns / FA__CACHE_NANO,
        .writable_layer = state->writable,
        .damaged = damaged,
        .problem = problem ? problem : "",
    };
    go_on = state->visitor(state->user, &entry);
    fa__buf_free(&found.name);
    fa__buf_free(&path);
    return go_on;
}

fa_status fa__cache_visit(fa__cache *cache, bool verify, bool remove_damaged,
                          fa_cache_visitor visitor, void *user)
{
    visit state = {
        .cache = cache,
        .visitor = visitor,
        .user = user,
        .verify = verify,
        .remove_damaged = remove_damaged,
    };
    bool stopped = false, there = false;
    fa_status status = FA_OK;
    for (size_t i = 0; i < cache->layer_count && !stopped && status == FA_OK; i++)
        status = walk_layer(cache->layers[i].data, visit_file, &state, &stopped);
    state.writable = true;
    if (!stopped && status == FA_OK)
        status = look_for_dir(cache, &there);
    if (there)
        status = walk_layer(cache->dir.data, visit_file, &state, &stopped);
    return status != FA_OK ? status : state.status;
}

/* ---- count and clear ------------------------------------------------------------------------- */

typedef struct sum {
    uint64_t entries, bytes;
} sum;

static bool count_file(void *user, const char *dir, unsigned fan, const char *file,
                       const fa__file_info *info)
{
    sum *all = user;
    char name[33];
    (void)dir;
    if (info->regular && fa__cache_entry_name(fan, file, name)) {
        all->entries++;
        all->bytes += info->bytes;
    }
    return true;
}

fa_status fa__cache_count(fa__cache *cache, uint64_t *entries, uint64_t *bytes)
{
    sum all = {0};
    bool there = false;
    fa_status status = look_for_dir(cache, &there);
    if (there)
        status = walk_layer(cache->dir.data, count_file, &all, NULL);
    if (status != FA_OK)
        return status;
    *entries = all.entries;
    *bytes = all.bytes;
    return FA_OK;
}

/* Goes on after a failure, so that as much as possible is removed. */
static bool clear_file(void *user, const char *dir, unsigned fan, const char *file,
                       const fa__file_info *info)
{
    fa_status *status = user;
    fa__buf path = {0};
    char name[33], room[128];
    if (!fa__file_is_temporary(file) && !fa__cache_entry_name(fan, file, name))
        return true;
    fa__cache_fan_path(dir, fan, &path);
    fa__buf_format(&path, "/%s", file);
    if (path.failed) {
        *status = fa__fail_memory(strlen(dir) + strlen(file) + 5);
        return false;
    }
    const int error = info->directory ? fa__file_remove_dir(path.data) : fa__file_remove(path.data);
    if (error != 0 && error != ENOENT)
        *status = fa__fail(FA_ERR_IO, "cannot remove cache entry \"%s\": %s", path.data,
                           fa__file_reason(error, room));
    fa__buf_free(&path);
    return true;
}

fa_status fa__cache_clear(fa__cache *cache)
{
    fa_status removed = FA_OK;
    bool there = false;
    char room[128];
    const fa_status looked = look_for_dir(cache, &there);
    if (!there)
        return looked;
    const fa_status walked = walk_layer(cache->dir.data, clear_file, &removed, NULL);
    const int error = fa__cache_forget_total(cache);
    if (walked != FA_OK)
        return walked;
    if (removed == FA_OK && error != 0)
        removed = fa__fail(FA_ERR_IO, "cannot remove \"%s/size\": %s", cache->dir.data,
                           fa__file_reason(error, room));
    return removed;
}
