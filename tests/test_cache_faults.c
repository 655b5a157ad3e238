/* The disk cache with system calls that fail. The functions below stand in front of those of the C
 * library for this whole executable; they do something only on a thread that has armed them. */
#include "cache_fixture.h"

#include <dlfcn.h>
#include <pwd.h>
#include <signal.h>

TestSuite(cache_faults, .init = scratch_make_quick, .fini = scratch_remove, .timeout = 120);

typedef enum action { NOTHING, FAIL, DIE, SHORTEN, INTERRUPT, LIE } action;

static struct {
    action action;
    const char *only; /* NULL: every function */
    const char *also; /* another one besides `only` */
    int error;
    long at; /* the first call that fails, from 1 */
    bool lasting;
    long calls;
    bool fired;
} plan;

static _Thread_local bool armed;
static bool no_passwd;
static long opendirs, readdirs;

/* What the call `name` shall fail with; 0: nothing. */
static int strike(const char *name)
{
    const bool meant =
        !plan.only || strcmp(plan.only, name) == 0 || (plan.also && strcmp(plan.also, name) == 0);
    if (!armed || plan.action == NOTHING || !meant)
        return 0;
    plan.calls++;
    if (plan.action == INTERRUPT)
        return plan.calls % 2 ? EINTR : 0;
    if ((plan.action != FAIL && plan.action != DIE) || plan.calls < plan.at ||
        (plan.calls > plan.at && !plan.lasting))
        return 0;
    plan.fired = true;
    if (plan.action == DIE)
        kill(getpid(), SIGKILL);
    return plan.error;
}

static size_t at_most(size_t len)
{
    return armed && plan.action == SHORTEN && len > 3 ? 3 : len;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define STRIKE(name, failure)                                                                      \
    do {                                                                                           \
        const int struck = strike(name);                                                           \
        if (struck) {                                                                              \
            errno = struck;                                                                        \
            return failure;                                                                        \
        }                                                                                          \
    } while (0)

int open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    STRIKE("open", -1);
    return REAL(open)(path, flags, mode);
}

int close(int fd)
{
    const int struck = strike("close");
    const int result = REAL(close)(fd);
    if (struck) {
        errno = struck;
        return -1;
    }
    return result;
}

ssize_t read(int fd, void *bytes, size_t len)
{
    STRIKE("read", -1);
    return REAL(read)(fd, bytes, at_most(len));
}

ssize_t write(int fd, const void *bytes, size_t len)
{
    STRIKE("write", -1);
    return REAL(write)(fd, bytes, at_most(len));
}

ssize_t pread(int fd, void *bytes, size_t len, off_t at)
{
    STRIKE("pread", -1);
    return REAL(pread)(fd, bytes, at_most(len), at);
}

ssize_t pwrite(int fd, const void *bytes, size_t len, off_t at)
{
    STRIKE("pwrite", -1);
    return REAL(pwrite)(fd, bytes, at_most(len), at);
}

int ftruncate(int fd, off_t len)
{
    STRIKE("ftruncate", -1);
    return REAL(ftruncate)(fd, len);
}

int fsync(int fd)
{
    STRIKE("fsync", -1);
    return armed ? 0 : REAL(fsync)(fd); /* thousands of real ones would take minutes */
}

int rename(const char *from, const char *to)
{
    STRIKE("rename", -1);
    return REAL(rename)(from, to);
}

int unlink(const char *path)
{
    STRIKE("unlink", -1);
    return REAL(unlink)(path);
}

int rmdir(const char *path)
{
    STRIKE("rmdir", -1);
    return REAL(rmdir)(path);
}

int mkdir(const char *path, mode_t mode)
{
    STRIKE("mkdir", -1);
    return REAL(mkdir)(path, mode);
}

int fstatat(int dir, const char *restrict path, struct stat *restrict info, int flags)
{
    STRIKE("fstatat", -1);
    return REAL(fstatat)(dir, path, info, flags);
}

int fstat(int fd, struct stat *info)
{
    STRIKE("fstat", -1);
    return REAL(fstat)(fd, info);
}

int utimensat(int dir, const char *path, const struct timespec times[2], int flags)
{
    STRIKE("utimensat", -1);
    return REAL(utimensat)(dir, path, times, flags);
}

char *getcwd(char *room, size_t size)
{
    STRIKE("getcwd", NULL);
    return REAL(getcwd)(room, size);
}

/* Looking for victims opens 256 directories: one in 64 is enough. */
DIR *opendir(const char *path)
{
    if (armed && opendirs++ % 64 == 0)
        STRIKE("opendir", NULL);
    return REAL(opendir)(path);
}

struct dirent *readdir(DIR *dir)
{
    if (armed)
        readdirs++;
    STRIKE("readdir", NULL);
    return REAL(readdir)(dir);
}

int fcntl(int fd, int command, ...)
{
    va_list ap;
    va_start(ap, command);
    void *argument = va_arg(ap, void *);
    va_end(ap);
    if (command == F_OFD_SETLK) {
        if (armed && plan.action == LIE)
            return 0;
        STRIKE("fcntl", -1);
    }
    return REAL(fcntl)(fd, command, argument);
}

int getpwuid_r(uid_t user, struct passwd *record, char *room, size_t size, struct passwd **found)
{
    if (no_passwd) {
        *found = NULL;
        return 0;
    }
    return REAL(getpwuid_r)(user, record, room, size, found);
}

static void arm(action what, const char *only, int error, long at, bool lasting)
{
    plan.action = what;
    plan.only = only;
    plan.error = error;
    plan.at = at;
    plan.lasting = lasting;
    plan.calls = 0;
    plan.fired = false;
    armed = true;
}

static void disarm(void)
{
    armed = false;
    plan.action = NOTHING;
    plan.also = NULL;
}

/* ---- every call of a sequence, failing in every way ------------------------------------------ */

#define BYTES 3000
#define OLD 8 /* entries that are there to be evicted */

typedef enum state { EMPTY, PRESENT, DAMAGED, FULL, STATES } state;

static const char *const state_names[] = {"empty", "present", "damaged", "full"};

static uint64_t cap_of(state start)
{
    return start == FULL ? encoded_bytes(100, BYTES) * OLD + 100 : 0;
}

static void prepare(const char *dir, state start)
{
    armed = true; /* for the fsync that does nothing */
    fa__cache *cache = cache_open(&(fa__cache_options){.dir = dir, .max_bytes = cap_of(start)});
    if (start == PRESENT || start == DAMAGED)
        put_number(cache, 1, BYTES);
    if (start == DAMAGED && truncate(path_of_number(dir, 1), 200) != 0)
        abort();
    if (start == PRESENT)
        file_set_age(path_of_number(dir, 1), 3600);
    for (unsigned n = 100; start == FULL && n < 100 + OLD; n++) {
        put_number(cache, n, BYTES);
        file_set_age(path_of_number(dir, n), 3600 + n);
    }
    fa__cache_close(cache);
    armed = false;
}

/* What a program does, in one life of a cache. false: a wrong entry was given. */
static bool sequence(const char *dir, state start)
{
    fa__cache *cache = NULL;
    if (fa__cache_open(
            &(fa__cache_options){
                .dir = dir, .path = dir, .max_bytes = cap_of(start), .lock_timeout_ms = 5},
            &cache) != FA_OK)
        return true; /* only for lack of memory */
    fa__key key = key_number(1);
    bool good = get_number(cache, 1, BYTES) >= 0;
    const int token = fa__cache_lock(cache, &key);
    const int found = get_number(cache, 1, BYTES);
    good &= found >= 0;
    if (found != 1)
        put_number(cache, 1, BYTES);
    good &= get_number(cache, 1, BYTES) >= 0;
    fa__cache_unlock(cache, &key, token);
    fa__key_free(&key);
    fa__cache_close(cache);
    return good;
}

static bool add_damaged(void *user, const fa_cache_entry *entry)
{
    *(int *)user += entry->damaged;
    return true;
}

/* The total may be too large or unreadable, never too small. */
static void check_total(const char *dir, const char *what)
{
    char path[PATH_MAX], text[64] = "";
    unsigned long long total = 0;
    snprintf(path, sizeof path, "%s/size", dir);
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    if (fgets(text, sizeof text, file) && strlen(text) == 21 && sscanf(text, "%llu", &total) == 1)
        cr_assert_geq(total, take_census(dir).entry_bytes, "%s: the total is too small", what);
    fclose(file);
}

/* Afterwards, in another life with a disk that works. */
static void check_recovery(const char *dir, state start, const char *what)
{
    fa__cache *cache = cache_open(&(fa__cache_options){.dir = dir, .max_bytes = cap_of(start)});
    int damaged = 0;
    if (plan.error != ENOENT) /* an entry that is said to have vanished is not counted */
        check_total(dir, what);
    const int before = get_number(cache, 1, BYTES);
    cr_assert_geq(before, 0, "%s: a wrong entry", what);
    cr_assert_eq(fa__cache_visit(cache, true, false, add_damaged, &damaged), FA_OK);
    cr_assert_leq(damaged, start == DAMAGED && before == 0, "%s: half an entry is left", what);
    armed = true;
    if (before == 0)
        put_number(cache, 1, BYTES);
    armed = false;
    cr_assert_eq(get_number(cache, 1, BYTES), 1, "%s: not repaired", what);
    cr_assert_eq(atomic_load(&fa__cache_statistics(cache)->repairs), (unsigned)damaged, "%s", what);
    cr_assert_eq(atomic_load(&fa__cache_statistics(cache)->publish_failures), 0, "%s", what);
    if (start == FULL && plan.error != ENOENT) {
        armed = true;
        put_number(cache, 2,
                   BYTES); /* what had no time to look for victims leaves it to the next */
        armed = false;
        cr_assert_leq(take_census(dir).entry_bytes, cap_of(start), "%s", what);
    }
    fa__cache_close(cache);
}

static void try_failure(state start, int error, bool lasting)
{
    const char *dir = in_scratch("c");
    char what[128];
    bool fired = true;
    long at = 0;
    while (fired) {
        at++;
        snprintf(what, sizeof what, "%s, %s from call %ld %s", state_names[start],
                 strerrorname_np(error), at, lasting ? "on" : "alone");
        prepare(dir, start);
        arm(FAIL, NULL, error, at, lasting);
        const bool good = sequence(dir, start);
        fired = plan.fired;
        disarm();
        cr_assert(good, "%s: a wrong entry", what);
        if (!lasting)
            cr_assert_eq(take_census(dir).temporaries, 0, "%s: a temporary file is left", what);
        check_recovery(dir, start, what);
        tree_remove(dir);
    }
    cr_assert_gt(at, 8, "only %ld calls were made: the functions are not intercepted", at);
}

static void try_once(int error)
{
    for (state start = EMPTY; start < STATES; start++)
        try_failure(start, error, false);
}

static void try_both(int error)
{
    try_once(error);
    for (state start = EMPTY; start < STATES; start++)
        try_failure(start, error, true);
}

Test(cache_faults, F22_no_space_at_any_call)
{
    try_once(ENOSPC);
}

Test(cache_faults, F22_quota_at_any_call)
{
    try_once(EDQUOT);
}

Test(cache_faults, F22_io_error_at_any_call)
{
    try_both(EIO);
}

Test(cache_faults, F16_read_only_at_any_call)
{
    try_both(EROFS);
}

Test(cache_faults, F16_no_access_at_any_call)
{
    try_once(EACCES);
}

Test(cache_faults, F10_no_locks_at_any_call)
{
    try_both(ENOLCK);
}

Test(cache_faults, no_descriptors_at_any_call)
{
    try_once(EMFILE);
}

Test(cache_faults, stale_handle_at_any_call)
{
    try_once(ESTALE);
}

Test(cache_faults, vanished_at_any_call)
{
    try_both(ENOENT);
}

Test(cache_faults, interrupted_at_any_call)
{
    try_once(EINTR);
    try_once(EAGAIN);
}

Test(cache_faults, F09_killed_at_any_call)
{
    const char *dir = in_scratch("c");
    char what[64];
    for (state start = EMPTY; start < STATES; start++) {
        bool killed = true;
        for (long at = 1; killed; at++) {
            snprintf(what, sizeof what, "%s, killed at call %ld", state_names[start], at);
            prepare(dir, start);
            const pid_t child = fork();
            cr_assert_geq(child, 0);
            if (child == 0) {
                arm(DIE, NULL, 0, at, false);
                _exit(sequence(dir, start) ? 0 : 1);
            }
            int status = 0;
            cr_assert_eq(waitpid(child, &status, 0), child);
            killed = WIFSIGNALED(status);
            cr_assert(killed || WEXITSTATUS(status) == 0, "%s", what);
            fa__cache *cache =
                cache_open(&(fa__cache_options){.dir = dir, .lock_timeout_ms = 20000});
            fa__key key = key_number(1);
            const int token = fa__cache_lock(cache, &key);
            cr_assert_geq(token, 0, "%s: a lock is left", what);
            fa__cache_unlock(cache, &key, token);
            fa__key_free(&key);
            fa__cache_close(cache);
            check_recovery(dir, start, what);
            tree_remove(dir);
            cr_assert(killed || at > 20, "the functions are not intercepted");
        }
    }
}

/* ---- particular failures --------------------------------------------------------------------- */

Test(cache_faults, F22_a_failed_publication_is_counted_and_said_once)
{
    static const char *const functions[] = {"open", "write", "fsync", "close", "rename", "mkdir"};
    static const int errors[] = {ENOSPC, EDQUOT, EIO, EROFS, EACCES};
    const char *dir = in_scratch("c");
    for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
        for (size_t e = 0; e < sizeof errors / sizeof *errors; e++) {
            log_catch caught;
            log_catch_init(&caught);
            fa__cache *cache = cache_open(&(fa__cache_options){.dir = dir, .log = &caught.log});
            arm(FAIL, functions[f], errors[e], 1, true);
            put_number(cache, 1, BYTES);
            put_number(cache, 2, BYTES);
            disarm();
            const unsigned long failures =
                atomic_load(&fa__cache_statistics(cache)->publish_failures);
            cr_assert_eq(failures, 2, "%s %s: %lu", functions[f], strerrorname_np(errors[e]),
                         failures);
            cr_assert_eq(caught.warnings, 1, "%s: %d warnings", functions[f], caught.warnings);
            cr_assert(strstr(caught.last_warning, strerror(errors[e])), "%s", caught.last_warning);
            cr_assert(strstr(caught.last_warning, "FAJIT_CACHE_DIR"), "%s", caught.last_warning);
            cr_assert_eq(take_census(dir).entries, 0);
            cr_assert_eq(take_census(dir).temporaries, 0);
            put_number(cache, 1, BYTES);
            cr_assert_eq(get_number(cache, 1, BYTES), 1);
            fa__cache_close(cache);
            tree_remove(dir);
        }
    }
}

Test(cache_faults, a_file_system_without_fsync_is_good_enough)
{
    static const int errors[] = {EINVAL, ENOSYS, ENOTSUP};
    for (size_t e = 0; e < sizeof errors / sizeof *errors; e++) {
        const char *dir = in_scratch("c");
        fa__cache *cache = cache_in(dir);
        arm(FAIL, "fsync", errors[e], 1, true);
        put_number(cache, 1, BYTES);
        disarm();
        cr_assert(plan.fired);
        cr_assert_eq(get_number(cache, 1, BYTES), 1);
        fa__cache_close(cache);
        tree_remove(dir);
    }
}

Test(cache_faults, short_and_interrupted_calls_are_continued)
{
    static const action actions[] = {SHORTEN, INTERRUPT};
    static const char *const functions[] = {"open",  "read",  "write", "fsync",
                                            "fcntl", "pread", "pwrite"};
    const char *dir = in_scratch("c");
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        for (size_t a = 0; a < 2; a++) {
            fa__cache *cache = cache_in(dir);
            fa__key key = key_number(1);
            arm(actions[a], actions[a] == INTERRUPT ? functions[i] : NULL, 0, 0, false);
            const int token = fa__cache_lock(cache, &key);
            put_number(cache, 1, BYTES);
            put_number(cache, 2, BYTES);
            const int found = get_number(cache, 1, BYTES);
            disarm();
            cr_assert_geq(token, 0, "%s", functions[i]);
            cr_assert_eq(found, 1, "%s", functions[i]);
            cr_assert_eq(atomic_load(&fa__cache_statistics(cache)->publish_failures), 0, "%s",
                         functions[i]);
            fa__cache_unlock(cache, &key, token);
            fa__key_free(&key);
            fa__cache_close(cache);
            check_total(dir, functions[i]);
            tree_remove(dir);
        }
    }
}

Test(cache_faults, F10_locks_that_fail_are_done_without)
{
    static const int errors[] = {ENOLCK, EINVAL, ENOSYS, EOPNOTSUPP, EROFS, EACCES, EBADF};
    const char *dir = in_scratch("c");
    for (size_t e = 0; e < sizeof errors / sizeof *errors; e++) {
        log_catch caught;
        log_catch_init(&caught);
        fa__cache *cache = cache_open(
            &(fa__cache_options){.dir = dir, .lock_timeout_ms = 20000, .log = &caught.log});
        fa__key key = key_number(1);
        arm(FAIL, "fcntl", errors[e], 1, true);
        const int token = fa__cache_lock(cache, &key);
        put_number(cache, 1, BYTES);
        disarm();
        cr_assert_lt(token, 0, "%s", strerrorname_np(errors[e]));
        cr_assert_eq(get_number(cache, 1, BYTES), 1);
        cr_assert_eq(caught.warnings, 0, "%s", caught.last_warning);
        cr_assert_eq(atomic_load(&fa__cache_statistics(cache)->lock_timeouts), 0);
        fa__key_free(&key);
        fa__cache_close(cache);
        tree_remove(dir);
    }
}

Test(cache_faults, F10_locks_that_do_nothing_cost_only_work)
{
    const char *dir = in_scratch("c");
    const uint64_t cap = encoded_bytes(100, BYTES) * 10;
    fa__cache_options options = {.dir = dir, .max_bytes = cap};
    fa__cache *one = cache_open(&options), *two = cache_open(&options);
    fa__key key = key_number(1);
    arm(LIE, NULL, 0, 0, false);
    const int first = fa__cache_lock(one, &key), second = fa__cache_lock(two, &key);
    put_number(one, 1, BYTES);
    put_number(two, 1, BYTES);
    fa__cache_unlock(one, &key, first);
    fa__cache_unlock(two, &key, second);
    cr_assert(first >= 0 && second >= 0);
    cr_assert_eq(get_number(one, 1, BYTES), 1);
    cr_assert_eq(get_number(two, 1, BYTES), 1);
    disarm();
    fa__key_free(&key);
    fa__cache_close(one);
    fa__cache_close(two);
}

Test(cache_faults, F21_the_cap_holds_without_locks)
{
    const char *dir = in_scratch("c");
    const uint64_t each = encoded_bytes(100, BYTES);
    fa__cache *cache = cache_open(&(fa__cache_options){.dir = dir, .max_bytes = each * 5});
    arm(FAIL, "fcntl", ENOLCK, 1, true);
    for (unsigned n = 100; n < 150; n++) {
        put_number(cache, n, BYTES);
        cr_assert_leq(take_census(dir).entry_bytes, each * 5, "after %u", n);
    }
    disarm();
    fa__cache_close(cache);
}

Test(cache_faults, F21_a_total_that_cannot_be_written_is_not_trusted)
{
    const char *dir = in_scratch("c");
    fa__cache *cache = cache_in(dir);
    put_number(cache, 1, BYTES);
    plan.also = "ftruncate";
    arm(FAIL, "pwrite", EIO, 1, true);
    put_number(cache, 2, BYTES);
    disarm();
    cr_assert(plan.fired);
    cr_assert_eq(get_number(cache, 2, BYTES), 1);
    check_total(dir, "after a put");
    put_number(cache, 3, BYTES);
    cr_assert(file_exists(in_scratch("c/size")));
    check_total(dir, "after another put");
    fa__cache_close(cache);
}

Test(cache_faults, F21_an_entry_that_cannot_be_marked_is_still_a_hit)
{
    const char *dir = in_scratch("c");
    log_catch caught;
    log_catch_init(&caught);
    fa__cache *cache = cache_open(&(fa__cache_options){.dir = dir, .log = &caught.log});
    put_number(cache, 1, BYTES);
    file_set_age(path_of_number(dir, 1), 3600);
    arm(FAIL, "utimensat", EROFS, 1, true);
    const int found = get_number(cache, 1, BYTES);
    disarm();
    cr_assert(plan.fired);
    cr_assert_eq(found, 1);
    cr_assert_eq(caught.warnings, 0);
    fa__cache_close(cache);
}

Test(cache_faults, F18_no_home_anywhere)
{
    log_catch caught;
    log_catch_init(&caught);
    unsetenv("HOME");
    unsetenv("USER");
    no_passwd = true;
    fa__cache *cache = cache_open(&(fa__cache_options){.log = &caught.log});
    fa__key key = key_number(1);
    cr_assert_lt(fa__cache_lock(cache, &key), 0);
    put_number(cache, 1, BYTES);
    cr_assert_eq(get_number(cache, 1, BYTES), 0);
    cr_assert_str_eq(fa__cache_dir(cache), "");
    cr_assert(strstr(fa__cache_error(cache), "FAJIT_CACHE_DIR"));
    cr_assert_eq(caught.warnings, 1);
    cr_assert(strstr(caught.last_warning, "FAJIT_CACHE_DIR"), "%s", caught.last_warning);
    fa__key_free(&key);
    fa__cache_close(cache);
    setenv("FAJIT_CACHE_DIR", in_scratch("c"), 1);
    cache = cache_open(&(fa__cache_options){0});
    put_number(cache, 1, BYTES);
    cr_assert_eq(get_number(cache, 1, BYTES), 1);
    fa__cache_close(cache);
    no_passwd = false;
}

Test(cache_faults, F18_home_from_the_passwd_entry)
{
    struct passwd *entry = getpwuid(geteuid());
    if (!entry || entry->pw_dir[0] != '/')
        cr_skip_test("this user has no passwd entry");
    char expected[PATH_MAX];
    snprintf(expected, sizeof expected, "%s/.cache/fajit", entry->pw_dir);
    setenv("HOME", "not/absolute", 1);
    fa__cache *cache = cache_open(&(fa__cache_options){0});
    if (!*fa__cache_error(cache)) /* else the one that is there was refused */
        cr_assert_str_eq(fa__cache_dir(cache), expected);
    fa__cache_close(cache);
}

Test(cache_faults, a_working_directory_without_a_name)
{
    log_catch caught;
    log_catch_init(&caught);
    arm(FAIL, "getcwd", ENOENT, 1, true);
    fa__cache *cache =
        cache_open(&(fa__cache_options){.dir = "relative", .path = "layer", .log = &caught.log});
    disarm();
    cr_assert_str_eq(fa__cache_dir(cache), "");
    cr_assert(strstr(fa__cache_error(cache), "FAJIT_CACHE_DIR"), "%s", fa__cache_error(cache));
    cr_assert_str_eq(fa__cache_path(cache), "");
    cr_assert_eq(caught.warnings, 2);
    put_number(cache, 1, BYTES);
    cr_assert_eq(get_number(cache, 1, BYTES), 0);
    fa__cache_close(cache);
}

Test(cache_faults, walks_that_fail_are_errors)
{
    const char *dir = in_scratch("c");
    fa__cache *cache = cache_in(dir);
    uint64_t entries = 7, bytes = 7;
    int damaged = 0;
    put_number(cache, 1, BYTES);
    static const char *const functions[] = {"opendir", "readdir"};
    for (size_t i = 0; i < 2; i++) {
        arm(FAIL, functions[i], EIO, 1, true);
        opendirs = 0;
        cr_assert_eq(fa__cache_count(cache, &entries, &bytes), FA_ERR_IO, "%s", functions[i]);
        opendirs = 0;
        cr_assert_eq(fa__cache_visit(cache, true, false, add_damaged, &damaged), FA_ERR_IO);
        opendirs = 0;
        cr_assert_eq(fa__cache_clear(cache), FA_ERR_IO);
        disarm();
        cr_assert_eq(entries, 7);
        cr_assert(strstr(fa_last_error(), dir), "%s", fa_last_error());
    }
    arm(FAIL, "unlink", EACCES, 1, true);
    cr_assert_eq(fa__cache_clear(cache), FA_ERR_IO);
    disarm();
    cr_assert_eq(get_number(cache, 1, BYTES), 1);
    cr_assert_eq(fa__cache_clear(cache), FA_OK);
    cr_assert_eq(fa__cache_count(cache, &entries, &bytes), FA_OK);
    cr_assert_eq(entries, 0);
    fa__cache_close(cache);
}

/* ---- many entries ---------------------------------------------------------------------------- */

#define MANY 50000

Test(cache_faults, F20_fifty_thousand_entries_are_not_scanned)
{
    const char *dir = in_scratch("c"), *one = in_scratch("one");
    char path[PATH_MAX];
    uint64_t entries = 0, bytes = 0;
    file_write(one, "not read by a hit", 17);
    fa__cache *cache = cache_in(dir);
    put_number(cache, 1, BYTES);
    for (unsigned fan = 0; fan < 256; fan++) {
        snprintf(path, sizeof path, "%s/%02x", dir, fan);
        REAL(mkdir)(path, 0755);
    }
    for (unsigned n = 0; n < MANY; n++) {
        snprintf(path, sizeof path, "%s/%02x/%030x.fajit", dir, n & 255, n);
        cr_assert_eq(link(one, path), 0);
    }
    unlink(in_scratch("c/size"));
    put_number(cache, 2, BYTES); /* the one count */
    fa__cache_close(cache);

    opendirs = readdirs = 0;
    armed = true;
    cache = cache_in(dir);
    cr_assert_eq(get_number(cache, 1, BYTES), 1);
    cr_assert_eq(get_number(cache, 3, BYTES), 0);
    cr_assert(opendirs == 0 && readdirs == 0, "opening or a hit scanned: %ld, %ld", opendirs,
              readdirs);
    put_number(cache, 3, BYTES);
    cr_assert(opendirs == 0 && readdirs == 0, "a put scanned: %ld, %ld", opendirs, readdirs);
    cr_assert_eq(fa__cache_count(cache, &entries, &bytes), FA_OK);
    cr_assert_eq(opendirs, 256, "the functions are not intercepted");
    cr_assert_geq(readdirs, MANY);
    cr_assert_eq(entries, MANY + 3);
    disarm();
    fa__cache_close(cache);
}
