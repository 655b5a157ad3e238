#include "fixture.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <locale.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

/* --- look-alikes --- */

static void own_folder(char *out, size_t size)
{
    const char *dir = getenv("FAJIT_TEST_FAKES");
    if (dir && dir[0]) {
        snprintf(out, size, "%s", dir);
        return;
    }
    ssize_t len = readlink("/proc/self/exe", out, size - 1);
    cr_assert(len > 0, "cannot read /proc/self/exe: %s", strerror(errno));
    out[len] = '\0';
    *strrchr(out, '/') = '\0';
}

void fixture_path(const char *name, char *out, size_t size)
{
    char dir[PATH_MAX];
    own_folder(dir, sizeof dir);
    snprintf(out, size, "%s/fake/%s", dir, name);
    if (access(out, F_OK) != 0)
        snprintf(out, size, "%s/%s", dir, name);
    cr_assert(access(out, F_OK) == 0, "%s is neither in %s nor in its fake/", name, dir);
}

const fake_control *fixture_open(const char *library)
{
    char name[64], path[PATH_MAX];
    snprintf(name, sizeof name, "lib%s.so", library);
    fixture_path(name, path, sizeof path);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    cr_assert_not_null(handle, "%s", dlerror());
    fake_control_get_fn get = NULL;
    *(void **)&get = dlsym(handle, "fake_control_get");
    cr_assert_not_null(get, "%s is no look-alike", path);
    return get();
}

static const fake_control *use(const char *variable, const char *library)
{
    char name[64], path[PATH_MAX];
    if (!library[0])
        return NULL;
    snprintf(name, sizeof name, "lib%s.so", library);
    fixture_path(name, path, sizeof path);
    setenv(variable, path, 1);
    return fixture_open(library);
}

void fixture_begin_with(fixture *f, const char *cuda, const char *nvrtc)
{
    const char *tmp = getenv("TMPDIR");
    *f = (fixture){0};
    snprintf(f->dir, sizeof f->dir, "%s/fajit-fixture.XXXXXX", tmp && tmp[0] ? tmp : "/tmp");
    cr_assert_not_null(mkdtemp(f->dir), "cannot make %s: %s", f->dir, strerror(errno));
    snprintf(f->cache, sizeof f->cache, "%s/cache", f->dir);
    snprintf(f->counts, sizeof f->counts, "%s/counts", f->dir);
    setenv("FAJIT_CACHE_DIR", f->cache, 1);
    setenv("FAKE_COUNT_FILE", f->counts, 1);
    unsetenv("FAJIT_CACHE_PATH");
    unsetenv("FAJIT_CACHE_MAX_BYTES");
    f->cuda = use("FAJIT_CUDA_LIBRARY", cuda);
    f->nvrtc = use("FAJIT_NVRTC_LIBRARY", nvrtc);
}

void fixture_begin(fixture *f)
{
    fixture_begin_with(f, "fake_cuda", "fake_nvrtc");
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

void fixture_end(fixture *f)
{
    nftw(f->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    if (f->cuda)
        cr_expect_str_eq(f->cuda->violation(), "");
    if (f->nvrtc)
        cr_expect_str_eq(f->nvrtc->violation(), "");
}

/* --- a kernel to ask for --- */

static const char scale_source[] =
    "__global__ void scale(float *x, float factor, unsigned n)\n"
    "{\n"
    "    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    if (i < n)\n"
    "        x[i] *= factor * static_cast<float>(VALUE);\n"
    "}\n";

void scale_spec_init(scale_spec *s, int64_t value)
{
    *s = (scale_spec){.spec = FA_SPEC_INIT(FA_OP_TEMPLATE)};
    s->constant[0] = (fa_constant){.name = "VALUE", .type = FA_CONSTANT_INT, .int_value = value};
    s->spec.tmpl = (fa_template_spec){
        .name = "scale.cu",
        .source = scale_source,
        .entry = "scale",
        .constants = s->constant,
        .constant_count = 1,
    };
}

void scale_args_init(scale_args *a, void *x, uint32_t n)
{
    *a = (scale_args){.args = FA_ARGS_INIT(FA_OP_TEMPLATE), .x = x, .factor = 2.0f, .n = n};
    a->param[0] = (fa_param){.data = &a->x, .size = sizeof a->x};
    a->param[1] = (fa_param){.data = &a->factor, .size = sizeof a->factor};
    a->param[2] = (fa_param){.data = &a->n, .size = sizeof a->n};
    a->args.tmpl = (fa_template_args){
        .grid = {(n + 127) / 128},
        .block = {128},
        .params = a->param,
        .param_count = 3,
    };
}

fa_context *fixture_context(void)
{
    fa_context *ctx = NULL;
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    fa_status status = fa_context_create(&options, &ctx);
    cr_assert_eq(status, FA_OK, "%s", fa_last_error());
    return ctx;
}

fa_context *fixture_offline(const char *arch)
{
    fa_context *ctx = NULL;
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.offline = true;
    options.arch = arch;
    fa_status status = fa_context_create(&options, &ctx);
    cr_assert_eq(status, FA_OK, "%s", fa_last_error());
    return ctx;
}

fa_kernel *fixture_compile(fa_context *ctx, int64_t value)
{
    scale_spec s;
    fa_kernel *kernel = NULL;
    scale_spec_init(&s, value);
    fa_status status = fa_compile(ctx, &s.spec, &kernel);
    cr_assert_eq(status, FA_OK, "value %lld: %s", (long long)value, fa_last_error());
    cr_assert_not_null(kernel);
    return kernel;
}

/* --- counting --- */

size_t fixture_compiles(const fixture *f)
{
    size_t lines = 0;
    FILE *file = fopen(f->counts, "r");
    for (int c; file && (c = fgetc(file)) != EOF;)
        lines += c == '\n';
    if (file)
        fclose(file);
    return lines;
}

size_t fixture_files(const char *dir, const char *end)
{
    size_t count = 0;
    DIR *d = opendir(dir);
    struct dirent *e = NULL;
    while (d && (e = readdir(d)) != NULL) {
        char path[PATH_MAX];
        struct stat st;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (lstat(path, &st) != 0)
            continue;
        size_t len = strlen(e->d_name), tail = strlen(end);
        if (S_ISDIR(st.st_mode))
            count += fixture_files(path, end);
        else
            count += len >= tail && strcmp(e->d_name + len - tail, end) == 0;
    }
    if (d)
        closedir(d);
    return count;
}

long fixture_rss_kb(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%*d %ld", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

bool fixture_sanitized(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#elif defined(__has_feature)
    return __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
    return false;
#endif
}

/* --- child processes --- */

static void redirect(posix_spawn_file_actions_t *actions, int pipe_fd[2], int end, int target)
{
    cr_assert_eq(pipe2(pipe_fd, O_CLOEXEC), 0, "%s", strerror(errno));
    posix_spawn_file_actions_adddup2(actions, pipe_fd[end], target);
}

pid_t fixture_spawn(int *out, int *gate, const char *const *argv)
{
    char path[PATH_MAX];
    char *args[16] = {path};
    int output[2] = {-1, -1}, input[2] = {-1, -1};
    pid_t pid = 0;
    posix_spawn_file_actions_t actions;
    fixture_path("fajit_test_child", path, sizeof path);
    for (int i = 0; argv[i]; i++)
        args[i + 1] = (char *)(uintptr_t)argv[i]; /* posix_spawn does not write to them */
    posix_spawn_file_actions_init(&actions);
    if (out)
        redirect(&actions, output, 1, STDOUT_FILENO);
    if (gate)
        redirect(&actions, input, 0, STDIN_FILENO);
    int rc = posix_spawn(&pid, path, &actions, NULL, args, environ);
    cr_assert_eq(rc, 0, "cannot start %s: %s", path, strerror(rc));
    posix_spawn_file_actions_destroy(&actions);
    if (out) {
        close(output[1]);
        *out = output[0];
    }
    if (gate) {
        close(input[0]);
        *gate = input[1];
    }
    return pid;
}

int fixture_wait(pid_t pid, int seconds)
{
    int status = 0;
    for (int waited_ms = 0;; waited_ms += 5) {
        pid_t got = waitpid(pid, &status, WNOHANG);
        cr_assert(got >= 0, "waitpid: %s", strerror(errno));
        if (got == pid)
            break;
        if (waited_ms == seconds * 1000)
            kill(pid, SIGKILL);
        struct timespec t = {.tv_nsec = 5000000};
        nanosleep(&t, NULL);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

int fixture_run(char *line, size_t size, const char *const *argv)
{
    int out = -1;
    size_t len = 0;
    pid_t pid = fixture_spawn(&out, NULL, argv);
    for (ssize_t got; len + 1 < size && (got = read(out, line + len, size - 1 - len)) > 0;)
        len += (size_t)got;
    line[len] = '\0';
    line[strcspn(line, "\n")] = '\0';
    close(out);
    return fixture_wait(pid, 30);
}

/* --- locale --- */

const char *fixture_comma_locale(const fixture *f)
{
    static const char name[] = "de_DE.UTF-8";
    locale_t l = newlocale(LC_ALL_MASK, name, (locale_t)0);
    if (!l) {
        char command[700];
        snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 '%s/%s' >/dev/null 2>&1",
                 f->dir, name);
        if (system(command) == -1)
            return "";
        setenv("LOCPATH", f->dir, 1);
        l = newlocale(LC_ALL_MASK, name, (locale_t)0);
    }
    if (!l)
        return "";
    freelocale(l);
    return name;
}
