// The driver's functions by name and version.
#include <dlfcn.h>

#include <cstring>

#include "driver.h"

using namespace fajit_emu;

namespace {

// Functions with several versions that are still asked for: from which version of CUDA on each is.
// For the others the newest one is meant.
const struct {
    const char *name;
    int since;
    const char *symbol;
} versions[] = {
    {"cuCtxCreate", 12050, "cuCtxCreate_v4"},
    {"cuCtxCreate", 11040, "cuCtxCreate_v3"},
    {"cuCtxCreate", 3020, "cuCtxCreate_v2"},
    {"cuDeviceGetUuid", 11040, "cuDeviceGetUuid_v2"},
    {"cuDeviceGetUuid", 9020, "cuDeviceGetUuid"},
    {"cuEventElapsedTime", 12080, "cuEventElapsedTime_v2"},
    {"cuEventElapsedTime", 2000, "cuEventElapsedTime"},
    {"cuGetProcAddress", 12000, "cuGetProcAddress_v2"},
    {"cuGetProcAddress", 11030, "cuGetProcAddress"},
    {"cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags"},
    {"cuGraphInstantiate", 11000, "cuGraphInstantiate_v2"},
    {"cuStreamBeginCapture", 10010, "cuStreamBeginCapture_v2"},
    {"cuStreamGetCaptureInfo", 12030, "cuStreamGetCaptureInfo_v3"},
    {"cuStreamGetCaptureInfo", 11030, "cuStreamGetCaptureInfo_v2"},
    {"cuStreamGetCaptureInfo", 10010, "cuStreamGetCaptureInfo"},
    // Their newest versions, which give the kinds of edges, are not there.
    {"cuGraphNodeGetDependencies", 12030, nullptr},
    {"cuGraphNodeGetDependencies", 10000, "cuGraphNodeGetDependencies"},
};

void *own_symbol(const std::string &name)
{
    static void *self = [] {
        Dl_info info;
        const bool found = dladdr(reinterpret_cast<void *>(&cuInit), &info) != 0;
        return found ? dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD) : nullptr;
    }();
    return self ? dlsym(self, name.c_str()) : nullptr;
}

CUresult find(const char *name, int version, void **out, CUdriverProcAddressQueryResult *status)
{
    bool known = false;
    *out = nullptr;
    for (const auto &v : versions) {
        if (strcmp(v.name, name) != 0)
            continue;
        known = true;
        if (version >= v.since) {
            *out = v.symbol ? own_symbol(v.symbol) : nullptr;
            break;
        }
    }
    for (const char *suffix : {"_v3", "_v2", ""})
        if (!known && !*out)
            *out = own_symbol(std::string(name) + suffix);
    *status = *out    ? CU_GET_PROC_ADDRESS_SUCCESS
              : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                      : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

} // namespace

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **out, int version, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult *status)
{
    CUdriverProcAddressQueryResult ignored;
    if (!name || !out || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    if (flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
        return not_implemented(
            "functions whose default stream is each thread's; pass "
            "CU_STREAM_PER_THREAD");
    return find(name, version, out, status ? status : &ignored);
}

// Tables of functions that nothing documents. Who finds that there is this driver, as NVRTC does, asks
// without looking whether it can.
EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
    if (!table || !id)
        return CUDA_ERROR_INVALID_VALUE;
    *table = nullptr;
    return CUDA_ERROR_NOT_FOUND;
}

#undef cuGetProcAddress
EXPORT CUresult cuGetProcAddress(const char *name, void **out, int version, cuuint64_t flags)
{
    return cuGetProcAddress_v2(name, out, version, flags, nullptr);
}
