/* What bench_start runs in fresh processes. See bench_start.h. */
#include "bench_start.h"

#include "bench_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const start_instance start_instances[] = {
    {"f32_d64_baked", {.head_dim = 64, .batch = 4, .heads_q = 8, .heads_k = 8, .seqlen = 256}},
    {"bf16_d128_baked",
     {.dtype = FA_BF16, .head_dim = 128, .batch = 4, .heads_q = 32, .heads_k = 32, .seqlen = 4096}},
    {"f16_d128_tables",
     {.dtype = FA_F16,
      .style = FA_ROPE_INTERLEAVED,
      .angles = FA_ROPE_TABLES,
      .layout = FA_LAYOUT_BNHD,
      .head_dim = 128}},
    {"bf16_d256_vector",
     {.dtype = FA_BF16, .positions = FA_ROPE_VECTOR, .head_dim = 256, .rotary_dim = 64}},
    {"f32_dynamic", {.style = FA_ROPE_INTERLEAVED, .head_dim = FA_DYNAMIC}},
};
const size_t start_instance_count = sizeof start_instances / sizeof *start_instances;

static fa_spec canonical_spec(void)
{
    fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE);
    spec.rope = start_instances[0].spec;
    return spec;
}

/* Kernel i of the warm load: rope instances that differ in the baked number of tokens. */
static fa_spec load_spec(size_t i)
{
    fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE);
    spec.rope = (fa_rope_spec){.dtype = FA_BF16,
                               .head_dim = 128,
                               .batch = 1,
                               .heads_q = 8,
                               .heads_k = 8,
                               .seqlen = (int32_t)i + 1};
    return spec;
}

static void print_ms(const char *name, double begin_ns)
{
    printf("%s %.6f\n", name, (bench_now_ns() - begin_ns) / 1e6);
}

static void open_device(void)
{
    const char *why = NULL;
    if (!gpu_open(0, &why))
        bench_die("%s", why);
    gpu_synchronize(NULL, NULL);
}

/* directory NULL: no disk cache. */
static fa_context *open_cached(const char *directory)
{
    char cache[4096];
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.device = FA_DEVICE_CURRENT;
    options.no_disk_cache = !directory;
    if (directory) {
        snprintf(cache, sizeof cache, "%s/cache", directory);
        options.cache_dir = cache;
    }
    fa_context *ctx = NULL;
    bench_check(fa_context_create(&options, &ctx), "fa_context_create");
    return ctx;
}

static void require_compiles(fa_context *ctx, uint64_t count)
{
    fa_stats stats = {.size = sizeof stats};
    bench_check(fa_stats_get(ctx, &stats), "fa_stats_get");
    if (stats.compiles != count)
        bench_die("%llu kernels were compiled instead of %llu", (unsigned long long)stats.compiles,
                  (unsigned long long)count);
}

/* --- cold --- */

static int child_cold(void)
{
    const char *why = NULL;
    const bool device = gpu_open(0, &why);
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.device = FA_DEVICE_CURRENT;
    options.no_disk_cache = true;
    options.offline = !device;
    options.arch = device ? NULL : START_ARCH;
    fa_context *ctx = NULL;
    bench_check(fa_context_create(&options, &ctx), "fa_context_create");
    printf("device %d\n", device);

    fa_kernel *kernel = NULL;
    fa_spec spec = bench_scale_spec();
    double begin = bench_now_ns();
    bench_check(fa_compile(ctx, &spec, &kernel), "compile scale");
    print_ms("start_ms", begin);
    fa_kernel_release(kernel);
    for (size_t i = 0; i < start_instance_count; i++) {
        spec = (fa_spec)FA_SPEC_INIT(FA_OP_ROPE);
        spec.rope = start_instances[i].spec;
        begin = bench_now_ns();
        if (fa_compile(ctx, &spec, &kernel) != FA_OK) {
            fprintf(stderr, "bench: %s: %s\n", start_instances[i].name, fa_last_error());
            continue;
        }
        print_ms(start_instances[i].name, begin);
        fa_kernel_release(kernel);
    }
    fa_context_destroy(ctx);
    return 0;
}

/* --- fill --- */

static void save_cubin(fa_context *ctx, const fa_spec *spec, const char *directory,
                       const char *name)
{
    char path[4200];
    fa_kernel *kernel = NULL;
    fa_kernel_info_t info = {.size = sizeof info};
    bench_check(fa_compile(ctx, spec, &kernel), name);
    bench_check(fa_kernel_info(kernel, &info), "fa_kernel_info");
    snprintf(path, sizeof path, "%s/%s.cubin", directory, name);
    bench_file_write(path, info.cubin, info.cubin_bytes);
    snprintf(path, sizeof path, "%s/%s.entry", directory, name);
    bench_file_write(path, info.entry, strlen(info.entry));
    fa_kernel_release(kernel);
}

static int child_fill(const char *directory, size_t first, size_t last)
{
    const size_t count = last - first;
    open_device();
    fa_context *ctx = open_cached(directory);
    fa_spec *specs = calloc(count, sizeof *specs);
    if (!specs)
        bench_die("out of memory");
    for (size_t i = 0; i < count; i++)
        specs[i] = load_spec(first + i);
    bench_check(fa_warm(ctx, specs, count, NULL, NULL), "fa_warm");
    for (size_t i = 0; i < count; i++) {
        char name[40];
        snprintf(name, sizeof name, "load-%zu", first + i);
        save_cubin(ctx, &specs[i], directory, name);
    }
    if (first == 0) {
        const fa_spec scale = bench_scale_spec(), canonical = canonical_spec();
        save_cubin(ctx, &scale, directory, "scale");
        save_cubin(ctx, &canonical, directory, "canonical");
    }
    free(specs);
    fa_context_destroy(ctx);
    puts("filled 1");
    return 0;
}

/* --- the driver alone --- */

typedef struct image {
    void *cubin;
    char *entry;
} image;

static image read_image(const char *directory, const char *name)
{
    char path[4200];
    size_t bytes;
    image read;
    snprintf(path, sizeof path, "%s/%s.cubin", directory, name);
    read.cubin = bench_file_read(path, &bytes);
    snprintf(path, sizeof path, "%s/%s.entry", directory, name);
    read.entry = bench_file_read(path, &bytes);
    return read;
}

/* --- first result: the inputs exist before the clock starts; 4 KB on the host stop it --- */

static int child_template(const char *directory)
{
    static bench_scale scale;
    open_device();
    bench_scale_begin(&scale);
    const fa_spec spec = bench_scale_spec();
    const fa_args args = bench_scale_args(&scale);

    fa_kernel *kernel = NULL;
    const double begin = bench_now_ns();
    fa_context *ctx = open_cached(directory);
    print_ms("context_ms", begin);
    bench_check(fa_compile(ctx, &spec, &kernel), "compile scale");
    print_ms("compiled_ms", begin);
    bench_check(fa_launch(kernel, &args, NULL), "fa_launch");
    bench_scale_download(&scale);
    print_ms("total_ms", begin);

    bench_scale_check(&scale);
    require_compiles(ctx, directory ? 0 : 1);
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
    return 0;
}

static int child_rope(const char *directory)
{
    static float after[1024];
    open_device();
    const fa_spec spec = canonical_spec();
    fa_args args = FA_ARGS_INIT(FA_OP_ROPE);
    fa_tensor *tensors[] = {&args.rope.q, &args.rope.k, &args.rope.q_out, &args.rope.k_out};
    for (size_t i = 0; i < 4; i++) {
        const size_t elements = 4 * 8 * 256 * 64;
        tensors[i]->data = gpu_alloc(elements * sizeof(float));
        bench_fill_random(tensors[i]->data, FA_F32, elements, i + 1);
    }
    gpu_synchronize(NULL, NULL);

    fa_kernel *kernel = NULL;
    const double begin = bench_now_ns();
    fa_context *ctx = open_cached(directory);
    print_ms("context_ms", begin);
    bench_check(fa_compile(ctx, &spec, &kernel), "compile rope");
    print_ms("compiled_ms", begin);
    bench_check(fa_launch(kernel, &args, NULL), "fa_launch");
    gpu_download(after, args.rope.q_out.data, sizeof after);
    print_ms("total_ms", begin);

    /* Position 0 turns nothing: the first row is the input's. */
    float before[64];
    gpu_download(before, args.rope.q.data, sizeof before);
    if (memcmp(before, after, sizeof before) != 0)
        bench_die("rope: the row at position 0 is not the input's");
    require_compiles(ctx, directory ? 0 : 1);
    fa_kernel_release(kernel);
    fa_context_destroy(ctx);
    return 0;
}

static int child_driver(const char *directory)
{
    static bench_scale scale;
    open_device();
    const bench_driver *cu = bench_driver_open();
    bench_scale_begin(&scale);
    const image binary = read_image(directory, "scale");
    const double begin = bench_now_ns();
    CUfunction function = bench_driver_load(cu, binary.cubin, binary.entry);
    bench_driver_check(cu->launch(function, BENCH_SCALE_COUNT / BENCH_SCALE_BLOCK, 1, 1,
                                  BENCH_SCALE_BLOCK, 1, 1, 0, NULL, scale.params, NULL),
                       "cuLaunchKernel");
    bench_scale_download(&scale);
    print_ms("total_ms", begin);
    bench_scale_check(&scale);
    return 0;
}

/* --- warm load --- */

static int child_load(const char *directory, size_t count)
{
    open_device();
    fa_context *ctx = open_cached(directory);
    fa_spec spec = bench_scale_spec();
    fa_kernel *scale = NULL, **kernels = calloc(count, sizeof *kernels);
    if (!kernels)
        bench_die("out of memory");
    /* What happens once in a process is no part of loading many. */
    bench_check(fa_compile(ctx, &spec, &scale), "load scale");

    const double begin = bench_now_ns();
    for (size_t i = 0; i < count; i++) {
        spec = load_spec(i);
        bench_check(fa_compile(ctx, &spec, &kernels[i]), "load");
    }
    print_ms("load_ms", begin);

    require_compiles(ctx, 0);
    for (size_t i = 0; i < count; i++)
        fa_kernel_release(kernels[i]);
    fa_kernel_release(scale);
    free(kernels);
    fa_context_destroy(ctx);
    return 0;
}

static int child_modules(const char *directory, size_t count)
{
    open_device();
    const bench_driver *cu = bench_driver_open();
    const image scale = read_image(directory, "scale");
    image *images = calloc(count, sizeof *images);
    if (!images)
        bench_die("out of memory");
    for (size_t i = 0; i < count; i++) {
        char name[40];
        snprintf(name, sizeof name, "load-%zu", i);
        images[i] = read_image(directory, name);
    }
    bench_driver_load(cu, scale.cubin, scale.entry);
    const double begin = bench_now_ns();
    for (size_t i = 0; i < count; i++)
        bench_driver_load(cu, images[i].cubin, images[i].entry);
    print_ms("load_ms", begin);
    return 0;
}

int start_child(int argc, char **argv)
{
    if (argc != 4)
        bench_die("a child wants MODE DIRECTORY FIRST LAST");
    const char *mode = argv[0], *directory = argv[1];
    const size_t first = (size_t)strtoul(argv[2], NULL, 10);
    const size_t last = (size_t)strtoul(argv[3], NULL, 10);
    if (strcmp(mode, "cold") == 0)
        return child_cold();
    if (strcmp(mode, "fill") == 0)
        return child_fill(directory, first, last);
    if (strcmp(mode, "rope") == 0)
        return child_rope(directory);
    if (strcmp(mode, "rope-cold") == 0)
        return child_rope(NULL);
    if (strcmp(mode, "template") == 0)
        return child_template(directory);
    if (strcmp(mode, "template-cold") == 0)
        return child_template(NULL);
    if (strcmp(mode, "driver") == 0)
        return child_driver(directory);
    if (strcmp(mode, "load") == 0)
        return child_load(directory, last);
    if (strcmp(mode, "modules") == 0)
        return child_modules(directory, last);
    bench_die("a child does not know the mode \"%s\"", mode);
}
