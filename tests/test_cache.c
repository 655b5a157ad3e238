#include "cache_fixture.h"

#include <grp.h>
#include <pthread.h>

TestSuite(cache, .init = scratch_make, .fini = scratch_remove, .timeout = 60);

static uint64_t counter(atomic_uint_fast64_t *value)
{
    return atomic_load(value);
}

#define STAT(cache, name) counter(&fa__cache_statistics(cache)->name)

/* ---- get and put ----------------------------------------------------------------------------- */

Test(cache, put_then_get)
{
    const char *dir = in_scratch("c");
    fa__cache *cache = cache_in(dir);
    cr_assert_eq(get_number(cache, 1, 1000), 0);
    put_number(cache, 1, 1000);
    put_number(cache, 2, 0);
    cr_assert_eq(get_number(cache, 1, 1000), 1);
    cr_assert_eq(get_number(cache, 2, 0), 1);
    cr_assert_eq(get_number(cache, 3, 10), 0);
    cr_assert_eq(STAT(cache, bytes_written), encoded_bytes(1, 1000) + encoded_bytes(2, 0));
    cr_assert_eq(STAT(cache, bytes_read), STAT(cache, bytes_written));
    cr_assert_eq(STAT(cache, publish_failures), 0);
    cr_assert_eq(STAT(cache, repairs), 0);
    fa__cache_close(cache);
    cache = cache_in(dir); /* as another process would find it */
    cr_assert_eq(get_number(cache, 1, 1000), 1);
    fa__cache_close(cache);
}

Test(cache, entries_lie_in_fan_out_directories_of_a_private_directory)
{
    const char *dir = in_scratch("c");
    struct stat info;
    fa__cache *cache = cache_in(dir);
    const mode_t mask = umask(0);
    put_number(cache, 1, 1000);
    umask(mask);
    cr_assert(file_exists(path_of_number(dir, 1)));
    cr_assert_eq(stat(dir, &info), 0);
    cr_assert_eq(info.st_mode & 07777, 0700);
    cr_assert_eq(stat(path_of_number(dir, 1), &info), 0);
    cr_assert_eq(info.st_mode & 022, 0);
    const census found = take_census(dir);
    cr_assert_eq(found.entries, 1);
    cr_assert_eq(found.temporaries, 0);
    cr_assert_eq(found.others, 1); /* size */
    fa__cache_close(cache);
}

Test(cache, F17_nothing_is_written_before_the_first_put)
{
    setenv("HOME", scratch, 1);
    setenv("XDG_CACHE_HOME", in_scratch("xdg"), 1);
    fa__cache *cache = cache_open(&(fa__cache_options){0});
    uint64_t entries, bytes;
    cr_assert_eq(get_number(cache, 1, 10), 0);
    cr_assert_eq(fa__cache_count(cache, &entries, &bytes), FA_OK);
    cr_assert_eq(fa__cache_clear(cache), FA_OK);
    fa__cache_close(cache);
    cr_assert_not(file_exists(in_scratch("xdg")));
}

Test(cache, disabled_neither_reads_nor_writes)
{
    const char *dir = in_scratch("c");
    fa__cache *cache = cache_in(dir);
    fa__key key = key_number(1);
    put_number(cache, 1, 10);
    fa__cache_close(cache);
    cache = cache_open(&(fa__cache_options){.dir = dir, .path = dir, .disabled = true});
    cr_assert_eq(get_number(cache, 1, 10), 0);
    put_number(cache, 2, 10);
    cr_assert_eq(fa__cache_lock(cache, &key), -1);
    cr_assert_str_eq(fa__cache_dir(cache), "");
    cr_assert_str_neq(fa__cache_error(cache), "");
    fa__cache_close(cache);
    fa__key_free(&key);
    cr_assert_eq(take_census(dir).entries, 1);
}

Test(cache, a_directory_removed_underneath_is_made_again)
{
    const char *dir = in_scratch("c");
    fa__cache *cache = cache_in(dir);
    fa__key key = key_number(1);
    put_number(cache, 1, 10);
    tree_remove(dir);
    cr_assert_eq(get_number(cache, 1, 10), 0);
    put_number(cache, 1, 10);
    cr_assert_eq(get_number(cache, 1, 10), 1);
    tree_remove(dir);
    const int token = fa__cache_lock(cache, &key);
    cr_assert_geq(token, 0);
    fa__cache_unlock(cache, &key, token);
    cr_assert_eq(STAT(cache, publish_failures), 0);
    fa__key_free(&key);
    fa__cache_close(cache);
}

/* ---- damage ---------------------------------------------------------------------------------- */

typedef struct damage {
    const char *name;
    void (*make)(const char *path);
} damage;

static void make_empty(const char *path)
{
    file_write(path, "", 0);
}

static void make_short(const char *path)
{
    if (truncate(path, 100) != 0)
        abort();
}

static void make_flipped(const char *path)
{
    const int fd = open(path, O_RDWR);
    char byte;
    if (fd < 0 || pread(fd, &byte, 1, 150) != 1)
        abort();
    byte = (char)(byte ^ 4);
    if (pwrite(fd, &byte, 1, 150) != 1 || close(fd) != 0)
        abort();
}

static void make_text(const char *path)
{
    file_write(path, "hello\n", 6);
}

static void make_foreign(const char *path)
{
    fa__key key = key_number(77);
    fa__entry entry = entry_number(77, 1000);
    fa__buf out = {0};
    fa__entry_encode(&entry, key.text.data, key.text.len, &out);
    file_write(path, out.data, out.len);
    fa__buf_free(&out);
    fa__entry_free(&entry);
    fa__key_free(&key);
}

static void make_huge(const char *path)
{
    if (truncate(path, (off_t)1 << 41) != 0)
        abort();
}

static void make_link(const char *path)
{
    const char *elsewhere = in_scratch("elsewhere");
    if (rename(path, elsewhere) != 0 || symlink(elsewhere, path) != 0)
        abort();
}

static void make_fifo(const char *path)
{
    if (unlink(path) != 0 || mkfifo(path, 0600) != 0)
        abort();
}

static void make_directory(const char *path)
{
    if (unlink(path) != 0 || mkdir(path, 0700) != 0)
        abort();
}

static const damage damages[] = {
    {"empty", make_empty},        {"short", make_short},         {"flipped bit", make_flipped},
    {"plain text", make_text},    {"foreign key", make_foreign}, {"huge", make_huge},
    {"symbolic link", make_link}, {"FIFO", make_fifo},           {"directory", make_directory},
};

Test(cache, F05_a_damaged_entry_is_a_miss_and_repaired)
{
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        const char *dir = in_scratch("c");
        log_catch caught;
        log_catch_init(&caught);
        fa__cache *cache = cache_open(&(fa__cache_options){.dir = dir, .log = &caught.log});
        put_number(cache, 1, 1000);
        damages[i].make(path_of_number(dir, 1));
        cr_assert_eq(get_number(cache, 1, 1000), 0, "%s: not a miss", damages[i].name);
        cr_assert_eq(get_number(cache, 1, 1000), 0, "%s: not a miss", damages[i].name);
        cr_assert_eq(caught.warnings, 1, "%s: %d warnings", damages[i].name, caught.warnings);
        put_number(cache, 1, 1000);
        cr_assert_eq(STAT(cache, repairs), 1, "%s: not counted as a repair", damages[i].name);
        cr_assert_eq(get_number(cache, 1, 1000), 1, "%s: not repaired", damages[i].name);
        put_number(cache, 1, 1000); /* over a good one: no repair */
        cr_assert_eq(STAT(cache, repairs), 1);
        cr_assert_eq(STAT(cache, publish_failures), 0);
        fa__cache_close(cache);
        tree_remove(dir);
    }
}

Test(cache, F26_content_decides_not_the_file_time)
{
    static const int64_t ages[] = {0, 61, 86400 * 365 * 30, -86400 * 365 * 10};
    const char *dir = in_scratch("c");
    fa__cache *cache = cache_in(dir);
    put_number(cache, 1, 1000);
    for (size_t i = 0; i < sizeof ages / sizeof *ages; i++) {
        file_set_age(path_of_number(dir, 1), ages[i]);
        cr_assert_eq(get_number(cache, 1, 1000), 1, "age %lld s", (long long)ages[i]);
    }
    make_flipped(path_of_number(dir, 1));
    for (size_t i = 0; i < sizeof ages / sizeof *ages; i++) {
        file_set_age(path_of_number(dir, 1), ages[i]);
        cr_assert_eq(get_number(cache, 1, 1000), 0, "age %lld s", (long long)ages[i]);
    }
    fa__cache_close(cache);
}

/* ---- where ----------------------------------------------------------------------------------- */

static void expect_dir(const char *expected)
{
    fa__cache *cache = cache_open(&(fa__cache_options){0});
    cr_assert_str_eq(fa__cache_dir(cache), expected);
    cr_assert_str_eq(fa__cache_error(cache), "");
    put_number(cache, 1, 10);
    cr_assert(file_exists(path_of_number(expected, 1)), "nothing in %s", expected);
    fa__cache_close(cache);
}

Test(cache, the_directory_comes_from_option_then_environment_then_home)
{
    char home_cache[PATH_MAX];
    setenv("HOME", in_scratch("home"), 1);
    snprintf(home_cache, sizeof home_cache, "%s", in_scratch("home/.cache/fajit"));
    expect_dir(home_cache);
    setenv("XDG_CACHE_HOME", "relative/is/ignored", 1);
    expect_dir(home_cache);
    setenv("XDG_CACHE_HOME", "", 1);
    expect_dir(home_cache);
    setenv("XDG_CACHE_HOME", in_scratch("xdg"), 1);
    expect_dir(in_scratch("xdg/fajit"));
    setenv("FAJIT_CACHE_DIR", "", 1);
    expect_dir(in_scratch("xdg/fajit"));
    setenv("FAJIT_CACHE_DIR", in_scratch("own/deep//er/"), 1);
    expect_dir(in_scratch("own/deep//er"));
    fa__cache *cache = cache_in(in_scratch("option"));
    cr_assert_str_eq(fa__cache_dir(cache), in_scratch("option"));
    fa__cache_close(cache);
}

Test(cache, F28_relative_paths_survive_a_chdir)
{
    cr_assert_eq(mkdir(in_scratch("layer"), 0700), 0);
    fa__cache *layer = cache_in(in_scratch("layer"));
    put_number(layer, 1, 10);
    fa__cache_close(layer);
    cr_assert_eq(chdir(scratch), 0);
    fa__cache *cache = cache_open(&(fa__cache_options){.dir = "here", .path = "layer"});
    cr_assert_eq(chdir("/"), 0);
    cr_assert_str_eq(fa__cache_dir(cache), in_scratch("here"));
    cr_assert_str_eq(fa__cache_path(cache), in_scratch("layer"));
    put_number(cache, 2, 10);
    cr_assert_eq(get_number(cache, 1, 10), 1);
    cr_assert_eq(get_number(cache, 2, 10), 1);
    cr_assert(file_exists(path_of_number(in_scratch("here"), 2)));
    fa__cache_close(cache);
}

Test(cache, F24_odd_characters_in_paths)
{
    static const char *const names[] = {
        "with space", "q\"uo'te", "$HOME ${X} `x`", "\xc3\xa4\xe2\x82\xac", "new\nline",
        "%s%n%d",     "-rf",      "*?[a]"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        fa__cache *cache = cache_in(in_scratch(names[i]));
        fa__key key = key_number((unsigned)i);
        put_number(cache, (unsigned)i, 100);
        cr_assert_eq(get_number(cache, (unsigned)i, 100), 1, "%s", names[i]);
        const int token = fa__cache_lock(cache, &key);
        cr_assert_geq(token, 0, "%s", names[i]);
        fa__cache_unlock(cache, &key, token);
        fa__key_free(&key);
        fa__cache_close(cache);
        cache =
            cache_open(&(fa__cache_options){.dir = in_scratch("w"), .path = in_scratch(names[i])});
        cr_assert_eq(get_number(cache, (unsigned)i, 100), 1, "%s as a layer", names[i]);
        fa__cache_close(cache);
    }
}

/* ---- read-only layers ------------------------------------------------------------------------ */

Test(cache, layers_are_looked_through_in_order_and_never_written)
{
    char list[PATH_MAX * 3];
    const char *dir = in_scratch("w"), *damaged = in_scratch("b");
    fa__cache *a = cache_in(in_scratch("a")), *b = cache_in(damaged);
    put_number(a, 1, 100);
    put_number(b, 2, 100);
    put_number(b, 3, 100);
    fa__cache_close(a);
    fa__cache_close(b);
    make_flipped(path_of_number(damaged, 3));
    file_set_age(path_of_number(damaged, 2), 7200);
    snprintf(list, sizeof list, ":%s::%s/missing:%s:", in_scratch("a"), scratch, damaged);
    setenv("FAJIT_CACHE_PATH", list, 1);
    log_catch caught;
    log_catch_init(&caught);
    fa__cache *cache = cache_open(&(fa__cache_options){.dir = dir, .log = &caught.log});
    snprintf(list, sizeof list, "%s:%s", in_scratch("a"), damaged);
    cr_assert_str_eq(fa__cache_path(cache), list);
    cr_assert_eq(caught.warnings, 1);
    cr_assert(strstr(caught.last_warning, "missing"), "%s", caught.last_warning);
    cr_assert_eq(get_number(cache, 1, 100), 1);
    cr_assert_eq(get_number(cache, 2, 100), 1);
    cr_assert_geq(file_age(path_of_number(damaged, 2)), 7000, "a read-only entry was marked");
    cr_assert_eq(get_number(cache, 3, 100), 0);
    put_number(cache, 3, 100);
    cr_assert_eq(get_number(cache, 3, 100), 1, "the writable directory comes after a bad layer");
    cr_assert_eq(STAT(cache, repairs), 0, "nothing was replaced");
    cr_assert_eq(take_census(dir).entries, 1);
    cr_assert_eq(take_census(damaged).entries, 2);
    fa__cache_close(cache);
}

Test(cache, F25_a_layer_that_everybody_can_write_to_is_not_used)
{
    const char *layer = in_scratch("a");
    fa__cache *a = cache_in(layer);
    put_number(a, 1, 100);
    fa__cache_close(a);
    cr_assert_eq(chmod(layer, 0777), 0);
    log_catch caught;
    log_catch_init(&caught);
    fa__cache *cache =
        cache_open(&(fa__cache_options){.dir = in_scratch("w"), .path = layer, .log = &caught.log});
    cr_assert_eq(get_number(cache, 1, 100), 0);
    cr_assert_str_eq(fa__cache_path(cache), "");
    cr_assert_eq(caught.warnings, 1);
    cr_assert(strstr(caught.last_warning, "everybody"), "%s", caught.last_warning);
    fa__cache_close(cache);
}

/* ---- directories that cannot be used --------------------------------------------------------- */

static void expect_refused(const char *dir, const char *reason)
{
    log_catch caught;
    log_catch_init(&caught);
    fa__cache *cache = cache_open(&(fa__cache_options){.dir = dir, .log = &caught.log});
    put_number(cache, 5, 10);
    put_number(cache, 5, 10);
    cr_assert_eq(get_number(cache, 5, 10), 0);
    cr_assert_eq(get_number(cache, 1, 10), 0, "an entry of a refused directory was used");
    cr_assert_eq(caught.warnings, 1, "%d warnings", caught.warnings);
    cr_assert(strstr(caught.last_warning, reason), "%s", caught.last_warning);
    cr_assert(strstr(caught.last_warning, "FAJIT_CACHE_DIR"), "%s", caught.last_warning);
    cr_assert(strstr(fa__cache_error(cache), reason), "%s", fa__cache_error(cache));
    cr_assert_str_eq(fa__cache_dir(cache), "");
    fa__cache_close(cache);
}

Test(cache, F25_a_directory_that_others_can_write_to_is_refused)
{
    static const mode_t modes[] = {0777, 0770, 0720, 0702, 01777};
    const char *dir = in_scratch("c");
    fa__cache *cache = cache_in(dir);
    put_number(cache, 1, 10);
    fa__cache_close(cache);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        cr_assert_eq(chmod(dir, modes[i]), 0);
        expect_refused(dir, "can be written by other users");
        cr_assert_eq(take_census(dir).entries, 1);
    }
    cr_assert_eq(chmod(dir, 0755), 0);
    cache = cache_in(dir);
    cr_assert_eq(get_number(cache, 1, 10), 1);
    fa__cache_close(cache);
}

Test(cache, F25_a_directory_of_somebody_else_is_refused)
{
    if (geteuid() != 0)
        cr_skip_test("needs root, to give a directory away");
    const char *dir = in_scratch("c");
    fa__cache *cache = cache_in(dir);
    put_number(cache, 1, 10);
    fa__cache_close(cache);
    cr_assert_eq(chown(dir, 12345, 12345), 0);
    expect_refused(dir, "belongs to user 12345");
}

Test(cache, F25_a_directory_that_becomes_untrusted_before_the_first_use_is_refused)
{
    const char *dir = in_scratch("c");
    log_catch caught;
    log_catch_init(&caught);
    fa__cache *cache = cache_open(&(fa__cache_options){.dir = dir, .log = &caught.log});
    cr_assert_eq(mkdir(dir, 0700), 0);
    cr_assert_eq(chmod(dir, 0777), 0);
    put_number(cache, 1, 10);
    cr_assert_eq(get_number(cache, 1, 10), 0);
    cr_assert_eq(caught.warnings, 1);
    cr_assert_eq(STAT(cache, publish_failures), 1);
    cr_assert_eq(take_census(dir).entries, 0);
    fa__cache_close(cache);
}

Test(cache, F16_a_file_where_the_directory_should_be)
{
    const char *file = in_scratch("file");
    file_write(file, "x", 1);
    expect_refused(file, "is not a directory");
    char below[PATH_MAX];
    snprintf(below, sizeof below, "%s/below", file);
    log_catch caught;
    log_catch_init(&caught);
    fa__cache *cache = cache_open(&(fa__cache_options){.dir = below, .log = &caught.log});
    put_number(cache, 1, 10);
    put_number(cache, 1, 10);
    cr_assert_eq(get_number(cache, 1, 10), 0);
    cr_assert_eq(caught.warnings, 1);
    cr_assert(strstr(caught.last_warning, "FAJIT_CACHE_DIR"), "%s", caught.last_warning);
    cr_assert_eq(STAT(cache, publish_failures), 2);
    fa__cache_close(cache);
}

/* Runs `body` in a child without root's powers; its result is the exit status. */
static int as_nobody(int (*body)(void))
{
    const pid_t child = fork();
    if (child == 0) {
        if (geteuid() == 0 && (setgroups(0, NULL) != 0 || setresgid(65534, 65534, 65534) != 0 ||
                               setresuid(54321, 54321, 54321) != 0))
            _exit(99);
        _exit(body());
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status))
        return 98;
    return WEXITSTATUS(status);
}

static int use_read_only_home(void)
{
    log_catch caught;
    log_catch_init(&caught);
    fa__cache *cache = cache_open(&(fa__cache_options){.log = &caught.log});
    fa__key key = key_number(1);
    const int token = fa__cache_lock(cache, &key);
    put_number(cache, 1, 10);
    put_number(cache, 2, 10);
    if (token >= 0)
        return 1;
    if (get_number(cache, 1, 10) != 0)
        return 2;
    if (caught.warnings != 1)
        return 3;
    if (!strstr(caught.last_warning, "FAJIT_CACHE_DIR"))
        return 4;
    if (STAT(cache, publish_failures) != 2)
        return 5;
    fa__key_free(&key);
    fa__cache_close(cache);
    return 0;
}

Test(cache, F16_a_home_that_cannot_be_written_to)
{
    cr_assert_eq(chmod(scratch, 0555), 0);
    setenv("HOME", scratch, 1);
    cr_assert_eq(as_nobody(use_read_only_home), 0);
    setenv("HOME", in_scratch("missing/home"), 1);
    cr_assert_eq(as_nobody(use_read_only_home), 0);
    cr_assert_eq(chmod(scratch, 0700), 0);
}

static int read_what_cannot_be_written(void)
{
    fa__cache *cache = cache_in(in_scratch("c"));
    int result = get_number(cache, 1, 10) == 1 ? 0 : 1;
    put_number(cache, 2, 10);
    if (STAT(cache, publish_failures) != 1 || get_number(cache, 2, 10) != 0)
        result = 2;
    fa__cache_close(cache);
    return result;
}

Test(cache, F16_a_filled_cache_that_cannot_be_written_to_is_still_read)
{
    const char *dir = in_scratch("c");
    fa__cache *cache = cache_in(dir);
    put_number(cache, 1, 10);
    fa__cache_close(cache);
    char fan[PATH_MAX];
    snprintf(fan, sizeof fan, "%s", path_of_number(dir, 1));
    *strrchr(fan, '/') = '\0';
    file_set_age(path_of_number(dir, 1), 3600);
    cr_assert_eq(chmod(scratch, 0755), 0);
    cr_assert_eq(chmod(fan, 0555), 0);
    cr_assert_eq(chmod(dir, 0555), 0);
    if (geteuid() == 0)
        cr_assert_eq(chown(dir, 54321, 65534), 0);
    cr_assert_eq(as_nobody(read_what_cannot_be_written), 0);
}

/* ---- use and eviction ------------------------------------------------------------------------ */

Test(cache, F21_a_hit_marks_the_entry_as_used)
{
    const char *dir = in_scratch("c");
    fa__cache *cache = cache_in(dir);
    put_number(cache, 1, 10);
    file_set_age(path_of_number(dir, 1), 3600);
    cr_assert_eq(get_number(cache, 1, 10), 1);
    cr_assert_leq(file_age(path_of_number(dir, 1)), 5);
    file_set_age(path_of_number(dir, 1), 30); /* recent: not worth a write */
    cr_assert_eq(get_number(cache, 1, 10), 1);
    cr_assert_geq(file_age(path_of_number(dir, 1)), 30);
    file_set_age(path_of_number(dir, 1), -7200); /* a clock that was wrong */
    cr_assert_eq(get_number(cache, 1, 10), 1);
    cr_assert_geq(file_age(path_of_number(dir, 1)), -5);
    fa__cache_close(cache);
}

Test(cache, F21_the_least_recently_used_go_first)
{
    const char *dir = in_scratch("c");
    const size_t each = encoded_bytes(10, 1000);
    fa__cache *cache = cache_open(&(fa__cache_options){.dir = dir, .max_bytes = each * 10});
    for (unsigned i = 10; i < 20; i++) {
        put_number(cache, i, 1000);
        file_set_age(path_of_number(dir, i), 10000 - i * 100);
    }
    cr_assert_eq(STAT(cache, evictions), 0);
    cr_assert_eq(get_number(cache, 10, 1000), 1); /* the oldest, used just now */
    put_number(cache, 20, 1000);
    cr_assert_eq(STAT(cache, evictions), 2);
    cr_assert_eq(get_number(cache, 10, 1000), 1);
    cr_assert_eq(get_number(cache, 11, 1000), 0);
    cr_assert_eq(get_number(cache, 12, 1000), 0);
    for (unsigned i = 13; i <= 20; i++)
        cr_assert_eq(get_number(cache, i, 1000), 1, "%u", i);
    fa__cache_close(cache);
}

Test(cache, F21_the_total_stays_under_the_cap)
{
    const char *dir = in_scratch("c");
    const uint64_t cap = 50000;
    fa__cache *cache = cache_open(&(fa__cache_options){.dir = dir, .max_bytes = cap});
    for (unsigned i = 0; i < 300; i++) {
        const size_t bytes = i * 37 % 5000;
        put_number(cache, i, bytes);
        cr_assert_eq(get_number(cache, i, bytes), 1, "the entry just written is the victim: %u", i);
        const census found = take_census(dir);
        cr_assert_leq(found.entry_bytes, cap, "after %u", i);
        cr_assert_geq(found.entries, 1);
    }
    cr_assert_gt(STAT(cache, evictions), 200);
    uint64_t entries, bytes;
    cr_assert_eq(fa__cache_count(cache, &entries, &bytes), FA_OK);
    const census found = take_census(dir);
    cr_assert_eq(entries, found.entries);
    cr_assert_eq(bytes, found.entry_bytes);
    cr_assert_gt(bytes, cap / 2, "evicts far more than it has to");
    fa__cache_close(cache);
}

Test(cache, F21_the_newest_stays_even_with_an_old_file_time_on_the_others)
{
    const char *dir = in_scratch("c");
    const size_t each = encoded_bytes(1, 1000);
    fa__cache *cache = cache_open(&(fa__cache_options){.dir = dir, .max_bytes = each + 10});
    put_number(cache, 1, 1000);
    file_set_age(path_of_number(dir, 1), -3600); /* seems newer than anything written from now on */
    put_number(cache, 2, 1000);
    cr_assert_eq(get_number(cache, 2, 1000), 1);
    cr_assert_eq(get_number(cache, 1, 1000), 0);
    fa__cache_close(cache);
}

Test(cache, an_entry_larger_than_the_cap_is_not_kept)
{
    const char *dir = in_scratch("c");
    log_catch caught;
    log_catch_init(&caught);
    fa__cache *cache =
        cache_open(&(fa__cache_options){.dir = dir, .max_bytes = 2000, .log = &caught.log});
    put_number(cache, 1, 500);
    put_number(cache, 2, 5000);
    cr_assert_eq(get_number(cache, 1, 500), 1, "evicted for one that cannot be kept");
    cr_assert_eq(get_number(cache, 2, 5000), 0);
    cr_assert_eq(STAT(cache, publish_failures), 1);
    cr_assert(strstr(caught.last_warning, "FAJIT_CACHE_MAX_BYTES"), "%s", caught.last_warning);
    fa__cache_close(cache);
}

Test(cache, F21_an_open_entry_can_be_read_after_its_eviction)
{
    const char *dir = in_scratch("c");
    const size_t each = encoded_bytes(1, 1000);
    char byte;
    fa__cache *cache = cache_open(&(fa__cache_options){.dir = dir, .max_bytes = each + 10});
    put_number(cache, 1, 1000);
    const int fd = open(path_of_number(dir, 1), O_RDONLY);
    put_number(cache, 2, 1000);
    cr_assert_not(file_exists(path_of_number(dir, 1)));
    cr_assert_eq(pread(fd, &byte, 1, (off_t)each - 1), 1);
    close(fd);
    fa__cache_close(cache);
}

Test(cache, F21_a_missing_or_wrong_size_file_is_counted_anew)
{
    static const char *const contents[] = {NULL,
                                           "",
                                           "garbage\n",
                                           "00000000000000000000",
                                           "00000000000000000x00\n",
                                           "99999999999999999999\n"};
    const char *dir = in_scratch("c"), *size = in_scratch("c/size");
    const size_t each = encoded_bytes(10, 1000);
    for (size_t i = 0; i < sizeof contents / sizeof *contents; i++) {
        char text[64], expected[64];
        fa__cache *cache = cache_open(&(fa__cache_options){.dir = dir, .max_bytes = each * 5});
        for (unsigned n = 10; n < 15; n++)
            put_number(cache, n, 1000);
        if (contents[i])
            file_write(size, contents[i], strlen(contents[i]));
        else
            unlink(size);
        put_number(cache, 15, 1000);
        const census found = take_census(dir);
        cr_assert_leq(found.entry_bytes, each * 5, "content %zu", i);
        snprintf(expected, sizeof expected, "%020llu\n", (unsigned long long)found.entry_bytes);
        FILE *file = fopen(size, "r");
        cr_assert(file && fgets(text, sizeof text, file), "content %zu", i);
        fclose(file);
        cr_assert_str_eq(text, expected, "content %zu", i);
        fa__cache_close(cache);
        tree_remove(dir);
    }
}

Test(cache, F01_leftovers_of_a_crash_are_removed_when_looking_for_victims)
{
    const char *dir = in_scratch("c");
    char old[PATH_MAX], fresh[PATH_MAX];
    fa__cache *cache = cache_in(dir);
    put_number(cache, 1, 1000);
    const int len = (int)(strrchr(path_of_number(dir, 1), '/') - path_of_number(dir, 1));
    snprintf(old, sizeof old, "%.*s/.fajit-1-1-1.tmp", len, path_of_number(dir, 1));
    snprintf(fresh, sizeof fresh, "%.*s/.fajit-1-1-2.tmp", len, path_of_number(dir, 1));
    file_write(old, "x", 1);
    file_write(fresh, "x", 1);
    file_set_age(old, 3700);
    unlink(in_scratch("c/size"));
    put_number(cache, 2, 1000);
    cr_assert_not(file_exists(old));
    cr_assert(file_exists(fresh), "a file that may be being written was removed");
    cr_assert_eq(fa__cache_clear(cache), FA_OK);
    cr_assert_not(file_exists(fresh));
    fa__cache_close(cache);
}

Test(cache, the_cap_comes_from_option_then_environment_then_default)
{
    static const struct {
        const char *text;
        uint64_t bytes;
        int warnings;
    } cases[] = {{"123456", 123456, 0},
                 {"", UINT64_C(1) << 30, 0},
                 {"0", UINT64_C(1) << 30, 1},
                 {"1G", UINT64_C(1) << 30, 1},
                 {"-5", UINT64_C(1) << 30, 1},
                 {" 7", UINT64_C(1) << 30, 1},
                 {"18446744073709551615000", UINT64_C(1) << 30, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        log_catch caught;
        log_catch_init(&caught);
        setenv("FAJIT_CACHE_MAX_BYTES", cases[i].text, 1);
        fa__cache *cache =
            cache_open(&(fa__cache_options){.dir = in_scratch("c"), .log = &caught.log});
        cr_assert_eq(fa__cache_max_bytes(cache), cases[i].bytes, "\"%s\"", cases[i].text);
        cr_assert_eq(caught.warnings, cases[i].warnings, "\"%s\"", cases[i].text);
        fa__cache_close(cache);
    }
    fa__cache *cache = cache_open(&(fa__cache_options){.dir = in_scratch("c"), .max_bytes = 77});
    cr_assert_eq(fa__cache_max_bytes(cache), 77);
    fa__cache_close(cache);
}

/* ---- locks ----------------------------------------------------------------------------------- */

Test(cache, F08_waiting_for_a_lock_is_bounded)
{
    fa__cache_options options = {.dir = in_scratch("c"), .lock_timeout_ms = 150};
    fa__cache *one = cache_open(&options), *two = cache_open(&options);
    fa__key key = key_number(1), other = key_number(2);
    struct timespec from, to;
    const int held = fa__cache_lock(one, &key);
    cr_assert_geq(held, 0);
    clock_gettime(CLOCK_MONOTONIC, &from);
    cr_assert_lt(fa__cache_lock(two, &key), 0);
    cr_assert_lt(fa__cache_lock(one, &key), 0, "the same cache is another holder too");
    clock_gettime(CLOCK_MONOTONIC, &to);
    const int64_t ms = (to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000;
    cr_assert(ms >= 290 && ms < 5000, "%lld ms", (long long)ms);
    cr_assert_eq(STAT(two, lock_timeouts), 1);
    cr_assert_eq(STAT(two, lock_waits), 1);
    const int free_one = fa__cache_lock(two, &other);
    cr_assert_geq(free_one, 0, "another key is not locked");
    fa__cache_unlock(two, &other, free_one);
    fa__cache_unlock(one, &key, held);
    const int again = fa__cache_lock(two, &key);
    cr_assert_geq(again, 0);
    fa__cache_unlock(two, &key, again);
    fa__cache_unlock(two, &key, -1);
    fa__key_free(&key);
    fa__key_free(&other);
    fa__cache_close(one);
    fa__cache_close(two);
}

typedef struct signal_to {
    fa__cache *cache;
    int fd;
} signal_to;

static void *signal_when_waited_for(void *user)
{
    const signal_to *s = user;
    until_waited_for(s->cache);
    close(s->fd);
    return NULL;
}

Test(cache, a_waiter_returns_when_the_entry_appears)
{
    int gate[2];
    char byte;
    pthread_t signaller;
    const char *dir = in_scratch("c");
    fa__cache *cache = cache_open(&(fa__cache_options){.dir = dir, .lock_timeout_ms = 20000});
    fa__key key = key_number(1);
    const int held = fa__cache_lock(cache, &key);
    cr_assert_geq(held, 0);
    cr_assert_eq(pipe(gate), 0);
    const pid_t child = fork();
    if (child == 0) {
        close(gate[1]);
        if (read(gate[0], &byte, 1) == 0)
            put_number(cache, 1, 10);
        _exit(0);
    }
    signal_to s = {cache, gate[1]};
    cr_assert_eq(pthread_create(&signaller, NULL, signal_when_waited_for, &s), 0);
    cr_assert_lt(fa__cache_lock(cache, &key), 0);
    pthread_join(signaller, NULL);
    cr_assert_eq(STAT(cache, lock_timeouts), 0);
    cr_assert_eq(get_number(cache, 1, 10), 1);
    waitpid(child, NULL, 0);
    fa__cache_unlock(cache, &key, held);
    fa__key_free(&key);
    fa__cache_close(cache);
}

Test(cache, a_damaged_entry_does_not_end_the_wait)
{
    const char *dir = in_scratch("c");
    fa__cache *cache = cache_open(&(fa__cache_options){.dir = dir, .lock_timeout_ms = 100});
    fa__key key = key_number(1);
    put_number(cache, 1, 1000);
    make_flipped(path_of_number(dir, 1));
    const int held = fa__cache_lock(cache, &key);
    cr_assert_lt(fa__cache_lock(cache, &key), 0);
    cr_assert_eq(STAT(cache, lock_timeouts), 1, "did not wait for the repair");
    fa__cache_unlock(cache, &key, held);
    fa__key_free(&key);
    fa__cache_close(cache);
}

/* ---- visit, count, clear --------------------------------------------------------------------- */

typedef struct seen {
    int entries, writable, damaged, named, stop_after;
    char problem[256], damaged_key[33];
} seen;

static bool look_at(void *user, const fa_cache_entry *entry)
{
    seen *all = user;
    unsigned n = 0;
    all->entries++;
    all->writable += entry->writable_layer;
    all->damaged += entry->damaged;
    if (entry->damaged) {
        snprintf(all->problem, sizeof all->problem, "%s", entry->problem);
        snprintf(all->damaged_key, sizeof all->damaged_key, "%s", entry->key);
        cr_expect_str_eq(entry->name, "");
    } else if (sscanf(entry->name, "rope f32 D%u", &n) == 1) {
        fa__key key = key_number(n);
        all->named++;
        cr_expect_str_eq(entry->key, key.name);
        cr_expect_str_eq(entry->arch, "sm_90a");
        cr_expect_str_eq(entry->problem, "");
        cr_expect_eq(entry->bytes, encoded_bytes(n, 200));
        cr_expect(llabs((long long)entry->used_unix_s - (long long)time(NULL)) < 100);
        fa__key_free(&key);
    }
    cr_expect(file_exists(entry->path), "%s", entry->path);
    return all->entries != all->stop_after;
}

Test(cache, visit_shows_every_entry_of_every_layer)
{
    fa__cache *layer = cache_in(in_scratch("a"));
    put_number(layer, 1, 200);
    fa__cache_close(layer);
    fa__cache *cache =
        cache_open(&(fa__cache_options){.dir = in_scratch("w"), .path = in_scratch("a")});
    for (unsigned i = 2; i < 12; i++)
        put_number(cache, i, 200);
    file_write(in_scratch("w/notes.txt"), "x", 1);
    seen all = {0};
    cr_assert_eq(fa__cache_visit(cache, false, false, look_at, &all), FA_OK);
    cr_assert_eq(all.entries, 11);
    cr_assert_eq(all.writable, 10);
    cr_assert_eq(all.named, 11);
    all = (seen){.stop_after = 1}; /* ends in the layer: the writable directory is not begun */
    cr_assert_eq(fa__cache_visit(cache, false, false, look_at, &all), FA_OK);
    cr_assert_eq(all.entries, 1);
    all = (seen){.stop_after = 4};
    cr_assert_eq(fa__cache_visit(cache, false, false, look_at, &all), FA_OK);
    cr_assert_eq(all.entries, 4);
    fa__cache_close(cache);
}

Test(cache, F23_visit_shows_long_names)
{
    const char *dir = in_scratch("c");
    fa__cache *cache = cache_in(dir);
    fa__buf text = {0};
    fa__buf_text(&text, "fajit key 1\nlabel ");
    for (int i = 0; i < 100000; i++) /* more than is read of most entries */
        fa__buf_text(&text, "n");
    fa__buf_text(&text, "\narch sm_80\n");
    fa__key key = key_of_text(text.data);
    fa__entry entry = entry_number(1, 10);
    fa__cache_put(cache, &key, &entry);
    seen all = {0};
    cr_assert_eq(fa__cache_visit(cache, false, false, look_at, &all), FA_OK);
    cr_assert_eq(all.entries, 1);
    cr_assert_str_eq(all.problem, "");
    all = (seen){0};
    cr_assert_eq(fa__cache_visit(cache, true, false, look_at, &all), FA_OK);
    cr_assert_eq(all.damaged, 0, "%s", all.problem);
    fa__entry_free(&entry);
    fa__key_free(&key);
    fa__buf_free(&text);
    fa__cache_close(cache);
}

Test(cache, verify_finds_and_removes_every_kind_of_damage)
{
    const char *dir = in_scratch("c");
    fa__cache *cache = cache_in(dir);
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        fa__key key = key_number(1);
        put_number(cache, 1, 200);
        put_number(cache, 2, 200);
        damages[i].make(path_of_number(dir, 1));
        seen all = {0};
        cr_assert_eq(fa__cache_visit(cache, true, false, look_at, &all), FA_OK);
        cr_assert_eq(all.entries, 2);
        cr_assert_eq(all.damaged, 1, "%s", damages[i].name);
        cr_assert_str_eq(all.damaged_key, key.name);
        cr_assert_str_neq(all.problem, "", "%s", damages[i].name);
        cr_assert(file_exists(path_of_number(dir, 1)), "%s", damages[i].name);
        fa__key_free(&key);
    }
    fa__cache_close(cache);
}

static bool just_count(void *user, const fa_cache_entry *entry)
{
    *(int *)user += entry->damaged;
    return true;
}

Test(cache, verify_removes_damage_from_the_writable_directory_alone)
{
    const char *dir = in_scratch("c"), *layer = in_scratch("a");
    fa__cache *cache = cache_in(layer);
    put_number(cache, 3, 200);
    fa__cache_close(cache);
    make_flipped(path_of_number(layer, 3));
    cache = cache_open(&(fa__cache_options){.dir = dir, .path = layer});
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        int damaged = 0;
        put_number(cache, 1, 200);
        put_number(cache, 2, 200);
        damages[i].make(path_of_number(dir, 1));
        cr_assert_eq(fa__cache_visit(cache, true, true, just_count, &damaged), FA_OK);
        cr_assert_eq(damaged, 2, "%s", damages[i].name);
        cr_assert_not(file_exists(path_of_number(dir, 1)), "%s", damages[i].name);
        cr_assert(file_exists(path_of_number(dir, 2)));
        cr_assert(file_exists(path_of_number(layer, 3)), "a read-only layer was changed");
    }
    fa__cache_close(cache);
}

Test(cache, clear_removes_entries_and_keeps_the_lock_file)
{
    const char *dir = in_scratch("c");
    fa__cache *cache = cache_in(dir);
    fa__key key = key_number(1);
    uint64_t entries, bytes;
    const int token = fa__cache_lock(cache, &key);
    for (unsigned i = 0; i < 20; i++)
        put_number(cache, i, 200);
    fa__cache_unlock(cache, &key, token);
    cr_assert_eq(fa__cache_count(cache, &entries, &bytes), FA_OK);
    cr_assert_eq(entries, 20);
    cr_assert_eq(fa__cache_clear(cache), FA_OK);
    cr_assert_eq(fa__cache_count(cache, &entries, &bytes), FA_OK);
    cr_assert_eq(entries, 0);
    cr_assert_eq(bytes, 0);
    cr_assert(file_exists(in_scratch("c/lock")));
    cr_assert_not(file_exists(in_scratch("c/size")));
    put_number(cache, 1, 200);
    cr_assert_eq(get_number(cache, 1, 200), 1);
    fa__key_free(&key);
    fa__cache_close(cache);
}
