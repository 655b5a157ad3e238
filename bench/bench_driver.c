/* The driver without the library. See bench_driver.h. */
#include "bench_driver.h"

#include <stddef.h>

/* X(member, exported name): written out, because cuda.h maps its functions to whichever version the
 * toolkit knows. */
#define FUNCTIONS(X)                                                                               \
    X(launch, "cuLaunchKernel")                                                                    \
    X(module_load, "cuModuleLoadData")                                                             \
    X(module_function, "cuModuleGetFunction")                                                      \
    X(function_load, "cuFuncLoad")                                                                 \
    X(capture_begin, "cuStreamBeginCapture_v2")                                                    \
    X(capture_end, "cuStreamEndCapture")                                                           \
    X(graph_nodes, "cuGraphGetNodes")                                                              \
    X(node_params, "cuGraphKernelNodeGetParams_v2")                                                \
    X(kernel_function, "cuKernelGetFunction")                                                      \
    X(graph_destroy, "cuGraphDestroy")

static void *symbol(const char *name)
{
    void *address = gpu_symbol(name);
    if (!address)
        bench_die("the driver has no %s", name);
    return address;
}

const bench_driver *bench_driver_open(void)
{
    static bench_driver cu;
#define FIND(member, name) *(void **)&cu.member = symbol(name);
    FUNCTIONS(FIND)
#undef FIND
    return &cu;
}

void bench_driver_check(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS)
        bench_die("%s failed with CUDA error %d", what, (int)result);
}

CUfunction bench_driver_load(const bench_driver *cu, const void *cubin, const char *entry)
{
    CUmodule module = NULL;
    CUfunction function = NULL;
    bench_driver_check(cu->module_load(&module, cubin), "cuModuleLoadData");
    bench_driver_check(cu->module_function(&function, module, entry), "cuModuleGetFunction");
    bench_driver_check(cu->function_load(function), "cuFuncLoad");
    return function;
}

/* --- the kernel --- */

static const char scale_source[] =
    "extern \"C\" __global__ void scale(float *out, const float *in, int n, float factor)\n"
    "{\n"
    "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    if (i < n)\n"
    "        out[i] = in[i] * factor;\n"
    "}\n";

fa_spec bench_scale_spec(void)
{
    fa_spec spec = FA_SPEC_INIT(FA_OP_TEMPLATE);
    spec.tmpl = (fa_template_spec){.name = "scale.cu", .source = scale_source, .entry = "scale"};
    return spec;
}

void bench_scale_begin(bench_scale *scale)
{
    const size_t bytes = sizeof scale->before;
    *scale = (bench_scale){.n = BENCH_SCALE_COUNT, .factor = 2};
    scale->in = gpu_alloc(bytes);
    scale->out = gpu_alloc(bytes);
    bench_fill_random(scale->in, FA_F32, BENCH_SCALE_COUNT, 1);
    gpu_download(scale->before, scale->in, bytes);
    gpu_fill(scale->out, 0xff, bytes);
    gpu_synchronize(NULL, NULL);

    const size_t size[4] = {sizeof scale->out, sizeof scale->in, sizeof scale->n,
                            sizeof scale->factor};
    scale->params[0] = &scale->out;
    scale->params[1] = &scale->in;
    scale->params[2] = &scale->n;
    scale->params[3] = &scale->factor;
    for (size_t i = 0; i < 4; i++)
        scale->checked_params[i] = (fa_param){scale->params[i], size[i]};
}

fa_args bench_scale_args(const bench_scale *scale)
{
    fa_args args = FA_ARGS_INIT(FA_OP_TEMPLATE);
    args.tmpl = (fa_template_args){.grid = {BENCH_SCALE_COUNT / BENCH_SCALE_BLOCK, 1, 1},
                                   .block = {BENCH_SCALE_BLOCK, 1, 1},
                                   .params = scale->checked_params,
                                   .param_count = 4};
    return args;
}

void bench_scale_download(bench_scale *scale)
{
    gpu_download(scale->after, scale->out, sizeof scale->after);
}

void bench_scale_check(const bench_scale *scale)
{
    for (int i = 0; i < scale->n; i++) {
        if (scale->after[i] != scale->before[i] * scale->factor)
            bench_die("scale: element %d is %g, not %g", i, (double)scale->after[i],
                      (double)(scale->before[i] * scale->factor));
    }
}

void bench_scale_end(bench_scale *scale)
{
    gpu_free(scale->in);
    gpu_free(scale->out);
}
