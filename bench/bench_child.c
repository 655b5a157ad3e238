/* Fresh processes and temporary files: what "cold" and "first" mean needs a process of its own. */
#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

#define MAX_ARGS 30

static size_t read_values(FILE *in, bench_value *values, size_t capacity)
{
    char line[256];
    size_t count = 0;
    while (fgets(line, sizeof line, in)) {
        bench_value value;
        if (sscanf(line, "%63s %lf", value.name, &value.value) != 2)
            bench_die("a child printed a line that is not \"name number\": %s", line);
        if (count == capacity)
            bench_die("a child printed more than %zu values", capacity);
        values[count++] = value;
    }
    return count;
}

bench_process bench_child_start(const char *const *argv)
{
    char *args[MAX_ARGS + 2] = {(char *)"bench-child"};
    for (size_t n = 0; argv[n]; n++) {
        if (n == MAX_ARGS)
            bench_die("more than %d arguments for a child", MAX_ARGS);
        args[n + 1] = (char *)argv[n];
    }
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        bench_die("pipe2: %s", strerror(errno));
    pid_t pid;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    const int failed = posix_spawn(&pid, "/proc/self/exe", &actions, NULL, args, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (failed)
        bench_die("cannot start a child: %s", strerror(failed));
    FILE *output = fdopen(ends[0], "r");
    if (!output)
        bench_die("fdopen: %s", strerror(errno));
    return (bench_process){.pid = pid, .output = output};
}

size_t bench_child_finish(bench_process process, bench_value *values, size_t capacity)
{
    const size_t count = read_values(process.output, values, capacity);
    fclose(process.output);
    int status = 0;
    while (waitpid(process.pid, &status, 0) < 0) {
        if (errno != EINTR)
            bench_die("waitpid: %s", strerror(errno));
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return 0;
    return count;
}

double bench_child_value(const bench_value *values, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(values[i].name, name) == 0)
            return values[i].value;
    }
    return NAN;
}

/* --- temporary files --- */

char *bench_directory_make(void)
{
    const char *base = getenv("TMPDIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/fajit-bench-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(path))
        bench_die("cannot make a directory like %s: %s", path, strerror(errno));
    char *copy = strdup(path);
    if (!copy)
        bench_die("out of memory");
    return copy;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info, (void)kind, (void)where;
    return remove(path);
}

void bench_directory_remove(char *path)
{
    if (!path)
        return;
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0)
        fprintf(stderr, "bench: %s could not be removed: %s\n", path, strerror(errno));
    free(path);
}

void bench_file_write(const char *path, const void *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, count, file) != count || fclose(file) != 0)
        bench_die("cannot write %s: %s", path, strerror(errno));
}

void *bench_file_read(const char *path, size_t *count)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0)
        bench_die("cannot read %s: %s", path, strerror(errno));
    const long size = ftell(file);
    char *bytes = size < 0 ? NULL : malloc((size_t)size + 1);
    if (!bytes)
        bench_die("cannot hold %s in memory", path);
    rewind(file);
    if (fread(bytes, 1, (size_t)size, file) != (size_t)size)
        bench_die("cannot read %s: %s", path, strerror(errno));
    fclose(file);
    bytes[size] = '\0';
    *count = (size_t)size;
    return bytes;
}
