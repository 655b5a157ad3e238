#include "cli_disasm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "buf.h"
#include "cli.h"

static bool executable_in(const char *dir, size_t len, const char *below, const char *name,
                          fa__buf *path)
{
    fa__buf_reset(path);
    fa__buf_bytes(path, dir, len);
    fa__buf_format(path, "%s/%s", below, name);
    return len > 0 && !path->failed && access(path->data, X_OK) == 0;
}

/* PATH, then the toolkit's usual places. */
static bool find_program(const char *name, fa__buf *path)
{
    static const char *const roots[] = {"CUDA_HOME", "CUDA_PATH"};
    const char *list = getenv("PATH");

    for (const char *at = list, *end = NULL; at; at = end ? end + 1 : NULL) {
        end = strchr(at, ':');
        if (executable_in(at, end ? (size_t)(end - at) : strlen(at), "", name, path))
            return true;
    }
    for (size_t i = 0; i < 2; i++) {
        const char *root = getenv(roots[i]);
        if (root && executable_in(root, strlen(root), "/bin", name, path))
            return true;
    }
    return executable_in("/usr/local/cuda", 15, "/bin", name, path);
}

static bool write_all(int fd, const char *bytes, size_t left)
{
    while (left > 0) {
        ssize_t wrote = write(fd, bytes, left);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0)
            return false;
        bytes += wrote;
        left -= (size_t)wrote;
    }
    return true;
}

static void read_all(int fd, fa__buf *out)
{
    char block[65536];

    for (;;) {
        ssize_t got = read(fd, block, sizeof block);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return;
        fa__buf_bytes(out, block, (size_t)got);
    }
}

/* Runs a program without a shell and reads what it prints; false after printing why. */
static bool run(char *const argv[], fa__buf *out)
{
    int ends[2], state = 0;

    if (pipe(ends)) {
        cli_error("cannot make a pipe: %s", strerror(errno));
        return false;
    }
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execv(argv[0], argv);
        _exit(127);
    }
    close(ends[1]);
    if (child > 0)
        read_all(ends[0], out);
    close(ends[0]);
    if (child < 0) {
        cli_error("cannot start %s: %s", argv[0], strerror(errno));
        return false;
    }
    while (waitpid(child, &state, 0) < 0 && errno == EINTR)
        ;
    if (WIFEXITED(state) && WEXITSTATUS(state) == 0 && out->data && !out->failed)
        return true;
    cli_error("%s failed (%s %d)", argv[0], WIFEXITED(state) ? "exit code" : "signal",
              WIFEXITED(state) ? WEXITSTATUS(state) : WTERMSIG(state));
    return false;
}

char *cli_disassemble(const void *cubin, size_t bytes)
{
    const char *dir = getenv("TMPDIR");
    fa__buf program = {0}, out = {0}, name = {0};
    char nvdisasm_flag[] = "-c", cuobjdump_flag[] = "-sass", *flag = nvdisasm_flag;
    bool ok = false;

    if (!find_program("nvdisasm", &program)) {
        flag = cuobjdump_flag;
        if (!find_program("cuobjdump", &program)) {
            cli_error(
                "neither nvdisasm nor cuobjdump is in PATH, $CUDA_HOME/bin, $CUDA_PATH/bin "
                "or /usr/local/cuda/bin; they come with the CUDA toolkit");
            goto done;
        }
    }
    fa__buf_format(&name, "%s/fajit-XXXXXX.cubin", dir && dir[0] ? dir : "/tmp");
    if (name.failed)
        goto done;
    int fd = mkstemps(name.data, 6);
    if (fd < 0) {
        cli_error("cannot make a temporary file %s: %s", name.data, strerror(errno));
        goto done;
    }
    ok = write_all(fd, cubin, bytes);
    if (!ok)
        cli_error("cannot write %s: %s", name.data, strerror(errno));
    ok = close(fd) == 0 && ok;
    ok = ok && run((char *[]){program.data, flag, name.data, NULL}, &out);
    unlink(name.data);
done:
    fa__buf_free(&program);
    fa__buf_free(&name);
    if (!ok)
        fa__buf_free(&out);
    return out.data;
}
