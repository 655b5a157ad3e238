/* What a program's start costs: cold compiles, the first result of a fresh process, loading many
 * kernels from a warm disk cache, and the library's size. Everything that is about starting runs in
 * processes of its own (start_child.c); this one never opens CUDA.
 *
 *     bench_start [--quick]
 */
#include "bench_start.h"

#include <dlfcn.h>
#include <link.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_VALUES 32
#define MAX_RUNS 16

static bench_process start(const char *mode, const char *directory, size_t first, size_t last)
{
    char from[24], to[24];
    snprintf(from, sizeof from, "%zu", first);
    snprintf(to, sizeof to, "%zu", last);
    const char *argv[] = {"--child", mode, directory, from, to, NULL};
    return bench_child_start(argv);
}

/* Runs a mode `runs` times and keeps each value's median in `values`. 0 when one of them failed. */
static size_t repeat(const char *mode, const char *directory, size_t count, size_t runs,
                     bench_value *values)
{
    static bench_value all[MAX_RUNS][MAX_VALUES];
    size_t n = 0;
    for (size_t r = 0; r < runs; r++) {
        n = bench_child_finish(start(mode, directory, 0, count), all[r], MAX_VALUES);
        if (n == 0)
            return 0;
    }
    for (size_t i = 0; i < n; i++) {
        double series[MAX_RUNS];
        for (size_t r = 0; r < runs; r++)
            series[r] = bench_child_value(all[r], n, all[0][i].name);
        values[i] = all[0][i];
        values[i].value = bench_median(series, runs);
    }
    return n;
}

/* --- size --- */

typedef struct library {
    uintptr_t address; /* of a function in it */
    size_t loaded_bytes;
    char needed[512];
} library;

static void collect_needed(library *lib, const struct dl_phdr_info *info, const ElfW(Dyn) * dyn)
{
    const char *strings = NULL;
    for (const ElfW(Dyn) *d = dyn; d->d_tag != DT_NULL; d++) {
        if (d->d_tag == DT_STRTAB) {
            /* Already relocated on most machines. */
            const uintptr_t at = d->d_un.d_ptr;
            strings = (const char *)(at < info->dlpi_addr ? at + info->dlpi_addr : at);
        }
    }
    for (const ElfW(Dyn) *d = dyn; strings && d->d_tag != DT_NULL; d++) {
        if (d->d_tag != DT_NEEDED)
            continue;
        const size_t used = strlen(lib->needed);
        snprintf(lib->needed + used, sizeof lib->needed - used, "%s%s", used ? " " : "",
                 strings + d->d_un.d_val);
    }
}

static int look_at_object(struct dl_phdr_info *info, size_t size, void *user)
{
    (void)size;
    library *lib = user;
    const ElfW(Dyn) *dyn = NULL;
    size_t bytes = 0;
    bool found = false;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        const uintptr_t at = info->dlpi_addr + p->p_vaddr;
        if (p->p_type == PT_DYNAMIC)
            dyn = (const ElfW(Dyn) *)at;
        if (p->p_type != PT_LOAD)
            continue;
        bytes += p->p_filesz;
        found |= lib->address >= at && lib->address < at + p->p_memsz;
    }
    if (!found)
        return 0;
    lib->loaded_bytes = bytes;
    if (dyn)
        collect_needed(lib, info, dyn);
    return 1;
}

static void report_size(void)
{
    const char *(*version)(void) = fa_version;
    library lib = {.address = 0};
    memcpy(&lib.address, &version, sizeof version);
    Dl_info where;
    struct stat file;
    void *address = NULL;
    memcpy(&address, &version, sizeof version);
    if (!dladdr(address, &where) || stat(where.dli_fname, &file) != 0) {
        bench_emit_missing("library_size", "fajit", "the library's file was not found");
        return;
    }
    dl_iterate_phdr(look_at_object, &lib);
    char note[700];
    snprintf(note, sizeof note, "bytes of %s that are loaded, as in the stripped file; needs %s",
             strrchr(where.dli_fname, '/') ? strrchr(where.dli_fname, '/') + 1 : where.dli_fname,
             lib.needed);
    bench_emit("library_size", "fajit", "size", (double)lib.loaded_bytes / 1e6, "MB", note);
    bench_emit("library_size", "fajit", "file_size", (double)file.st_size / 1e6, "MB",
               "the file as built, with its symbols and debug information if it has them");
}

/* --- the rows --- */

/* true when there is a device. */
static bool report_cold(const char *directory, bool quick)
{
    bench_value values[MAX_VALUES];
    const size_t runs = quick ? 1 : 3;
    const size_t n = repeat("cold", directory, 0, runs, values);
    /* When this step failed, the others find out by themselves. */
    const bool device = n == 0 || bench_child_value(values, n, "device") > 0;
    char note[160];
    snprintf(note, sizeof note, "fa_compile without a disk cache, median of %zu processes, %s",
             runs, device ? "loaded onto the device" : "offline for " START_ARCH);
    bench_emit("nvrtc_start", "fajit", "time", bench_child_value(values, n, "start_ms"), "ms",
               "the first compile of a process, a trivial kernel: opening and starting NVRTC");
    double largest = 0;
    for (size_t i = 0; i < start_instance_count; i++) {
        char bench[96];
        const double ms = bench_child_value(values, n, start_instances[i].name);
        snprintf(bench, sizeof bench, "compile_rope_%s", start_instances[i].name);
        bench_emit(bench, "fajit", "time", ms, "ms", note);
        largest = fmax(largest, ms);
    }
    bench_emit("compile_largest", "fajit", "time", largest, "ms", "the slowest of the instances");
    return device;
}

static void report_first(const char *directory, bool quick)
{
    static const struct {
        const char *mode, *bench, *impl, *note;
    } rows[] = {
        {"driver", "first_template", "driver",
         "cubin in memory: cuModuleLoadData, cuModuleGetFunction, cuFuncLoad, launch, 4 KB to the "
         "host"},
        {"template", "first_template", "fajit",
         "context, compile answered from disk, launch, 4 KB to the host"},
        {"rope", "first_rope", "fajit",
         "canonical rope: context, compile answered from disk, launch, 4 KB to the host"},
        {"template-cold", "cold_template", "fajit",
         "without a cache: context, NVRTC start, compile, launch, 4 KB to the host"},
        {"rope-cold", "cold_rope", "fajit",
         "canonical rope without a cache: context, NVRTC start, compile, launch, 4 KB to the host"},
    };
    bench_value values[MAX_VALUES];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const size_t n = repeat(rows[i].mode, directory, 0, quick ? 3 : 5, values);
        bench_emit(rows[i].bench, rows[i].impl, "time", bench_child_value(values, n, "total_ms"),
                   "ms", rows[i].note);
        if (strcmp(rows[i].impl, "fajit") != 0)
            continue;
        const double context = bench_child_value(values, n, "context_ms");
        bench_emit(rows[i].bench, "fajit", "context", context, "ms", "of this: fa_context_create");
        bench_emit(rows[i].bench, "fajit", "load",
                   bench_child_value(values, n, "compiled_ms") - context, "ms",
                   "of this: fa_compile");
    }
}

/* The two kinds of process alternate, so that a drift of the machine meets both. */
static void report_load(const char *directory, size_t count, bool quick)
{
    double library_ms[MAX_RUNS], driver_ms[MAX_RUNS], over_ms[MAX_RUNS];
    bench_value values[MAX_VALUES];
    const size_t runs = quick ? 3 : 5;
    for (size_t r = 0; r < runs; r++) {
        size_t n = repeat("load", directory, count, 1, values);
        library_ms[r] = bench_child_value(values, n, "load_ms");
        n = repeat("modules", directory, count, 1, values);
        driver_ms[r] = bench_child_value(values, n, "load_ms");
        over_ms[r] = library_ms[r] - driver_ms[r];
        if (isnan(over_ms[r])) {
            bench_emit_missing("load_256", "fajit", "a process failed; the log says why");
            return;
        }
    }
    char note[160];
    snprintf(note, sizeof note, "%zu kernels, one thread, median of %zu processes", count, runs);
    bench_emit("load_256", "fajit", "time", bench_median(library_ms, runs), "ms", note);
    bench_emit(
        "load_256", "driver", "time", bench_median(driver_ms, runs), "ms",
        "cuModuleLoadData, cuModuleGetFunction and cuFuncLoad of the same cubins, in memory");
    bench_emit("load_256", "fajit", "over_driver", bench_median(over_ms, runs), "ms", note);
}

/* Compiles the kernels for loading in several processes at once, because one NVRTC compiles one
 * program at a time. false when that failed. */
static bool fill(const char *directory, size_t count)
{
    bench_process processes[8];
    const size_t n = sizeof processes / sizeof *processes;
    bench_value none[MAX_VALUES];
    const double begin = bench_now_ns();
    for (size_t i = 0; i < n; i++)
        processes[i] = start("fill", directory, count * i / n, count * (i + 1) / n);
    size_t done = 0;
    for (size_t i = 0; i < n; i++)
        done += bench_child_finish(processes[i], none, MAX_VALUES);
    if (done != n) {
        bench_emit_missing("fill_256", "fajit", "a process failed; the log says why");
        return false;
    }
    bench_emit("fill_256", "fajit", "time", (bench_now_ns() - begin) / 1e6, "ms",
               "compiling the kernels for load_256 into an empty cache, eight processes at once");
    return true;
}

static int run_all(bool quick)
{
    unsetenv("FAJIT_CACHE_PATH");
    report_size();
    char *directory = bench_directory_make();
    const bool device = report_cold(directory, quick);
    if (device) {
        const size_t count = quick ? 16 : 256;
        if (fill(directory, count)) {
            report_first(directory, quick);
            report_load(directory, count, quick);
        }
    } else {
        bench_emit_missing("first_template", "fajit", "no CUDA device");
        bench_emit_missing("first_rope", "fajit", "no CUDA device");
        bench_emit_missing("load_256", "fajit", "no CUDA device");
    }
    bench_directory_remove(directory);
    return device ? 0 : 77;
}

int main(int argc, char **argv)
{
    if (argc >= 2 && strcmp(argv[1], "--child") == 0)
        return start_child(argc - 2, argv + 2);
    const bool quick = argc == 2 && strcmp(argv[1], "--quick") == 0;
    if (argc != 1 && !quick)
        bench_die("usage: bench_start [--quick]");
    return run_all(quick);
}
