/* What the tests of the whole library share: a fresh folder, the look-alikes of libcuda and
 * libnvrtc opened and watched, a small kernel to ask for, and child processes. */
#ifndef FIXTURE_H
#define FIXTURE_H

#include <limits.h>
#include <sys/types.h>

#include "fajit.h"
#include "fake.h"

/* Calls that must give this status; they need Criterion included. */
#define EXPECT(call, expected)                                                                     \
    do {                                                                                           \
        fa_status status_ = (call);                                                                \
        cr_expect_eq(status_, (expected), "%s gave %s, not %s: %s", #call,                         \
                     fa_status_name(status_), fa_status_name(expected), fa_last_error());          \
    } while (0)
#define OK(call) EXPECT(call, FA_OK)

/* A refusal whose message has this word in it, and is its own. */
#define REFUSED(call, expected, word)                                                              \
    do {                                                                                           \
        (void)fa_op_info((fa_op)9999, NULL); /* another message before */                          \
        EXPECT(call, expected);                                                                    \
        cr_expect(strstr(fa_last_error(), word) != NULL, "%s: no '%s' in: %s", #call, word,        \
                  fa_last_error());                                                                \
    } while (0)

typedef struct fixture {
    char dir[256];    /* removed by fixture_end */
    char cache[300];  /* DIR/cache: FAJIT_CACHE_DIR */
    char counts[300]; /* DIR/counts: FAKE_COUNT_FILE */
    const fake_control *cuda, *nvrtc;
} fixture;

/* Sets the environment and opens the look-alikes, before the library is used in this process. */
void fixture_begin(fixture *f);
/* With other builds of them: "fake_cuda_old", "fake_nvrtc_b"; "" leaves that library alone. */
void fixture_begin_with(fixture *f, const char *cuda, const char *nvrtc);
/* Fails the test on any misuse that the look-alikes saw. */
void fixture_end(fixture *f);

/* Path of a file beside the test programs: "libfake_cuda.so", "fajit_test_child". The folder is
 * $FAJIT_TEST_FAKES, else that of this program, or its subfolder fake/. */
void fixture_path(const char *name, char *out, size_t size) __attribute__((nonnull));
const fake_control *fixture_open(const char *library); /* "fake_cuda" */

/* `x[i] *= factor * VALUE` for i < n: one kernel for each value. Do not copy: it points to itself.
 */
typedef struct scale_spec {
    fa_spec spec;
    fa_constant constant[1];
} scale_spec;
void scale_spec_init(scale_spec *s, int64_t value);

typedef struct scale_args {
    fa_args args;
    fa_param param[3];
    void *x;
    float factor;
    uint32_t n;
} scale_args;
void scale_args_init(scale_args *a, void *x, uint32_t n);

/* Context on device 0 (or offline for `arch`); ends the test when that fails. */
fa_context *fixture_context(void);
fa_context *fixture_offline(const char *arch);

/* fa_compile of scale_spec(value), asserting success. */
fa_kernel *fixture_compile(fa_context *ctx, int64_t value);

size_t fixture_compiles(const fixture *f);              /* in every process that used the fixture */
size_t fixture_files(const char *dir, const char *end); /* below `dir`, whose name ends so */
long fixture_rss_kb(void);
/* Under AddressSanitizer or ThreadSanitizer, which keep freed memory for a while. */
bool fixture_sanitized(void);

/* Starts fajit_test_child with arguments up to NULL. `out`, unless NULL, is the reading end of a
 * pipe with its standard output; `gate` the writing end of one that its standard input reads. */
pid_t fixture_spawn(int *out, int *gate, const char *const *argv);
/* Waits for it, at most `seconds`, then kills it. Returns the exit status; 1000 + signal. */
int fixture_wait(pid_t pid, int seconds);
/* Spawns, collects the output's first line, waits. */
int fixture_run(char *line, size_t size, const char *const *argv);

/* A locale with decimal commas: "de_DE.UTF-8" installed, or made by localedef below the fixture's
 * folder. "" when there is none. Sets LOCPATH. */
const char *fixture_comma_locale(const fixture *f);

/* Built with a sanitizer that keeps freed memory and judges what signal handlers do. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FIXTURE_SANITIZED true
#elif defined(__has_feature)
#define FIXTURE_SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define FIXTURE_SANITIZED false
#endif

#endif
