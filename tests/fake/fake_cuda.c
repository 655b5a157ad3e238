/* A look-alike of libcuda: contexts, modules, functions and launches as book entries; it runs
 * nothing. It is strict where the real driver is unforgiving: a call in a forked child or after
 * exit handlers ends the process, and misuse that the real one may let pass (unloading in another
 * context, launching what was never loaded eagerly) is kept as a violation. Build variants:
 *   FAKE_OLD     a 12.0 driver without the optional functions
 *   FAKE_BROKEN  without cuModuleLoadData */
#include <cuda.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_core.h"

#define MAX_DEVICES 8
#define MAX_STACK 32
#define MAX_FUNCTIONS 3
#define MAX_NAME_BYTES 8192
#define MODULE_DEVICE_BYTES 65536u
#define CONTEXT_MAGIC 0x43545821u
#define MODULE_MAGIC 0x4d4f4421u
#define FUNCTION_MAGIC 0x46554e21u
#define STREAM_MAGIC 0x53545221u

struct CUctx_st {
    unsigned magic;
    int device, retains;
};

struct CUfunc_st {
    unsigned magic;
    struct CUmod_st *module;
    char name[MAX_NAME_BYTES];
    bool params_known, loaded;
    int param_count, param_size[FAKE_MAX_PARAMS];
    int smem_dynamic_max;
};

struct CUmod_st {
    unsigned magic;
    struct CUctx_st *context;
    int smem, local, regs, function_count;
    struct CUfunc_st function[MAX_FUNCTIONS];
};

struct CUstream_st {
    unsigned magic;
    struct CUctx_st *context;
    bool capturing, broken;
};

/* Exported names, not those of the macros of cuda.h. */
const char *const fake_names[] = {
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuFuncLoad",
    "cuFuncGetParamInfo",
    "cuStreamGetCtx",
    "cuThreadExchangeStreamCaptureMode",
    NULL,
};

static int device_count = 1;
static int device_cc[MAX_DEVICES] = {90};
static int smem_optin = 232448;
static struct CUctx_st primary[MAX_DEVICES];
static atomic_int initialized_by; /* a process id */
static atomic_bool gone;
static struct CUstream_st *capturing; /* the one stream under global capture */
static size_t launch_count, live_modules;
static fake_launch last;

static _Thread_local struct CUctx_st *stack[MAX_STACK];
static _Thread_local int stack_depth;
static _Thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* fork and exit end the process at once: what would hang or crash must not look like an error. */
static CUresult check_alive(const char *function)
{
    if (gone) {
        fprintf(stderr, "%s called after the driver was gone\n", function);
        _exit(FAKE_EXIT_GONE);
    }
    if (initialized_by && initialized_by != getpid()) {
        fprintf(stderr, "%s called in a forked child\n", function);
        _exit(FAKE_EXIT_FORKED);
    }
    return initialized_by ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult leave(const char *function, CUresult result)
{
    fake_leave(function);
    return result;
}

#define ENTER_UNINITIALIZED(NAME)                                                                  \
    const char *const function_ = NAME;                                                            \
    CUresult alive_ = check_alive(function_);                                                      \
    int code_ = fake_enter(function_);                                                             \
    if (code_)                                                                                     \
    return leave(function_, (CUresult)code_)

#define ENTER(NAME)                                                                                \
    ENTER_UNINITIALIZED(NAME);                                                                     \
    if (alive_)                                                                                    \
    return leave(function_, alive_)

#define RETURN(RESULT) return leave(function_, (RESULT))

/* --- initialization and devices --- */

static void mark_gone(void)
{
    gone = true;
}

static void read_devices(void)
{
    const char *list = getenv("FAKE_DEVICES");
    if (!list)
        return;
    device_count = 0;
    while (*list && device_count < MAX_DEVICES) {
        char *end = NULL;
        device_cc[device_count++] = (int)strtol(list, &end, 10);
        list = *end == ',' ? end + 1 : end + strlen(end);
    }
}

FAKE_EXPORT CUresult cuInit(unsigned flags)
{
    ENTER_UNINITIALIZED("cuInit");
    (void)alive_;
    pthread_mutex_lock(&fake_mutex);
    if (!initialized_by) {
        initialized_by = getpid();
        read_devices();
        atexit(mark_gone);
    }
    pthread_mutex_unlock(&fake_mutex);
    RETURN(flags ? CUDA_ERROR_INVALID_VALUE : device_count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE);
}

FAKE_EXPORT CUresult cuDriverGetVersion(int *version)
{
    ENTER_UNINITIALIZED("cuDriverGetVersion");
    (void)alive_;
#ifdef FAKE_OLD
    *version = 12000;
#else
    *version = fake_version() ? fake_version() : 13000;
#endif
    RETURN(CUDA_SUCCESS);
}

static const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

FAKE_EXPORT CUresult cuGetErrorName(CUresult error, const char **name)
{
    ENTER_UNINITIALIZED("cuGetErrorName");
    (void)alive_;
    *name = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].code == error)
            *name = errors[i].name;
    RETURN(*name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

FAKE_EXPORT CUresult cuGetErrorString(CUresult error, const char **text)
{
    ENTER_UNINITIALIZED("cuGetErrorString");
    (void)alive_;
    *text = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].code == error)
            *text = errors[i].text;
    RETURN(*text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

FAKE_EXPORT CUresult cuDeviceGetCount(int *count)
{
    ENTER("cuDeviceGetCount");
    *count = device_count;
    RETURN(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER("cuDeviceGet");
    if (ordinal < 0 || ordinal >= device_count)
        RETURN(CUDA_ERROR_INVALID_DEVICE);
    *device = ordinal;
    RETURN(CUDA_SUCCESS);
}

static bool device_valid(CUdevice device)
{
    return device >= 0 && device < device_count;
}

FAKE_EXPORT CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
    ENTER("cuDeviceGetName");
    if (!device_valid(device))
        RETURN(CUDA_ERROR_INVALID_DEVICE);
    snprintf(name, (size_t)size, "look-alike %d", device);
    RETURN(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    ENTER("cuDeviceTotalMem_v2");
    if (!device_valid(device))
        RETURN(CUDA_ERROR_INVALID_DEVICE);
    *bytes = (size_t)8 << 30;
    RETURN(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    ENTER("cuDeviceGetAttribute");
    if (!device_valid(device))
        RETURN(CUDA_ERROR_INVALID_DEVICE);
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = device_cc[device] / 10;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = device_cc[device] % 10;
        break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = 4;
        break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: /* kHz */
        *value = 1000000;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        *value = smem_optin;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
        *value = 49152;
        break;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
        *value = 1024;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
        *value = 1024;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
        *value = 64;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
        *value = 2147483647;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
        *value = 65535;
        break;
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
        *value = 1;
        break;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
        *value = device_cc[device] >= 90;
        break;
    default:
        RETURN(CUDA_ERROR_INVALID_VALUE);
    }
    RETURN(CUDA_SUCCESS);
}

/* --- contexts --- */

static bool context_valid(const struct CUctx_st *context)
{
    return context && context->magic == CONTEXT_MAGIC;
}

static struct CUctx_st *current(void)
{
    return stack_depth ? stack[stack_depth - 1] : NULL;
}

FAKE_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    ENTER("cuDevicePrimaryCtxRetain");
    if (!device_valid(device))
        RETURN(CUDA_ERROR_INVALID_DEVICE);
    pthread_mutex_lock(&fake_mutex);
    if (primary[device].retains++ == 0) {
        primary[device].magic = CONTEXT_MAGIC;
        primary[device].device = device;
    }
    pthread_mutex_unlock(&fake_mutex);
    fake_count("primary", 1);
    *context = &primary[device];
    RETURN(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    const char *const function_ = "cuDevicePrimaryCtxRelease_v2";
    CUresult alive = check_alive(function_);
    int code = fake_enter(function_);
    if (alive || !device_valid(device))
        RETURN(alive ? alive : CUDA_ERROR_INVALID_DEVICE);
    pthread_mutex_lock(&fake_mutex);
    bool held = primary[device].retains > 0;
    if (held && --primary[device].retains == 0)
        primary[device].magic = 0;
    pthread_mutex_unlock(&fake_mutex);
    if (!held) {
        fake_violate("primary context of device %d released more often than retained", device);
        RETURN(CUDA_ERROR_INVALID_CONTEXT);
    }
    fake_count("primary", -1);
    RETURN((CUresult)code);
}

FAKE_EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    ENTER("cuCtxGetCurrent");
    *context = current();
    RETURN(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    ENTER("cuCtxGetDevice");
    if (!context_valid(current()))
        RETURN(CUDA_ERROR_INVALID_CONTEXT);
    *device = current()->device;
    RETURN(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    ENTER("cuCtxPushCurrent_v2");
    if (!context_valid(context))
        RETURN(CUDA_ERROR_INVALID_CONTEXT);
    if (stack_depth == MAX_STACK) {
        fake_violate("the context stack of a thread overflows");
        RETURN(CUDA_ERROR_UNKNOWN);
    }
    stack[stack_depth++] = context;
    fake_count("pushed", 1);
    RETURN(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    const char *const function_ = "cuCtxPopCurrent_v2";
    CUresult alive = check_alive(function_);
    int code = fake_enter(function_);
    if (alive)
        RETURN(alive);
    if (stack_depth == 0) {
        fake_violate("cuCtxPopCurrent on an empty stack");
        RETURN(CUDA_ERROR_INVALID_CONTEXT);
    }
    struct CUctx_st *top = stack[--stack_depth];
    if (context)
        *context = top;
    fake_count("pushed", -1);
    RETURN((CUresult)code);
}

/* --- capture --- */

/* Calls that the driver cannot put into a graph break a capture unless the thread said that it
 * knows what it is doing. */
static CUresult check_capture(void)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&fake_mutex);
    if (capturing && capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
        capturing->broken = true;
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    pthread_mutex_unlock(&fake_mutex);
    return result;
}

/* --- modules and functions --- */

/* The value of a line "NAME VALUE" of a cubin, as many characters as there are up to its end. */
static const char *cubin_line(const char *cubin, const char *name, int *len)
{
    char head[32];
    snprintf(head, sizeof head, "\n%s ", name);
    const char *at = strstr(cubin, head);
    *len = at ? (int)strcspn(at + strlen(head), "\n") : 0;
    return at ? at + strlen(head) : "";
}

static int cubin_int(const char *cubin, const char *name)
{
    int len = 0;
    const char *value = cubin_line(cubin, name, &len);
    return atoi(value);
}

static void read_params(struct CUfunc_st *f, const char *at)
{
    f->params_known = *at != '?';
    while (f->params_known && *at && *at != '\n' && f->param_count < FAKE_MAX_PARAMS) {
        char *end = NULL;
        long size = strtol(at, &end, 10);
        if (end == at)
            break;
        f->param_size[f->param_count++] = (int)size;
        at = end;
    }
}

static void read_functions(struct CUmod_st *m, const char *cubin)
{
    for (const char *at = cubin; (at = strstr(at, "\nfunction ")) != NULL;) {
        struct CUfunc_st *f = &m->function[m->function_count];
        if (m->function_count++ == MAX_FUNCTIONS)
            abort();
        at += strlen("\nfunction ");
        f->magic = FUNCTION_MAGIC;
        f->module = m;
        snprintf(f->name, sizeof f->name, "%.*s", (int)strcspn(at, "\n"), at);
        const char *params = strstr(at, "\nparams ");
        if (params)
            read_params(f, params + strlen("\nparams "));
    }
}

static CUresult check_image(const char *cubin, int device)
{
    int cc = 0, len = 0;
    const char head[] = "\177ELF fake cubin\n";
    if (memcmp(cubin, head, sizeof head - 1) != 0 || !strstr(cubin, "\nend\n"))
        return CUDA_ERROR_INVALID_IMAGE;
    const char *arch = cubin_line(cubin, "arch", &len);
    if (sscanf(arch, "sm_%d", &cc) != 1)
        return CUDA_ERROR_INVALID_IMAGE;
    bool exact = len && (arch[len - 1] == 'a' || arch[len - 1] == 'f');
    if (exact ? cc != device_cc[device]
              : cc / 10 != device_cc[device] / 10 || cc > device_cc[device])
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    return CUDA_SUCCESS;
}

#ifdef FAKE_BROKEN
#define cuModuleLoadData cuModuleLoadData_absent
#endif
FAKE_EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    ENTER("cuModuleLoadData");
    struct CUctx_st *context = current();
    if (!context_valid(context))
        RETURN(CUDA_ERROR_INVALID_CONTEXT);
    CUresult result = check_capture();
    if (!result)
        result = check_image(image, context->device);
    if (result)
        RETURN(result);
    struct CUmod_st *m = calloc(1, sizeof *m);
    if (!m)
        abort();
    m->magic = MODULE_MAGIC;
    m->context = context;
    m->smem = cubin_int(image, "smem");
    m->local = cubin_int(image, "local");
    m->regs = cubin_int(image, "regs");
    read_functions(m, image);
    pthread_mutex_lock(&fake_mutex);
    live_modules++;
    pthread_mutex_unlock(&fake_mutex);
    fake_count("module", 1);
    *module = m;
    RETURN(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult cuModuleUnload(CUmodule module)
{
    const char *const function_ = "cuModuleUnload";
    CUresult alive = check_alive(function_);
    int code = fake_enter(function_);
    if (alive)
        RETURN(alive);
    if (!module || module->magic != MODULE_MAGIC) {
        fake_violate("cuModuleUnload of %p, which is no module", (void *)module);
        RETURN(CUDA_ERROR_INVALID_HANDLE);
    }
    if (module->context != current())
        fake_violate("cuModuleUnload with another context current than the module's");
    CUresult result = check_capture();
    if (result)
        RETURN(result);
    module->magic = 0;
    free(module);
    pthread_mutex_lock(&fake_mutex);
    live_modules--;
    pthread_mutex_unlock(&fake_mutex);
    fake_count("module", -1);
    RETURN((CUresult)code);
}

FAKE_EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    ENTER("cuModuleGetFunction");
    if (!module || module->magic != MODULE_MAGIC)
        RETURN(CUDA_ERROR_INVALID_HANDLE);
    for (int i = 0; i < module->function_count; i++)
        if (strcmp(module->function[i].name, name) == 0) {
            *function = &module->function[i];
            RETURN(CUDA_SUCCESS);
        }
    RETURN(CUDA_ERROR_NOT_FOUND);
}

static bool function_valid(const char *caller, const struct CUfunc_st *f)
{
    if (f && f->magic == FUNCTION_MAGIC && f->module->magic == MODULE_MAGIC)
        return true;
    fake_violate("%s: %p is no function", caller, (const void *)f);
    return false;
}

FAKE_EXPORT CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction f)
{
    ENTER("cuFuncGetAttribute");
    if (!function_valid(function_, f))
        RETURN(CUDA_ERROR_INVALID_HANDLE);
    switch ((int)attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = 1024;
        break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        *value = f->module->smem;
        break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
        *value = f->module->local;
        break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *value = f->module->regs;
        break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = f->smem_dynamic_max ? f->smem_dynamic_max : 49152 - f->module->smem;
        break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
        *value = 0;
        break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *value = device_cc[f->module->context->device];
        break;
    default:
        RETURN(CUDA_ERROR_INVALID_VALUE);
    }
    RETURN(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute attribute, int value)
{
    ENTER("cuFuncSetAttribute");
    if (!function_valid(function_, f))
        RETURN(CUDA_ERROR_INVALID_HANDLE);
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        if (value < 0 || value + f->module->smem > smem_optin)
            RETURN(CUDA_ERROR_INVALID_VALUE);
        pthread_mutex_lock(&fake_mutex);
        if (value < f->smem_dynamic_max)
            fake_violate("the shared memory opt-in of %s was lowered", f->name);
        f->smem_dynamic_max = value;
        pthread_mutex_unlock(&fake_mutex);
    }
    RETURN(CUDA_SUCCESS);
}

#ifndef FAKE_OLD
FAKE_EXPORT CUresult cuFuncLoad(CUfunction f)
{
    ENTER("cuFuncLoad");
    if (!function_valid(function_, f))
        RETURN(CUDA_ERROR_INVALID_HANDLE);
    f->loaded = true;
    RETURN(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult cuFuncGetParamInfo(CUfunction f, size_t index, size_t *offset, size_t *size)
{
    ENTER("cuFuncGetParamInfo");
    if (!function_valid(function_, f))
        RETURN(CUDA_ERROR_INVALID_HANDLE);
    if (!f->params_known)
        RETURN(CUDA_ERROR_NOT_SUPPORTED);
    if (index >= (size_t)f->param_count)
        RETURN(CUDA_ERROR_INVALID_VALUE);
    size_t at = 0;
    for (size_t i = 0; i <= index; i++) {
        size_t align = (size_t)f->param_size[i];
        at = (at + align - 1) / align * align;
        *offset = at;
        at += align;
    }
    *size = (size_t)f->param_size[index];
    RETURN(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    ENTER("cuThreadExchangeStreamCaptureMode");
    CUstreamCaptureMode old = capture_mode;
    capture_mode = *mode;
    *mode = old;
    RETURN(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    ENTER("cuStreamGetCtx");
    if (stream && stream->magic != STREAM_MAGIC)
        RETURN(CUDA_ERROR_INVALID_HANDLE);
    *context = stream ? stream->context : current();
    RETURN(*context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT);
}
#endif

/* --- launches --- */

static CUresult check_launch(const struct CUfunc_st *f, const fake_launch *l, CUstream stream)
{
    struct CUctx_st *context = current();
    if (!context_valid(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (f->module->context != context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream && (stream->magic != STREAM_MAGIC || stream->context != context))
        return CUDA_ERROR_INVALID_HANDLE;
    for (int i = 0; i < 3; i++)
        if (l->grid[i] == 0 || l->block[i] == 0 || l->grid[i] > (i ? 65535u : 2147483647u))
            return CUDA_ERROR_INVALID_VALUE;
    if ((uint64_t)l->block[0] * l->block[1] * l->block[2] > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    int dynamic = f->smem_dynamic_max ? f->smem_dynamic_max : 49152 - f->module->smem;
    if ((int)l->smem_bytes > dynamic)
        return CUDA_ERROR_INVALID_VALUE;
#ifndef FAKE_OLD
    if (!f->loaded)
        fake_violate("%s is loaded lazily, by its first launch", f->name);
#endif
    return CUDA_SUCCESS;
}

static CUresult launch(struct CUfunc_st *f, fake_launch *l, CUstream stream, void **params)
{
    CUresult result = check_launch(f, l, stream);
    if (result)
        return result;
    snprintf(l->function, sizeof l->function, "%.255s", f->name);
    l->stream = stream;
    l->context = current();
    l->param_count = (size_t)f->param_count;
    for (int i = 0; i < f->param_count; i++) {
        size_t size = (size_t)f->param_size[i];
        memcpy(l->param[i], params[i], size < sizeof l->param[i] ? size : sizeof l->param[i]);
    }
    pthread_mutex_lock(&fake_mutex);
    l->captured = capturing && capturing == stream;
    if (capturing && !stream) {
        capturing->broken = true; /* the legacy default stream would wait for the captured one */
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    } else {
        last = *l;
        launch_count++;
    }
    pthread_mutex_unlock(&fake_mutex);
    return result;
}

FAKE_EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz,
                                    unsigned bx, unsigned by, unsigned bz, unsigned smem,
                                    CUstream stream, void **params, void **extra)
{
    ENTER("cuLaunchKernel");
    (void)extra;
    if (!function_valid(function_, f))
        RETURN(CUDA_ERROR_INVALID_HANDLE);
    fake_launch l = {.grid = {gx, gy, gz}, .block = {bx, by, bz}, .smem_bytes = smem};
    RETURN(launch(f, &l, stream, params));
}

#ifndef FAKE_OLD
FAKE_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **params,
                                      void **extra)
{
    ENTER("cuLaunchKernelEx");
    (void)extra;
    if (!function_valid(function_, f))
        RETURN(CUDA_ERROR_INVALID_HANDLE);
    fake_launch l = {.grid = {c->gridDimX, c->gridDimY, c->gridDimZ},
                     .block = {c->blockDimX, c->blockDimY, c->blockDimZ},
                     .smem_bytes = c->sharedMemBytes};
    for (unsigned i = 0; i < c->numAttrs; i++) {
        const CUlaunchAttribute *a = &c->attrs[i];
        switch ((int)a->id) {
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
            l.cluster[0] = a->value.clusterDim.x;
            l.cluster[1] = a->value.clusterDim.y;
            l.cluster[2] = a->value.clusterDim.z;
            break;
        case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
            l.cooperative = a->value.cooperative != 0;
            break;
        case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
            l.programmatic = a->value.programmaticStreamSerializationAllowed != 0;
            break;
        default:
            fake_violate("cuLaunchKernelEx with attribute %d", (int)a->id);
            RETURN(CUDA_ERROR_INVALID_VALUE);
        }
    }
    RETURN(launch(f, &l, c->hStream, params));
}
#endif

/* --- control --- */

static void control_set_devices(int count, const int *compute_capability)
{
    device_count = count;
    for (int i = 0; i < count; i++)
        device_cc[i] = compute_capability[i];
}

static void control_set_smem_optin(int bytes)
{
    smem_optin = bytes;
}

static void *control_context_create(int device)
{
    struct CUctx_st *context = calloc(1, sizeof *context);
    if (!context)
        abort();
    context->magic = CONTEXT_MAGIC;
    context->device = device;
    return context;
}

static void control_context_destroy(void *context)
{
    ((struct CUctx_st *)context)->magic = 0;
    free(context);
}

static void *control_context_current(void)
{
    return current();
}

static void control_context_set_current(void *context)
{
    if (stack_depth)
        stack_depth--;
    if (context)
        stack[stack_depth++] = context;
}

static void *control_stream_create(void *context)
{
    struct CUstream_st *stream = calloc(1, sizeof *stream);
    if (!stream)
        abort();
    stream->magic = STREAM_MAGIC;
    stream->context = context ? context : &primary[0];
    return stream;
}

static void control_stream_destroy(void *stream)
{
    ((struct CUstream_st *)stream)->magic = 0;
    free(stream);
}

static void control_capture_begin(void *stream)
{
    pthread_mutex_lock(&fake_mutex);
    capturing = stream;
    capturing->capturing = true;
    capturing->broken = false;
    pthread_mutex_unlock(&fake_mutex);
}

static bool control_capture_end(void *stream)
{
    pthread_mutex_lock(&fake_mutex);
    bool valid = capturing == stream && !capturing->broken;
    capturing = NULL;
    pthread_mutex_unlock(&fake_mutex);
    return valid;
}

static size_t control_launches(void)
{
    pthread_mutex_lock(&fake_mutex);
    size_t count = launch_count;
    pthread_mutex_unlock(&fake_mutex);
    return count;
}

static bool control_launch_last(fake_launch *out)
{
    pthread_mutex_lock(&fake_mutex);
    bool any = launch_count > 0;
    *out = last;
    pthread_mutex_unlock(&fake_mutex);
    return any;
}

static uint64_t control_module_bytes(void)
{
    pthread_mutex_lock(&fake_mutex);
    uint64_t bytes = live_modules * MODULE_DEVICE_BYTES;
    pthread_mutex_unlock(&fake_mutex);
    return bytes;
}

FAKE_EXPORT const fake_control *fake_control_get(void)
{
    static fake_control control;
    fake_core_control(&control);
    control.set_devices = control_set_devices;
    control.set_smem_optin = control_set_smem_optin;
    control.context_create = control_context_create;
    control.context_destroy = control_context_destroy;
    control.context_current = control_context_current;
    control.context_set_current = control_context_set_current;
    control.stream_create = control_stream_create;
    control.stream_destroy = control_stream_destroy;
    control.capture_begin = control_capture_begin;
    control.capture_end = control_capture_end;
    control.launches = control_launches;
    control.launch_last = control_launch_last;
    control.module_bytes = control_module_bytes;
    return &control;
}
