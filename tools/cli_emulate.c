/* --emulate: the look-alikes of libcuda and libnvrtc that come with the tool. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

/* Beside the tool in a build folder; where libraries go once installed (tools/meson.build). */
static const char *const folders[] = {"/emulator", "/../" FAJIT_LIBDIR};

/* The folder that the tool lies in; false when the system does not say. */
static bool own_folder(char out[PATH_MAX])
{
    ssize_t len = readlink("/proc/self/exe", out, PATH_MAX - 1);
    if (len <= 0)
        return false;
    out[len] = '\0';
    char *slash = strrchr(out, '/');
    if (!slash)
        return false;
    *slash = '\0';
    return true;
}

static bool use(const char *variable, const char *folder, const char *below, const char *file)
{
    char path[2 * PATH_MAX];
    snprintf(path, sizeof path, "%s%s/%s", folder, below, file);
    return access(path, R_OK) == 0 && setenv(variable, path, 1) == 0;
}

int cli_emulate(const cli *c)
{
    char folder[PATH_MAX];
    if (strcmp(c->command->name, "bench") == 0) {
        cli_error("bench --emulate: the emulator computes on the CPU, its times mean nothing");
        return CLI_USAGE;
    }
    for (size_t i = 0; own_folder(folder) && i < sizeof folders / sizeof folders[0]; i++)
        if (use("FAJIT_CUDA_LIBRARY", folder, folders[i], "libfajit-emu-cuda.so") &&
            use("FAJIT_NVRTC_LIBRARY", folder, folders[i], "libfajit-emu-nvrtc.so")) {
            fprintf(stderr, "fajit: emulated on the CPU: results are real, times mean nothing\n");
            return CLI_OK;
        }
    cli_error(
        "--emulate: the emulator is not installed with this tool (build it with "
        "-Demulator=enabled)");
    return CLI_FAILED;
}
