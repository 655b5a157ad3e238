/* The memory cache on kernels that were never compiled: lookup, flights, holds, idle kernels. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels.h"
#include "status.h"

static fa_kernel *new_kernel(void)
{
    fa_kernel *kernel = calloc(1, sizeof *kernel);
    kernel->holders = 1;
    return kernel;
}

/* Puts a kernel in, held once. */
static fa_kernel *put(fa__kernels *table, const void *bytes, size_t len, fa_kernel *kernel)
{
    fa_kernel *found = NULL;
    fa__flight *flight = NULL;
    bool waited = false;
    cr_assert_eq(fa__flight_board(table, bytes, len, &found, &flight, &waited), FA_OK);
    cr_assert(flight && !found && !waited);
    cr_assert_eq(fa__flight_land(table, flight, FA_OK, kernel), FA_OK);
    return kernel;
}

static void close_and_free(fa__kernels *table)
{
    fa_kernel *idle = fa__kernels_close(table);
    for (fa_kernel *next; idle; idle = next) {
        next = idle->idle_older;
        free(idle);
    }
    fa__kernels_destroy(table);
}

Test(kernels, many_are_found_and_none_is_mistaken)
{
    fa__kernels *table = fa__kernels_create(20000);
    enum { COUNT = 10000 };
    fa_kernel **kernel = calloc(COUNT, sizeof *kernel);
    for (uint32_t i = 0; i < COUNT; i++)
        kernel[i] = put(table, &i, sizeof i, new_kernel());
    for (uint32_t i = 0; i < COUNT; i++) {
        cr_assert_eq(fa__kernels_find(table, &i, sizeof i), kernel[i]);
        cr_assert_null(fa__kernels_drop(table, kernel[i]));
        cr_assert_null(fa__kernels_drop(table, kernel[i]));
        cr_assert_null(fa__kernels_find(table, &i, 3));
    }
    cr_assert_eq(fa__kernels_count(table), COUNT);
    free(kernel);
    close_and_free(table);
}

Test(kernels, two_packed_specs_lead_to_one_kernel)
{
    fa__kernels *table = fa__kernels_create(4);
    fa_kernel *kernel = put(table, "normal", 6, new_kernel());
    put(table, "short", 5, kernel);
    cr_expect_eq(fa__kernels_find(table, "short", 5), kernel);
    cr_expect_eq(fa__kernels_find(table, "normal", 6), kernel);
    cr_expect_eq(fa__kernels_count(table), 1);
    for (int i = 0; i < 3; i++)
        cr_expect_null(fa__kernels_drop(table, kernel));
    close_and_free(table);
}

Test(kernels, F59_the_least_recently_used_idle_kernel_goes)
{
    fa__kernels *table = fa__kernels_create(2);
    fa_kernel *a = put(table, "a", 1, new_kernel()), *b = put(table, "b", 1, new_kernel()),
              *c = put(table, "c", 1, new_kernel());
    cr_expect_null(fa__kernels_drop(table, a));
    cr_expect_null(fa__kernels_drop(table, b));
    cr_expect_eq(fa__kernels_find(table, "a", 1), a); /* used again: b is now the oldest */
    cr_expect_null(fa__kernels_drop(table, a));
    cr_expect_eq(fa__kernels_drop(table, c), b);
    cr_expect_null(fa__kernels_find(table, "b", 1));
    cr_expect_eq(fa__kernels_count(table), 2);
    free(b);
    close_and_free(table);
}

Test(kernels, a_held_kernel_outlives_the_table_s_close)
{
    fa__kernels *table = fa__kernels_create(2);
    fa_kernel *a = put(table, "a", 1, new_kernel());
    cr_expect_null(fa__kernels_close(table));
    cr_expect_eq(fa__kernels_drop(table, a), a);
    free(a);
    fa__kernels_destroy(table);
}

typedef struct ride {
    fa__kernels *table;
    atomic_int led, held, failed;
    bool fail;
    pthread_barrier_t start;
} ride;

static void *passenger(void *arg)
{
    ride *r = arg;
    fa_kernel *kernel = NULL;
    fa__flight *flight = NULL;
    bool waited = false;
    pthread_barrier_wait(&r->start);
    fa_status status = fa__flight_board(r->table, "k", 1, &kernel, &flight, &waited);
    if (flight) {
        atomic_fetch_add(&r->led, 1);
        usleep(20000);
        if (r->fail)
            status = fa__flight_land(r->table, flight, fa__fail(FA_ERR_COMPILE, "the log"), NULL);
        else
            status = fa__flight_land(r->table, flight, FA_OK, kernel = new_kernel());
    }
    if (status == FA_OK && kernel)
        atomic_fetch_add(&r->held, 1);
    if (status == FA_ERR_COMPILE && strcmp(fa_last_error(), "the log") == 0)
        atomic_fetch_add(&r->failed, 1);
    return NULL;
}

static void fly(ride *r)
{
    pthread_t thread[64];
    pthread_barrier_init(&r->start, NULL, 64);
    for (int i = 0; i < 64; i++)
        pthread_create(&thread[i], NULL, passenger, r);
    for (int i = 0; i < 64; i++)
        pthread_join(thread[i], NULL);
    pthread_barrier_destroy(&r->start);
}

Test(kernels, F02_one_thread_leads_and_all_hold)
{
    ride r = {.table = fa__kernels_create(2)};
    fly(&r);
    cr_expect_eq(r.led, 1);
    cr_expect_eq(r.held, 64);
    fa_kernel *kernel = fa__kernels_find(r.table, "k", 1);
    cr_assert_not_null(kernel);
    cr_expect_eq(kernel->holders, 65);
    for (int i = 0; i < 65; i++)
        cr_expect_null(fa__kernels_drop(r.table, kernel));
    close_and_free(r.table);
}

Test(kernels, F04_a_failure_reaches_all_who_waited_and_is_not_kept)
{
    ride r = {.table = fa__kernels_create(2), .fail = true};
    fly(&r);
    /* A thread that arrives after the landing tries again: every try fails in the same way. */
    cr_expect_eq(r.failed, 64);
    cr_expect(r.led >= 1);
    cr_expect_null(fa__kernels_find(r.table, "k", 1));
    close_and_free(r.table);
}
