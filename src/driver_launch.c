#include <string.h>

#include "driver.h"
#include "driver_impl.h"
#include "status.h"

static bool is_default_stream(fa_stream stream)
{
    return !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

/* Another context is current: the launch may go on only if the stream says that it is the kernel's.
 */
static fa_status check_stream(fa__cuctx context, fa__cuctx current, fa_stream stream)
{
    if (is_default_stream(stream)) {
        if (!current)
            return FA_OK;
        return fa__fail(
            FA_ERR_WRONG_CONTEXT,
            "fa_launch: the kernel belongs to another CUDA context than the current one, "
            "and the stream is a default stream; make the kernel's context current or "
            "pass one of its streams");
    }
    if (!fa__cu.cuStreamGetCtx)
        return FA_OK; /* the driver checks at the launch */
    CUcontext owner = NULL;
    FA__CUDA_TRY(cuStreamGetCtx, stream, &owner);
    if (owner != context)
        return fa__fail(FA_ERR_WRONG_CONTEXT,
                        "fa_launch: the stream belongs to another CUDA context "
                        "(device) than the kernel");
    return FA_OK;
}

static CUresult launch_with_attributes(CUfunction function, const fa__launch *l,
                                       const fa__launch_flags *flags, CUstream stream)
{
    CUlaunchAttribute attribute[3];
    CUlaunchConfig config = {
        .gridDimX = l->grid[0],
        .gridDimY = l->grid[1],
        .gridDimZ = l->grid[2],
        .blockDimX = l->block[0],
        .blockDimY = l->block[1],
        .blockDimZ = l->block[2],
        .sharedMemBytes = l->smem_bytes,
        .hStream = stream,
        .attrs = attribute,
    };
    memset(attribute, 0, sizeof attribute);
    if (flags->cluster[0]) {
        CUlaunchAttribute *a = &attribute[config.numAttrs++];
        a->id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        a->value.clusterDim.x = flags->cluster[0];
        a->value.clusterDim.y = flags->cluster[1];
        a->value.clusterDim.z = flags->cluster[2];
    }
    if (flags->cooperative) {
        CUlaunchAttribute *a = &attribute[config.numAttrs++];
        a->id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        a->value.cooperative = 1;
    }
    if (flags->programmatic) {
        CUlaunchAttribute *a = &attribute[config.numAttrs++];
        a->id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        a->value.programmaticStreamSerializationAllowed = 1;
    }
    return fa__cu.cuLaunchKernelEx(&config, function, l->params, NULL);
}

static __attribute__((cold)) fa_status launch_failed(fa__cuctx context, fa_stream stream,
                                                     CUresult result)
{
    CUcontext owner = NULL;
    if (!is_default_stream(stream) && fa__cu.cuStreamGetCtx &&
        fa__cu.cuStreamGetCtx(stream, &owner) == CUDA_SUCCESS && owner != context)
        return fa__fail(FA_ERR_WRONG_CONTEXT,
                        "fa_launch: the stream belongs to another CUDA context "
                        "(device) than the kernel");
    return fa__cuda_failed("cuLaunchKernel", result);
}

fa_status fa__driver_launch(fa__cuctx context, fa__cufunction function, const fa__launch *l,
                            const fa__launch_flags *flags, fa_stream stream)
{
    CUcontext current = NULL;
    FA__CUDA_TRY(cuCtxGetCurrent, &current);
    bool enter = current != context;
    if (enter) {
        fa_status status = check_stream(context, current, stream);
        if (status == FA_OK)
            status = fa__driver_enter(context);
        if (status)
            return status;
    }
    CUresult result;
    if (!flags)
        result =
            fa__cu.cuLaunchKernel(function, l->grid[0], l->grid[1], l->grid[2], l->block[0],
                                  l->block[1], l->block[2], l->smem_bytes, stream, l->params, NULL);
    else if (fa__cu.cuLaunchKernelEx)
        result = launch_with_attributes(function, l, flags, stream);
    else
        result = CUDA_ERROR_NOT_SUPPORTED;
    fa_status status = result == CUDA_SUCCESS ? FA_OK : launch_failed(context, stream, result);
    if (enter)
        fa__driver_leave();
    return status;
}
