#include "kernels.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "status.h"

typedef struct fa__slot {
    struct fa__slot *next;    /* in its bucket */
    struct fa__slot *sibling; /* leads to the same kernel */
    fa_kernel *kernel;
    uint64_t hash;
    size_t len;
    unsigned char bytes[];
} fa__slot;

struct fa__flight {
    fa__flight *next;
    uint64_t hash;
    size_t len;
    uint32_t waiting;
    bool landed;
    fa_status status;
    fa_kernel *kernel;
    char *message; /* the leader's fa_last_error when it failed */
    pthread_cond_t landing;
    unsigned char bytes[];
};

struct fa__kernels {
    pthread_mutex_t lock;
    fa__slot **buckets;
    size_t bucket_count; /* a power of two */
    size_t slot_count, kernel_count;
    fa__flight *flights;
    fa_kernel *idle_newest, *idle_oldest;
    uint32_t idle_count, max_idle;
    bool closed;
};

fa__kernels *fa__kernels_create(uint32_t max_idle)
{
    fa__kernels *table = calloc(1, sizeof *table);
    if (!table)
        return NULL;
    table->bucket_count = 64;
    table->buckets = calloc(table->bucket_count, sizeof(fa__slot *));
    if (!table->buckets) {
        free(table);
        return NULL;
    }
    table->max_idle = max_idle;
    pthread_mutex_init(&table->lock, NULL);
    return table;
}

void fa__kernels_destroy(fa__kernels *table)
{
    if (!table)
        return;
    pthread_mutex_destroy(&table->lock);
    free(table->buckets);
    free(table);
}

/* --- slots --- */

static fa__slot **bucket_of(fa__kernels *table, uint64_t hash)
{
    return &table->buckets[hash & (table->bucket_count - 1)];
}

static fa_kernel *lookup(fa__kernels *table, uint64_t hash, const void *bytes, size_t len)
{
    for (fa__slot *s = *bucket_of(table, hash); s; s = s->next)
        if (s->hash == hash && s->len == len && memcmp(s->bytes, bytes, len) == 0)
            return s->kernel;
    return NULL;
}

/* Doubles the buckets when they are full; without memory for it the chains only get longer. */
static void make_room(fa__kernels *table)
{
    if (table->slot_count < table->bucket_count)
        return;
    size_t count = table->bucket_count * 2;
    fa__slot **buckets = calloc(count, sizeof(fa__slot *));
    if (!buckets)
        return;
    for (size_t i = 0; i < table->bucket_count; i++)
        for (fa__slot *s = table->buckets[i], *next; s; s = next) {
            next = s->next;
            s->next = buckets[s->hash & (count - 1)];
            buckets[s->hash & (count - 1)] = s;
        }
    free(table->buckets);
    table->buckets = buckets;
    table->bucket_count = count;
}

static void add_slot(fa__kernels *table, fa__flight *flight, fa_kernel *kernel)
{
    fa__slot *slot = malloc(sizeof *slot + flight->len);
    if (!slot)
        return; /* the kernel works; the next request for it makes another */
    make_room(table);
    fa__slot **bucket = bucket_of(table, flight->hash);
    *slot = (fa__slot){*bucket, kernel->slots, kernel, flight->hash, flight->len};
    memcpy(slot->bytes, flight->bytes, flight->len);
    *bucket = slot;
    if (!kernel->slots)
        table->kernel_count++;
    kernel->slots = slot;
    table->slot_count++;
}

static void remove_slots(fa__kernels *table, fa_kernel *kernel)
{
    if (kernel->slots)
        table->kernel_count--;
    for (fa__slot *slot = kernel->slots, *sibling; slot; slot = sibling) {
        fa__slot **at = bucket_of(table, slot->hash);
        while (*at != slot)
            at = &(*at)->next;
        *at = slot->next;
        sibling = slot->sibling;
        table->slot_count--;
        free(slot);
    }
    kernel->slots = NULL;
}

/* --- idle kernels --- */

static void unlink_idle(fa__kernels *table, fa_kernel *kernel)
{
    *(kernel->idle_newer ? &kernel->idle_newer->idle_older : &table->idle_newest) =
        kernel->idle_older;
    *(kernel->idle_older ? &kernel->idle_older->idle_newer : &table->idle_oldest) =
        kernel->idle_newer;
    kernel->idle_newer = kernel->idle_older = NULL;
    table->idle_count--;
}

static void link_idle(fa__kernels *table, fa_kernel *kernel)
{
    kernel->idle_newer = NULL;
    kernel->idle_older = table->idle_newest;
    *(table->idle_newest ? &table->idle_newest->idle_newer : &table->idle_oldest) = kernel;
    table->idle_newest = kernel;
    table->idle_count++;
}

static void hold(fa__kernels *table, fa_kernel *kernel, uint32_t times)
{
    if (times && kernel->holders == 0)
        unlink_idle(table, kernel);
    kernel->holders += times;
}

void fa__kernels_hold(fa__kernels *table, fa_kernel *kernel)
{
    pthread_mutex_lock(&table->lock);
    hold(table, kernel, 1);
    pthread_mutex_unlock(&table->lock);
}

fa_kernel *fa__kernels_find(fa__kernels *table, const void *bytes, size_t len)
{
    uint64_t hash = XXH3_64bits(bytes, len);
    pthread_mutex_lock(&table->lock);
    fa_kernel *kernel = lookup(table, hash, bytes, len);
    if (kernel)
        hold(table, kernel, 1);
    pthread_mutex_unlock(&table->lock);
    return kernel;
}

size_t fa__kernels_count(fa__kernels *table)
{
    pthread_mutex_lock(&table->lock);
    size_t count = table->kernel_count;
    pthread_mutex_unlock(&table->lock);
    return count;
}

fa_kernel *fa__kernels_drop(fa__kernels *table, fa_kernel *kernel)
{
    fa_kernel *victim = NULL;
    pthread_mutex_lock(&table->lock);
    if (--kernel->holders == 0) {
        if (table->closed || !kernel->slots) {
            remove_slots(table, kernel);
            victim = kernel;
        } else {
            link_idle(table, kernel);
            if (table->idle_count > table->max_idle) {
                victim = table->idle_oldest;
                unlink_idle(table, victim);
                remove_slots(table, victim);
            }
        }
    }
    pthread_mutex_unlock(&table->lock);
    return victim;
}

fa_kernel *fa__kernels_close(fa__kernels *table)
{
    pthread_mutex_lock(&table->lock);
    table->closed = true;
    fa_kernel *idle = table->idle_newest;
    for (fa_kernel *k = idle; k; k = k->idle_older)
        remove_slots(table, k);
    table->idle_newest = table->idle_oldest = NULL;
    table->idle_count = 0;
    pthread_mutex_unlock(&table->lock);
    return idle;
}

/* --- flights --- */

static fa__flight *find_flight(fa__kernels *table, uint64_t hash, const void *bytes, size_t len)
{
    for (fa__flight *f = table->flights; f; f = f->next)
        if (f->hash == hash && f->len == len && memcmp(f->bytes, bytes, len) == 0)
            return f;
    return NULL;
}

static void free_flight(fa__flight *flight)
{
    pthread_cond_destroy(&flight->landing);
    free(flight->message);
    free(flight);
}

static fa__flight *start_flight(fa__kernels *table, uint64_t hash, const void *bytes, size_t len)
{
    fa__flight *flight = malloc(sizeof *flight + len);
    if (!flight)
        return NULL;
    *flight = (fa__flight){.next = table->flights, .hash = hash, .len = len};
    memcpy(flight->bytes, bytes, len);
    pthread_cond_init(&flight->landing, NULL);
    table->flights = flight;
    return flight;
}

/* Waits for another thread's flight, under the lock. The last to leave frees it. */
static fa_status ride(fa__kernels *table, fa__flight *flight, fa_kernel **kernel)
{
    flight->waiting++;
    while (!flight->landed)
        pthread_cond_wait(&flight->landing, &table->lock);
    fa_status status = flight->status;
    *kernel = flight->kernel; /* held for this thread by land */
    if (status)
        fa__fail_text(status, flight->message ? flight->message : fa_status_name(status));
    if (--flight->waiting == 0)
        free_flight(flight);
    return status;
}

fa_status fa__flight_board(fa__kernels *table, const void *bytes, size_t len, fa_kernel **kernel,
                           fa__flight **flight, bool *waited)
{
    fa_status status = FA_OK;
    uint64_t hash = XXH3_64bits(bytes, len);
    *flight = NULL;
    *waited = false;
    pthread_mutex_lock(&table->lock);
    *kernel = lookup(table, hash, bytes, len);
    if (*kernel) {
        hold(table, *kernel, 1);
    } else {
        fa__flight *other = find_flight(table, hash, bytes, len);
        if (other) {
            *waited = true;
            status = ride(table, other, kernel);
        } else {
            *flight = start_flight(table, hash, bytes, len);
            if (!*flight)
                status = fa__fail_memory(sizeof **flight + len);
        }
    }
    pthread_mutex_unlock(&table->lock);
    return status;
}

fa_status fa__flight_land(fa__kernels *table, fa__flight *flight, fa_status status,
                          fa_kernel *kernel)
{
    pthread_mutex_lock(&table->lock);
    fa__flight **at = &table->flights;
    while (*at != flight)
        at = &(*at)->next;
    *at = flight->next;
    flight->landed = true;
    flight->status = status;
    if (status == FA_OK) {
        flight->kernel = kernel;
        hold(table, kernel, flight->waiting);
        add_slot(table, flight, kernel);
    } else {
        flight->message = strdup(fa_last_error());
    }
    if (flight->waiting)
        pthread_cond_broadcast(&flight->landing);
    else
        free_flight(flight);
    pthread_mutex_unlock(&table->lock);
    return status;
}
