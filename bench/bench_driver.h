/* The driver without the library, and the small kernel that both are given. */
#ifndef FAJIT_BENCH_DRIVER_H
#define FAJIT_BENCH_DRIVER_H

#include <cuda.h>

#include "bench.h"

typedef struct bench_driver {
    CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                       unsigned, CUstream, void **, void **);
    CUresult (*module_load)(CUmodule *, const void *);
    CUresult (*module_function)(CUfunction *, CUmodule, const char *);
    CUresult (*function_load)(CUfunction);
    CUresult (*capture_begin)(CUstream, CUstreamCaptureMode);
    CUresult (*capture_end)(CUstream, CUgraph *);
    CUresult (*graph_nodes)(CUgraph, CUgraphNode *, size_t *);
    CUresult (*node_params)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS *);
    CUresult (*kernel_function)(CUfunction *, CUkernel);
    CUresult (*graph_destroy)(CUgraph);
} bench_driver;

/* After gpu_open. Ends the process when the driver lacks one of them. */
const bench_driver *bench_driver_open(void);
void bench_driver_check(CUresult result, const char *what);
/* cuModuleLoadData, cuModuleGetFunction, cuFuncLoad: as far as fa_compile goes, nothing left for
 * the first launch. */
CUfunction bench_driver_load(const bench_driver *cu, const void *cubin, const char *entry);

/* out[i] = in[i] * factor for i < n; parameters (float *out, const float *in, int n, float factor).
 * The peers compile the same text. */
fa_spec bench_scale_spec(void);

#define BENCH_SCALE_COUNT 1024 /* elements: 4 KB of result */
#define BENCH_SCALE_BLOCK 128

typedef struct bench_scale {
    void *out, *in;
    int n;
    float factor;
    void *params[4];            /* for cuLaunchKernel */
    fa_param checked_params[4]; /* for fa_launch */
    float before[BENCH_SCALE_COUNT], after[BENCH_SCALE_COUNT];
} bench_scale;

/* Device memory with random input and a poisoned output. The struct must not move afterwards. */
void bench_scale_begin(bench_scale *scale);
fa_args bench_scale_args(const bench_scale *scale);
/* Downloads the result to `after`; then, apart, compares it. */
void bench_scale_download(bench_scale *scale);
void bench_scale_check(const bench_scale *scale);
void bench_scale_end(bench_scale *scale);

#endif
