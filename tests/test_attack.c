/* What a hostile or unlucky program asks for, through the public interface. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"

static fa_status compile_with(fa_context *ctx, const char *source, const char *option)
{
    scale_spec s;
    fa_kernel *kernel = NULL;
    scale_spec_init(&s, 1);
    if (source)
        s.spec.tmpl.source = source;
    s.spec.tmpl.options = &option;
    s.spec.tmpl.option_count = option ? 1 : 0;
    fa_status status = fa_compile(ctx, &s.spec, &kernel);
    fa_kernel_release(kernel);
    return status;
}

Test(attack, options_that_end_the_compiler_or_reach_outside_are_refused)
{
    static const char *const bad[] = {"-Xptxas=",
                                      "--ptxas-options=",
                                      "-dopt=",
                                      "-Xptxas=-c",
                                      "-Xptxas=-O2,-c",
                                      "-Xptxas=--help",
                                      "-Xptxas=-V",
                                      "-Xptxas=-arch=sm_80",
                                      "-Xptxas=-optf=x",
                                      "-Xptxas=-ox",
                                      "-Xptxas=/etc/passwd",
                                      "-Xptxas=-O2 -o x",
                                      "-Xptxas=,",
                                      "--ptxas-options=--output-file=x",
                                      "-o=x"};
    static const char *const good[] = {"--ptxas-options=--opt-level=2",
                                       "-Xptxas=--warn-on-spills,-O2",
                                       "-Xptxas=-v",
                                       "-Xptxas=-dlcm=cg",
                                       "-opt-info=inline",
                                       "-DX="};
    fixture f;
    fixture_begin(&f);
    fa_context *ctx = fixture_offline("sm_90a");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_expect_eq(compile_with(ctx, NULL, bad[i]), FA_ERR_OPTION, "'%s'", bad[i]);
    cr_expect_eq(f.nvrtc->calls("nvrtcCompileProgram"), 0);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        cr_expect_eq(compile_with(ctx, NULL, good[i]), FA_OK, "'%s': %s", good[i], fa_last_error());
    fa_context_destroy(ctx);
    fixture_end(&f);
}

/* A file that the compiler finds by itself is no part of the key: a change of it would go unseen. */
Test(attack, no_file_is_included_behind_the_key)
{
    static const char *const bad[] = {"#include \"/etc/x.h\"\n",
                                      "int a;\n  #\tinclude </etc/x.h>\n",
                                      "#include_next </etc/x.h>\n"};
    fixture f;
    fixture_begin(&f);
    fa_context *ctx = fixture_offline("sm_90a");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_expect_eq(compile_with(ctx, bad[i], NULL), FA_ERR_VALUE, "%s", bad[i]);
    cr_expect_eq(f.nvrtc->calls("nvrtcCompileProgram"), 0);
    fa_kernel_release(fixture_compile(ctx, 3));
    cr_expect(strstr(f.nvrtc->last_options(), "--no-source-include"), "%s",
              f.nvrtc->last_options());
    fa_context_destroy(ctx);
    fixture_end(&f);
}

Test(attack, manifest_write_leaves_devices_and_links_alone)
{
    fixture f;
    char fifo[320], link[320], file[320];
    struct stat st;
    fixture_begin(&f);
    fa_context *ctx = fixture_offline("sm_90a");
    snprintf(fifo, sizeof fifo, "%s/fifo", f.dir);
    snprintf(link, sizeof link, "%s/link", f.dir);
    snprintf(file, sizeof file, "%s/file", f.dir);
    cr_assert_eq(mkfifo(fifo, 0600), 0);
    EXPECT(fa_manifest_write(ctx, fifo), FA_ERR_IO);
    cr_expect(lstat(fifo, &st) == 0 && S_ISFIFO(st.st_mode));
    OK(fa_manifest_write(ctx, file));
    cr_assert_eq(truncate(file, 0), 0);
    cr_assert_eq(symlink(file, link), 0);
    OK(fa_manifest_write(ctx, link));
    cr_expect(lstat(link, &st) == 0 && S_ISLNK(st.st_mode));
    cr_expect(stat(file, &st) == 0 && st.st_size > 0);
    fa_context_destroy(ctx);
    fixture_end(&f);
}

static void leave(int number)
{
    (void)number;
    exit(3); /* not allowed here, and common */
}

Test(attack, exit_in_a_signal_handler_during_a_compile_ends_the_process)
{
    if (FIXTURE_SANITIZED) /* it is undefined in theory */
        cr_skip_test("sanitizers report exit() in a signal handler");
    fixture f;
    int status = 0;
    setenv("FAKE_LATENCY_MS", "3000", 1);
    fixture_begin(&f);
    pid_t child = fork();
    cr_assert(child >= 0);
    if (child == 0) {
        signal(SIGUSR1, leave);
        fa_kernel_release(fixture_compile(fixture_offline("sm_90a"), 1));
        _exit(4);
    }
    for (int i = 0; i < 1000 && fixture_compiles(&f) == 0; i++)
        usleep(10000);
    cr_assert_eq(fixture_compiles(&f), 1u);
    usleep(100000);
    kill(child, SIGUSR1);
    bool ended = false;
    for (int i = 0; i < 80 && !ended; i++) {
        ended = waitpid(child, &status, WNOHANG) == child;
        if (!ended)
            usleep(100000);
    }
    if (!ended) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
    }
    cr_expect(ended, "it hangs");
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 3, "status %d", status);
    fixture_end(&f);
}
