/* That faults of kernels are found: each of planted.c by what is there to find it, and none of them
 * when the kernel is mended. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define OUTPUT_BYTES 20000

/* Runs one of the programs; what it printed goes to `output`. The exit status. */
static int run(const char *watcher, const char *name, const char *how, char output[OUTPUT_BYTES])
{
    char variable[64], command[4096];
    snprintf(variable, sizeof variable, "FAJIT_TEST_PLANTED_%s", watcher);
    const char *program = getenv(variable), *prefix = getenv("FAJIT_TEST_PLANTED_PREFIX");
    if (!program)
        cr_skip_test("no program of this kind: %s", watcher);
    /* Reports to stderr, whatever the options of the tests say, and none is survived. */
    snprintf(command, sizeof command,
             "LSAN_OPTIONS= ASAN_OPTIONS=detect_leaks=0 "
             "UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 "
             "TSAN_OPTIONS=exitcode=66 %s '%s' %s %s 2>&1 </dev/null",
             prefix ? prefix : "", program, name, how);
    FILE *pipe = popen(command, "r");
    cr_assert_not_null(pipe);
    size_t got = fread(output, 1, OUTPUT_BYTES - 1, pipe);
    output[got] = '\0';
    while (fread(variable, 1, sizeof variable, pipe) > 0)
        ;
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void expect_found(const char *watcher, const char *name, const char *words)
{
    static char output[OUTPUT_BYTES];
    int status = run(watcher, name, "broken", output);
    cr_expect(status != 0 && status != 2, "%s, %s: status %d: %s", name, watcher, status, output);
    cr_expect(strstr(output, words) != NULL, "%s, %s: no '%s' in: %s", name, watcher, words,
              output);
    status = run(watcher, name, "mended", output);
    cr_expect_eq(status, 0, "%s mended, %s: status %d: %s", name, watcher, status, output);
    cr_expect_str_empty(output, "%s mended, %s: %s", name, watcher, output);
}

#define FOUND(name, watcher, words)                                                                \
    Test(planted, name##_is_found_by_##watcher)                                                    \
    {                                                                                              \
        expect_found(#watcher, #name, words);                                                      \
    }

FOUND(divergent_barrier, PLAIN, "planted.cu:5")
FOUND(missing_barrier, PLAIN, "wrong results")
FOUND(missing_wait, PLAIN, "wrong results")
FOUND(uninitialised_global, PLAIN, "wrong results")
FOUND(uninitialised_shared, PLAIN, "wrong results")
FOUND(wrong_mask, PLAIN, "not in its own mask")

FOUND(misaligned, ADDRESS, "misaligned address")
FOUND(out_of_bounds_copy, ADDRESS, "planted.cu:7")
FOUND(out_of_bounds_dynamic_shared, ADDRESS, "planted.cu:7")
FOUND(out_of_bounds_global, ADDRESS, "planted.cu:5")
FOUND(out_of_bounds_shared, ADDRESS, "planted.cu:6")

FOUND(missing_barrier, THREAD, "data race")
FOUND(missing_fence_between_blocks, THREAD, "data race")
FOUND(race_after_a_copy, THREAD, "data race")
FOUND(race_after_stmatrix, THREAD, "data race")
FOUND(race_before_ldmatrix, THREAD, "data race")
FOUND(race_global, THREAD, "planted.cu:5")
FOUND(race_in_a_warp, THREAD, "data race")
FOUND(race_shared, THREAD, "data race")
