/* The disk cache: read-only directories, then one writable directory. Nothing on disk is trusted,
 * and nothing that goes wrong with a disk is an error: it is a miss, a warning and a counter.
 *
 *     DIR/ab/cdef...01.fajit     entries, fanned out over 256 directories by the key's first byte
 *     DIR/lock                   one byte-range lock per key (open file description locks)
 *     DIR/size                   the running total that decides when to look for victims
 */
#ifndef FA_CACHE_H
#define FA_CACHE_H

#include <stdatomic.h>

#include "entry.h"
#include "key.h"
#include "log.h"

typedef struct fa__cache fa__cache;

typedef struct fa__cache_options {
    const char *dir; /* as fa_context_options: NULL means environment, then default */
    const char *path;
    uint64_t max_bytes;
    uint32_t lock_timeout_ms;
    bool disabled;      /* no_disk_cache */
    const fa__log *log; /* outlives the cache */
} fa__cache_options;

typedef struct fa__cache_stats {
    atomic_uint_fast64_t repairs, publish_failures, evictions, bytes_read, bytes_written,
        lock_timeouts, lock_waits;
} fa__cache_stats;

/* Reads the environment and looks at the read-only directories. The writable directory is created
 * by the first put. Fails only for lack of memory. */
fa_status fa__cache_open(const fa__cache_options *options, fa__cache **out);
void fa__cache_close(fa__cache *cache); /* NULL is ignored */

/* Looks through the layers in order; true on a hit, and *entry is then the caller's. Marks the
 * entry as used (its own mtime: no reliance on atime). A damaged entry in the writable directory is
 * counted as a repair when put replaces it. */
bool fa__cache_get(fa__cache *cache, const fa__key *key, fa__entry *entry);

/* Publishes: temporary file in the same directory, fsync, rename; then evicts if over the cap,
 * never the entry just written. Failure is logged (the first time as a warning) and counted. */
void fa__cache_put(fa__cache *cache, const fa__key *key, const fa__entry *entry);

/* Takes the key's lock among processes (and threads), waiting at most lock_timeout_ms. While
 * waiting it looks whether the entry has appeared; then it returns at once (the caller looks again
 * anyway). Returns a token for unlock; a negative token means that no lock is held (it does not
 * work here, or the wait ran out), which is no error. */
int fa__cache_lock(fa__cache *cache, const fa__key *key);
void fa__cache_unlock(fa__cache *cache, const fa__key *key, int token);

const char *fa__cache_dir(const fa__cache *cache);   /* "" when there is none */
const char *fa__cache_error(const fa__cache *cache); /* why not; "" */
const char *fa__cache_path(const fa__cache *cache);  /* read-only layers in use */
uint64_t fa__cache_max_bytes(const fa__cache *cache);
fa__cache_stats *fa__cache_statistics(fa__cache *cache);

fa_status fa__cache_visit(fa__cache *cache, bool verify, bool remove_damaged,
                          fa_cache_visitor visitor, void *user);
fa_status fa__cache_count(fa__cache *cache, uint64_t *entries, uint64_t *bytes);
fa_status fa__cache_clear(fa__cache *cache);

#endif
