/* Beginnings and ends: loading, missing homes, exit with live handles, fork. Most of it needs a
 * process of its own: fajit_test_child. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"

static void expect_child(const char *request, const char *line)
{
    char got[256];
    const char *const argv[] = {request, NULL};
    int rc = fixture_run(got, sizeof got, argv);
    cr_expect_eq(rc, 0, "%s: exit status %d", request, rc);
    cr_expect_str_eq(got, line, "%s printed '%s'", request, got);
}

static void expect_launch(const char *what)
{
    char got[256];
    const char *const argv[] = {"launch", "1", NULL};
    int rc = fixture_run(got, sizeof got, argv);
    cr_expect_eq(rc, 0, "%s: exit status %d", what, rc);
    cr_expect_str_eq(got, "launched", "%s: printed '%s'", what, got);
}

/* --- loading --- */

Test(lifetime, F17_loading_writes_nothing)
{
    fixture f;
    char home[300];
    fixture_begin(&f);
    snprintf(home, sizeof home, "%s/home", f.dir);
    cr_assert_eq(mkdir(home, 0700), 0);
    cr_assert_eq(chdir(home), 0);
    setenv("HOME", home, 1);
    setenv("TMPDIR", home, 1);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("FAJIT_CACHE_DIR");
    expect_child("load", fa_version());
    cr_expect_eq(fixture_files(f.dir, ""), 0u, "loading the library wrote a file");
    char cache[400];
    snprintf(cache, sizeof cache, "%s/.cache", home);
    cr_expect_neq(access(cache, F_OK), 0, "loading the library made %s", cache);
    expect_launch(
        "with that home"); /* and using it does write, so the look was at the right place */
    cr_expect_eq(fixture_files(cache, ".fajit"), 1u);
    fixture_end(&f);
}

/* --- homes that cannot be used --- */

typedef struct warnings {
    int count;
    char first[512];
} warnings;

static void on_log(void *user, fa_log_level level, const char *line)
{
    warnings *w = user;
    if (level != FA_LOG_WARNING)
        return;
    if (w->count++ == 0)
        snprintf(w->first, sizeof w->first, "%s", line);
}

static void with_bad_cache(const char *what)
{
    scale_args a;
    float x[8];
    warnings w = {0};
    fa_context *ctx = NULL;
    fa_stats stats = {.size = sizeof stats};
    fa_context_info_t info = {.size = sizeof info};
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.log = on_log;
    options.log_user = &w;
    cr_assert_eq(fa_context_create(&options, &ctx), FA_OK, "%s: %s", what, fa_last_error());
    for (int i = 0; i < 3; i++) {
        fa_kernel *kernel = fixture_compile(ctx, i);
        scale_args_init(&a, x, 8);
        OK(fa_launch(kernel, &a.args, NULL));
        fa_kernel_release(kernel);
    }
    cr_expect_eq(w.count, 1, "%s: %d warnings", what, w.count);
    cr_expect(strstr(w.first, "FAJIT_CACHE_DIR"), "%s: the warning is '%s'", what, w.first);
    OK(fa_context_info(ctx, &info));
    cr_expect(info.cache_error[0] != '\0', "%s: nothing says why '%s' is not used", what,
              info.cache_dir);
    OK(fa_stats_get(ctx, &stats));
    cr_expect_eq(stats.compiles, 3u, "%s", what);
    fa_context_destroy(ctx);
}

Test(lifetime, F16_cache_directory_that_cannot_be_made)
{
    fixture f;
    char path[400];
    fixture_begin(&f);
    setenv("FAJIT_CACHE_DIR", "/proc/no/such/place", 1);
    with_bad_cache("a directory below /proc");
    snprintf(path, sizeof path, "%s/file", f.dir);
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    fclose(file);
    setenv("FAJIT_CACHE_DIR", path, 1);
    with_bad_cache("a file where the directory should be");
    unsetenv("FAJIT_CACHE_DIR");
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", "/proc/self/nohome", 1);
    with_bad_cache("a HOME that does not exist");
    fixture_end(&f);
}

/* A user that no database knows: with the rights for it by changing to one, else in a namespace in
 * which this user has that number. */
static bool become_unknown(uid_t uid)
{
    char map[64];
    const uid_t before = getuid();
    if (before == 0)
        return setgid(uid) == 0 && setuid(uid) == 0;
    if (unshare(CLONE_NEWUSER) != 0)
        return false;
    int file = open("/proc/self/uid_map", O_WRONLY);
    int len = snprintf(map, sizeof map, "%u %u 1", uid, before);
    bool mapped = file >= 0 && write(file, map, (size_t)len) == len;
    return mapped && close(file) == 0 && getuid() == uid;
}

enum { NOT_POSSIBLE = 77, NOT_STARTED = 78 };

/* Only as an unknown user: with a passwd entry the kernels would be kept in somebody's real home. */
static int run_as_nobody_known(void)
{
    char child[PATH_MAX];
    const uid_t uid = 54321;
    cr_assert_null(getpwuid(uid), "user %u exists", uid);
    fixture_path("fajit_test_child", child, sizeof child);
    pid_t pid = fork();
    if (pid == 0) {
        if (!become_unknown(uid))
            _exit(NOT_POSSIBLE);
        execl(child, child, "launch", "1", (char *)NULL);
        /* EACCES: a build folder that only its owner can enter */
        _exit(errno == EACCES ? NOT_POSSIBLE : NOT_STARTED);
    }
    return fixture_wait(pid, 20);
}

Test(lifetime, F18_no_home_no_user_no_passwd_entry)
{
    fixture f;
    fixture_begin(&f);
    unsetenv("FAJIT_CACHE_DIR");
    unsetenv("FAKE_COUNT_FILE");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    unsetenv("USER");
    unsetenv("LOGNAME");
    unsetenv("PATH");
    cr_assert_eq(chdir(f.dir), 0);
    int rc = run_as_nobody_known();
    fixture_end(&f);
    if (rc == NOT_POSSIBLE)
        cr_skip_test("the tests of this folder cannot be run here as a user without passwd entry");
    cr_expect_eq(rc, 0, "as a user without passwd entry: exit status %d", rc);
}

/* --- exit --- */

Test(lifetime, F61_exit_with_live_handles)
{
    fixture f;
    fixture_begin(&f);
    expect_child("exit-live", "alive");
    fixture_end(&f);
}

Test(lifetime, F61_exit_while_compiling, .timeout = 60)
{
    fixture f;
    fixture_begin(&f);
    for (int ms = 21; ms <= 120; ms += 33) { /* ends before, at and after the exit */
        char text[8];
        snprintf(text, sizeof text, "%d", ms);
        setenv("FAKE_LATENCY_MS", text, 1);
        setenv("FAJIT_CACHE_DIR", f.dir, 1);
        expect_child("exit-busy", "alive");
        expect_child("exit-busy-offline", "alive");
    }
    fixture_end(&f);
}

/* Another exit handler keeps the process going long after the driver has said goodbye. */
Test(lifetime, F61_compile_ends_after_the_driver_is_gone)
{
    fixture f;
    fixture_begin(&f);
    setenv("FAKE_LATENCY_MS", "150", 1);
    expect_child("exit-slow", "alive");
    fixture_end(&f);
}

/* --- fork --- */

Test(lifetime, F63_forked_child_is_told_at_once)
{
    fixture f;
    fixture_begin(&f);
    expect_child("fork", "forked");
    fixture_end(&f);
}

Test(lifetime, F63_fork_while_another_thread_compiles, .timeout = 60)
{
    fixture f;
    fixture_begin(&f);
    setenv("FAKE_LATENCY_MS", "100", 1);
    expect_child("fork-busy", "forked");
    fixture_end(&f);
}

/* --- closing handles in any order --- */

Test(lifetime, handles_released_in_any_order)
{
    fixture f;
    fixture_begin(&f);
    for (int order = 0; order < 6; order++) {
        scale_spec s;
        fa_future *future = NULL;
        fa_kernel *kernel = NULL;
        fa_context *ctx = fixture_context();
        scale_spec_init(&s, order);
        OK(fa_compile_async(ctx, &s.spec, &future));
        OK(fa_future_wait(future, &kernel));
        const char *const orders[] = {"ckf", "cfk", "kcf", "kfc", "fck", "fkc"};
        for (const char *o = orders[order]; *o; o++) {
            if (*o == 'c')
                fa_context_destroy(ctx);
            else if (*o == 'k')
                fa_kernel_release(kernel);
            else
                fa_future_release(future);
        }
        cr_expect_eq(f.cuda->live("module"), 0, "order %d", order);
        cr_expect_eq(f.cuda->live("primary"), 0, "order %d", order);
        cr_expect_eq(f.cuda->live("pushed"), 0, "order %d", order);
    }
    fixture_end(&f);
}
