// Libraries: images that belong to no context, and are loaded into each one that first uses them.
#include <algorithm>
#include <cstring>

#include "driver.h"
#include "image.h"

struct CUkern_st {
    struct CUlib_st *library;
    CUfunction described;                                   // of the module that is in no context
    std::map<int, std::map<CUfunction_attribute, int>> set; // by device
};

struct CUlib_st {
    std::string image;
    CUmodule described; // in no context: what it has
    std::map<CUctx_st *, CUmodule> loaded;
    std::vector<std::unique_ptr<CUkern_st>> kernels;
};

namespace fajit_emu {

namespace {

bool valid(const CUlib_st *l)
{
    return is(l, handle::LIBRARY);
}

bool valid(const CUkern_st *k)
{
    return is(k, handle::KERNEL);
}

CUmodule module_of(CUlib_st *l, CUctx_st *context, CUresult *result)
{
    auto found = l->loaded.find(context);
    if (found != l->loaded.end())
        return found->second;
    CUmodule m = nullptr;
    if ((*result = module_load(context, l->image.data(), &m)))
        return nullptr;
    m->library = l;
    for (auto &k : l->kernels)
        for (auto &set : k->set[context->device])
            function_set_attribute(module_function(m, k->described->code->name), set.first,
                                   set.second);
    return l->loaded[context] = m;
}

CUfunction in_context(CUkern_st *k, CUctx_st *context, CUresult *result)
{
    CUmodule m = module_of(k->library, context, result);
    return m ? module_function(m, k->described->code->name) : nullptr;
}

} // namespace

CUfunction function_of(CUfunction f, CUctx_st *context)
{
    CUresult result = CUDA_SUCCESS;
    if (valid(f))
        return f;
    CUkern_st *k = reinterpret_cast<CUkern_st *>(f);
    return valid(k) ? in_context(k, context, &result) : nullptr;
}

} // namespace fajit_emu

using namespace fajit_emu;

// --- libraries -----------------------------------------------------------------------------------

EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *, void **,
                                  unsigned, CUlibraryOption *, void **, unsigned)
{
    locked lock(driver().lock);
    CUresult result = CUDA_SUCCESS;
    image_head head;
    if (!driver().initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!library || !code)
        return CUDA_ERROR_INVALID_VALUE;
    if ((result = check_capture()))
        return result;
    auto l = std::make_unique<CUlib_st>();
    if ((result = module_load(nullptr, code, &l->described)))
        return result;
    memcpy(&head, code, sizeof head);
    l->image.assign(static_cast<const char *>(code), sizeof head + head.object_bytes);
    l->described->library = l.get();
    for (auto &f : l->described->functions) {
        l->kernels.push_back(std::make_unique<CUkern_st>());
        l->kernels.back()->library = l.get();
        l->kernels.back()->described = f.get();
        driver().handles[l->kernels.back().get()] = handle::KERNEL;
    }
    *library = l.release();
    driver().handles[*library] = handle::LIBRARY;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit,
                                      void **jit_values, unsigned jit_count,
                                      CUlibraryOption *options, void **values, unsigned count)
{
    std::string image;
    if (!library || !path)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = read_image(path, &image);
    return result ? result
                  : cuLibraryLoadData(library, image.data(), jit, jit_values, jit_count, options,
                                      values, count);
}

EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
    locked lock(driver().lock);
    if (!valid(library))
        return CUDA_ERROR_INVALID_HANDLE;
    if (CUresult result = check_capture())
        return result;
    for (auto &k : library->kernels)
        driver().handles.erase(k.get());
    for (auto &m : library->loaded)
        module_unload(m.second);
    module_unload(library->described);
    driver().handles.erase(library);
    delete library;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    api_call c;
    if (!c.context)
        return c.result;
    if (!valid(library))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!module)
        return CUDA_ERROR_INVALID_VALUE;
    *module = module_of(library, c.context, &c.result);
    return c.result;
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    locked lock(driver().lock);
    if (!valid(library))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!kernel || !name)
        return CUDA_ERROR_INVALID_VALUE;
    for (auto &k : library->kernels)
        if (strcmp(k->described->code->name, name) == 0) {
            *kernel = k.get();
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuLibraryGetKernelCount(unsigned *count, CUlibrary library)
{
    locked lock(driver().lock);
    if (!valid(library))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = static_cast<unsigned>(library->kernels.size());
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned count, CUlibrary library)
{
    locked lock(driver().lock);
    if (!valid(library))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!kernels || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count && i < library->kernels.size(); i++)
        kernels[i] = library->kernels[i].get();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *, size_t *, CUlibrary, const char *)
{
    return not_implemented("the addresses of variables of a library");
}

// --- kernels -------------------------------------------------------------------------------------

EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    api_call c;
    if (!c.context)
        return c.result;
    if (!valid(kernel))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!function)
        return CUDA_ERROR_INVALID_VALUE;
    *function = in_context(kernel, c.context, &c.result);
    return c.result;
}

EXPORT CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
    locked lock(driver().lock);
    if (!valid(kernel))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!library)
        return CUDA_ERROR_INVALID_VALUE;
    *library = kernel->library;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetName(const char **name, CUkernel kernel)
{
    locked lock(driver().lock);
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!valid(kernel))
        return CUDA_ERROR_INVALID_HANDLE;
    *name = kernel->described->code->name;
    return CUDA_SUCCESS;
}

static CUresult check_kernel(CUkernel kernel, CUdevice device)
{
    if (!valid(kernel))
        return CUDA_ERROR_INVALID_HANDLE;
    return device >= 0 && static_cast<size_t>(device) < driver().devices.size()
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_DEVICE;
}

// The function as it is on a device.
static CUfunc_st on_device(const CUkern_st *k, CUdevice device)
{
    CUfunc_st f = *k->described;
    auto set = k->set.find(device);
    if (set != k->set.end())
        for (auto &s : set->second)
            function_set_attribute(&f, s.first, s.second);
    return f;
}

EXPORT CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel,
                                     CUdevice device)
{
    locked lock(driver().lock);
    if (CUresult result = check_kernel(kernel, device))
        return result;
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    const CUfunc_st f = on_device(kernel, device);
    return function_attribute(&f, attribute, value);
}

EXPORT CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                                     CUdevice device)
{
    locked lock(driver().lock);
    if (CUresult result = check_kernel(kernel, device))
        return result;
    CUfunc_st f = on_device(kernel, device);
    if (CUresult result = function_set_attribute(&f, attribute, value))
        return result;
    kernel->set[device][attribute] = value;
    for (auto &m : kernel->library->loaded)
        if (m.first->device == device)
            function_set_attribute(module_function(m.second, f.code->name), attribute, value);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice device)
{
    locked lock(driver().lock);
    if (CUresult result = check_kernel(kernel, device))
        return result;
    return config > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *size)
{
    locked lock(driver().lock);
    if (!valid(kernel))
        return CUDA_ERROR_INVALID_HANDLE;
    const fajit_emu::kernel &code = *kernel->described->code;
    if (index >= code.parameter_count)
        return CUDA_ERROR_INVALID_VALUE;
    if (offset)
        *offset = code.parameters[index].offset;
    if (size)
        *size = code.parameters[index].size;
    return CUDA_SUCCESS;
}
