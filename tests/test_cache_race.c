#include "cache_fixture.h"

#include <pthread.h>
#include <signal.h>

#define PROCESSES 16
#define THREADS 64
#define KEYS 20

TestSuite(cache_race, .init = scratch_make, .fini = scratch_remove, .timeout = 120);

/* "Compiles" for a moment; the file counts how often that happened, for every process. */
static void compile(unsigned n, const char *tally)
{
    const int fd = open(tally, O_WRONLY | O_CREAT | O_APPEND, 0600);
    const unsigned char mark = (unsigned char)n;
    if (fd < 0 || write(fd, &mark, 1) != 1)
        abort();
    close(fd);
    usleep(20000);
}

/* What a compile does with the cache. 0, or what went wrong. */
static int obtain(fa__cache *cache, unsigned n, size_t bytes, const char *tally)
{
    fa__key key = key_number(n);
    int result = get_number(cache, n, bytes), token = -1;
    if (result == 0) {
        token = fa__cache_lock(cache, &key);
        result = get_number(cache, n, bytes);
    }
    if (result == 0) {
        compile(n, tally);
        put_number(cache, n, bytes);
        result = 1;
    }
    fa__cache_unlock(cache, &key, token);
    fa__key_free(&key);
    return result == 1 ? 0 : 1;
}

/* Starts `count` children that run `body` at the same moment; gives the number that failed. */
static int run_processes(int count, int (*body)(int index))
{
    int barrier[2], failed = 0;
    pid_t children[PROCESSES];
    char byte;
    cr_assert_eq(pipe(barrier), 0);
    for (int i = 0; i < count; i++) {
        children[i] = fork();
        cr_assert_geq(children[i], 0);
        if (children[i] == 0) {
            close(barrier[1]);
            if (read(barrier[0], &byte, 1) != 0)
                _exit(97);
            _exit(body(i));
        }
    }
    close(barrier[0]);
    close(barrier[1]); /* the end of file is the signal */
    for (int i = 0; i < count; i++) {
        int status = 0;
        waitpid(children[i], &status, 0);
        failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    return failed;
}

static size_t tally_count(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? (size_t)info.st_size : 0;
}

static int one_cold_key(int index)
{
    (void)index;
    fa__cache *cache = cache_in(in_scratch("c"));
    const int failed = obtain(cache, 1, 50000, in_scratch("tally"));
    fa__cache_close(cache);
    return failed;
}

static void expect_one_compile(void)
{
    cr_assert_eq(run_processes(PROCESSES, one_cold_key), 0);
    cr_assert_eq(tally_count(in_scratch("tally")), 1, "%zu compiles",
                 tally_count(in_scratch("tally")));
    const census found = take_census(in_scratch("c"));
    cr_assert_eq(found.entries, 1);
    cr_assert_eq(found.temporaries, 0);
}

Test(cache_race, F02_sixteen_processes_compile_one_key_once)
{
    for (int round = 0; round < 5; round++) {
        expect_one_compile();
        tree_remove(in_scratch("c"));
        unlink(in_scratch("tally"));
    }
}

Test(cache_race, F02_a_damaged_entry_is_repaired_once)
{
    const char *dir = in_scratch("c");
    fa__cache *cache = cache_in(dir);
    put_number(cache, 1, 50000);
    fa__cache_close(cache);
    cr_assert_eq(truncate(path_of_number(dir, 1), 1000), 0);
    expect_one_compile();
}

static int many_cold_keys(int index)
{
    fa__cache *cache = cache_in(in_scratch("c"));
    int failed = 0;
    for (unsigned i = 0; i < KEYS; i++)
        failed |= obtain(cache, (i + (unsigned)index * 3) % KEYS, 3000, in_scratch("tally"));
    fa__cache_close(cache);
    return failed;
}

Test(cache_race, F01_cold_processes_of_one_job)
{
    cr_assert_eq(run_processes(PROCESSES, many_cold_keys), 0);
    cr_assert_eq(tally_count(in_scratch("tally")), KEYS);
    const census found = take_census(in_scratch("c"));
    cr_assert_eq(found.entries, KEYS);
    cr_assert_eq(found.temporaries, 0);
}

/* Without locks every process publishes; nobody may see anything but the right content. */
static int publish_unlocked(int index)
{
    fa__cache *cache = cache_in(in_scratch("c"));
    int failed = 0;
    for (int round = 0; round < 20; round++) {
        const unsigned n = (unsigned)(round + index) % 3;
        put_number(cache, n, 20000);
        failed |= get_number(cache, n, 20000) != 1;
    }
    failed |= atomic_load(&fa__cache_statistics(cache)->publish_failures) != 0;
    fa__cache_close(cache);
    return failed;
}

Test(cache_race, F10_duplicate_puts_of_one_key_are_harmless)
{
    cr_assert_eq(run_processes(PROCESSES, publish_unlocked), 0);
    const census found = take_census(in_scratch("c"));
    cr_assert_eq(found.entries, 3);
    cr_assert_eq(found.temporaries, 0);
}

/* Puts, gets and evictions against each other: a get is a hit with the right content or a miss. */
static int churn(int index)
{
    const size_t each = encoded_bytes(10, 2000);
    fa__cache *cache =
        cache_open(&(fa__cache_options){.dir = in_scratch("c"), .max_bytes = each * 8});
    int failed = 0;
    for (unsigned round = 0; round < 60; round++) {
        const unsigned n = 10 + (round * 7 + (unsigned)index * 5) % 30;
        const int result = get_number(cache, n, 2000);
        failed |= result < 0;
        if (result == 0)
            put_number(cache, n, 2000);
    }
    failed |= atomic_load(&fa__cache_statistics(cache)->publish_failures) != 0;
    fa__cache_close(cache);
    return failed;
}

Test(cache_race, F21_eviction_by_several_processes)
{
    cr_assert_eq(run_processes(8, churn), 0);
    const census found = take_census(in_scratch("c"));
    cr_assert_leq(found.entry_bytes, encoded_bytes(10, 2000) * 8);
    cr_assert_geq(found.entries, 5);
    cr_assert_eq(found.temporaries, 0);
}

/* One process clears again and again what the others fill. */
static int fill_or_clear(int index)
{
    fa__cache *cache = cache_in(in_scratch("c"));
    int failed = 0;
    for (unsigned round = 0; round < 40; round++) {
        if (index == 0) {
            failed |= fa__cache_clear(cache) != FA_OK;
            usleep(2000);
        } else {
            put_number(cache, round, 500);
            failed |= get_number(cache, round, 500) < 0;
        }
    }
    fa__cache_close(cache);
    return failed;
}

Test(cache_race, clearing_while_others_publish)
{
    cr_assert_eq(run_processes(4, fill_or_clear), 0);
    fa__cache *cache = cache_in(in_scratch("c"));
    put_number(cache, 99, 500);
    cr_assert_eq(get_number(cache, 99, 500), 1);
    fa__cache_close(cache);
    cr_assert_eq(take_census(in_scratch("c")).temporaries, 0);
}

/* ---- threads --------------------------------------------------------------------------------- */

typedef struct worker {
    pthread_t thread;
    pthread_barrier_t *barrier;
    fa__cache *cache;
    unsigned index;
    bool locked; /* takes the lock, or publishes without */
    int failed;
} worker;

static void *work(void *user)
{
    worker *own = user;
    const char *tally = in_scratch("tally");
    pthread_barrier_wait(own->barrier);
    for (unsigned i = 0; i < KEYS; i++) {
        const unsigned n = (i + own->index) % KEYS;
        if (own->locked) {
            own->failed |= obtain(own->cache, n, 3000, tally);
        } else if (i < 4) {
            put_number(own->cache, 7, 3000);
            own->failed |= get_number(own->cache, 7, 3000) != 1;
        }
    }
    return NULL;
}

static void run_threads(bool locked)
{
    static worker workers[THREADS];
    pthread_barrier_t barrier;
    fa__cache *cache = cache_in(in_scratch("c"));
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (worker){.barrier = &barrier, .cache = cache, .index = i, .locked = locked};
        cr_assert_eq(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        cr_expect_eq(workers[i].failed, 0, "thread %u", i);
    }
    cr_assert_eq(atomic_load(&fa__cache_statistics(cache)->publish_failures), 0);
    pthread_barrier_destroy(&barrier);
    fa__cache_close(cache);
}

Test(cache_race, F64_threads_compile_each_key_once)
{
    run_threads(true);
    cr_assert_eq(tally_count(in_scratch("tally")), KEYS, "%zu compiles",
                 tally_count(in_scratch("tally")));
    cr_assert_eq(take_census(in_scratch("c")).entries, KEYS);
    cr_assert_eq(take_census(in_scratch("c")).temporaries, 0);
}

Test(cache_race, F13_threads_publish_one_key_at_once)
{
    run_threads(false);
    cr_assert_eq(take_census(in_scratch("c")).entries, 1);
    cr_assert_eq(take_census(in_scratch("c")).temporaries, 0);
}

static void *name_files(void *user)
{
    worker *own = user;
    fa__buf path = {0};
    pthread_barrier_wait(own->barrier);
    for (int i = 0; i < 50; i++) {
        fa__buf_reset(&path);
        own->failed |= fa__file_write_temporary(scratch, 0600, "x", 1, &path) != 0;
    }
    fa__buf_free(&path);
    return NULL;
}

/* The names are unique by themselves: O_EXCL, which would cover up, is a second line. */
Test(cache_race, F13_temporary_names_are_unique)
{
    static worker workers[THREADS];
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (worker){.barrier = &barrier};
        cr_assert_eq(pthread_create(&workers[i].thread, NULL, name_files, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        cr_expect_eq(workers[i].failed, 0);
    }
    cr_assert_eq(take_census(scratch).temporaries, THREADS * 50);
    pthread_barrier_destroy(&barrier);
}

/* A container that shares the directory can have the same process and thread numbers. */
Test(cache_race, F13_a_name_that_is_taken_is_passed_over)
{
    fa__buf path = {0};
    cr_assert_eq(fa__file_write_temporary(scratch, 0600, "a", 1, &path), 0);
    unsigned long long counter = 0;
    char *last = strrchr(path.data, '-');
    cr_assert(last && sscanf(last, "-%llu.tmp", &counter) == 1);
    char taken[PATH_MAX];
    for (unsigned long long i = 1; i <= 20; i++) {
        snprintf(taken, sizeof taken, "%.*s-%llu.tmp", (int)(last - path.data), path.data,
                 counter + i);
        file_write(taken, "other", 5);
    }
    fa__buf_reset(&path);
    cr_assert_eq(fa__file_write_temporary(scratch, 0600, "b", 1, &path), 0);
    cr_assert_eq(take_census(scratch).temporaries, 22);
    struct stat info;
    cr_assert_eq(stat(taken, &info), 0);
    cr_assert_eq(info.st_size, 5, "somebody else's file was written to");
    fa__buf_free(&path);
}

/* ---- processes that die ---------------------------------------------------------------------- */

/* A child that takes the lock, says so and waits to be killed. */
static pid_t child_with_lock(void)
{
    int ready[2];
    char byte;
    cr_assert_eq(pipe(ready), 0);
    const pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        fa__cache *cache = cache_in(in_scratch("c"));
        fa__key key = key_number(1);
        byte = fa__cache_lock(cache, &key) >= 0 ? 'y' : 'n';
        if (write(ready[1], &byte, 1) == 1)
            pause();
        _exit(1);
    }
    close(ready[1]);
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    cr_assert_eq(byte, 'y');
    close(ready[0]);
    return child;
}

static void reap(pid_t child)
{
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

Test(cache_race, F09_a_killed_holder_leaves_no_lock)
{
    const pid_t child = child_with_lock();
    fa__cache *cache =
        cache_open(&(fa__cache_options){.dir = in_scratch("c"), .lock_timeout_ms = 20000});
    fa__key key = key_number(1);
    reap(child);
    const int token = fa__cache_lock(cache, &key);
    cr_assert_geq(token, 0);
    cr_assert_eq(atomic_load(&fa__cache_statistics(cache)->lock_timeouts), 0);
    fa__cache_unlock(cache, &key, token);
    fa__key_free(&key);
    fa__cache_close(cache);
}

typedef struct waited_for {
    fa__cache *cache;
    pid_t holder;
} waited_for;

static void *kill_when_waited_for(void *user)
{
    const waited_for *w = user;
    until_waited_for(w->cache);
    kill(w->holder, SIGKILL);
    return NULL;
}

Test(cache_race, F09_a_waiter_takes_over_when_the_holder_is_killed)
{
    const pid_t child = child_with_lock();
    pthread_t killer;
    fa__cache *cache =
        cache_open(&(fa__cache_options){.dir = in_scratch("c"), .lock_timeout_ms = 20000});
    fa__key key = key_number(1);
    waited_for w = {cache, child};
    cr_assert_eq(pthread_create(&killer, NULL, kill_when_waited_for, &w), 0);
    const int token = fa__cache_lock(cache, &key);
    cr_assert_geq(token, 0);
    cr_assert_eq(atomic_load(&fa__cache_statistics(cache)->lock_waits), 1);
    pthread_join(killer, NULL);
    waitpid(child, NULL, 0);
    fa__cache_unlock(cache, &key, token);
    fa__key_free(&key);
    fa__cache_close(cache);
}

Test(cache_race, F08_a_stopped_holder_is_not_waited_for_longer_than_allowed)
{
    const pid_t child = child_with_lock();
    fa__cache *cache =
        cache_open(&(fa__cache_options){.dir = in_scratch("c"), .lock_timeout_ms = 100});
    kill(child, SIGSTOP);
    cr_assert_eq(obtain(cache, 1, 100, in_scratch("tally")), 0);
    cr_assert_eq(tally_count(in_scratch("tally")), 1);
    cr_assert_eq(atomic_load(&fa__cache_statistics(cache)->lock_timeouts), 1);
    reap(child);
    fa__cache_close(cache);
}

Test(cache_race, a_child_forked_while_locked_does_not_keep_the_lock)
{
    fa__cache *cache =
        cache_open(&(fa__cache_options){.dir = in_scratch("c"), .lock_timeout_ms = 2000});
    fa__key key = key_number(1);
    int token = fa__cache_lock(cache, &key);
    cr_assert_geq(token, 0);
    const pid_t child = fork(); /* inherits the descriptor */
    cr_assert_geq(child, 0);
    if (child == 0) {
        pause();
        _exit(0);
    }
    fa__cache_unlock(cache, &key, token);
    token = fa__cache_lock(cache, &key);
    cr_assert_geq(token, 0, "the child keeps it");
    fa__cache_unlock(cache, &key, token);
    reap(child);
    fa__key_free(&key);
    fa__cache_close(cache);
}

/* Kills a process that publishes large entries, at no particular moment. */
Test(cache_race, F09_F06_killed_while_publishing)
{
    const char *dir = in_scratch("c");
    for (int round = 0; round < 20; round++) {
        const pid_t child = fork();
        cr_assert_geq(child, 0);
        if (child == 0) {
            fa__cache *cache = cache_in(dir);
            for (unsigned n = 0;; n++)
                put_number(cache, n % 5, 300000);
        }
        usleep(3000 + (useconds_t)round * 1500);
        reap(child);
        fa__cache *cache = cache_in(dir);
        for (unsigned n = 0; n < 5; n++)
            cr_assert_geq(get_number(cache, n, 300000), 0, "half an entry was published");
        cr_assert_eq(atomic_load(&fa__cache_statistics(cache)->repairs), 0);
        put_number(cache, 9, 100);
        cr_assert_eq(get_number(cache, 9, 100), 1);
        fa__cache_close(cache);
    }
}
