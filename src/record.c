#include "record.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "manifest.h"
#include "status.h"

typedef struct item {
    fa_spec spec;
    void *memory; /* what spec points to */
    XXH128_hash_t hash;
} item;

struct fa__record {
    pthread_mutex_t lock;
    item *items;
    size_t count, capacity;
    uint32_t *index;   /* open addressing: item number + 1, 0 is free */
    size_t index_size; /* a power of two, at least twice count */
    bool lost;
};

fa__record *fa__record_create(void)
{
    fa__record *record = calloc(1, sizeof *record);
    if (record)
        pthread_mutex_init(&record->lock, NULL);
    return record;
}

void fa__record_destroy(fa__record *record)
{
    if (!record)
        return;
    for (size_t i = 0; i < record->count; i++)
        free(record->items[i].memory);
    free(record->items);
    free(record->index);
    pthread_mutex_destroy(&record->lock);
    free(record);
}

static size_t probe(const fa__record *record, XXH128_hash_t hash)
{
    size_t mask = record->index_size - 1, at = hash.low64 & mask;
    while (record->index[at] && !XXH128_isEqual(record->items[record->index[at] - 1].hash, hash))
        at = (at + 1) & mask;
    return at;
}

static bool grow(fa__record *record)
{
    if (record->count < record->capacity)
        return true;
    size_t capacity = record->capacity ? record->capacity * 2 : 32;
    item *items = realloc(record->items, capacity * sizeof *items);
    if (!items)
        return false;
    record->items = items;
    uint32_t *index = calloc(capacity * 2, sizeof *index);
    if (!index)
        return false;
    free(record->index);
    record->index = index;
    record->index_size = capacity * 2;
    record->capacity = capacity;
    for (size_t i = 0; i < record->count; i++)
        record->index[probe(record, record->items[i].hash)] = (uint32_t)i + 1;
    return true;
}

void fa__record_add(fa__record *record, const fa__op *op, const fa_spec *spec, const void *bytes,
                    size_t len)
{
    XXH128_hash_t hash = XXH3_128bits(bytes, len);
    pthread_mutex_lock(&record->lock);
    if (!grow(record)) {
        record->lost = true;
    } else {
        size_t at = probe(record, hash);
        if (!record->index[at]) {
            item *it = &record->items[record->count];
            *it = (item){.spec = *spec, .hash = hash};
            if (op->copy && op->copy(&it->spec, &it->memory) != FA_OK)
                record->lost = true;
            else
                record->index[at] = (uint32_t)++record->count;
        }
    }
    pthread_mutex_unlock(&record->lock);
}

fa_status fa__record_write(fa__record *record, fa__buf *out)
{
    fa_status status = FA_OK;
    pthread_mutex_lock(&record->lock);
    bool lost = record->lost;
    fa__manifest_begin(out);
    for (size_t i = 0; i < record->count && status == FA_OK; i++)
        status = fa__manifest_add(out, &record->items[i].spec, i == 0);
    fa__manifest_end(out);
    pthread_mutex_unlock(&record->lock);
    if (status)
        return status;
    if (lost || out->failed)
        return fa__fail(
            FA_ERR_OUT_OF_MEMORY,
            "the manifest would not be whole: there was no memory to record every request");
    return FA_OK;
}
