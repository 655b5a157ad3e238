// Modules and functions.
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "driver.h"
#include "elf_tls.h"
#include "image.h"
#include "sanitizer.h"

using namespace fajit_emu;

// Sanitizers do not survive that thread-local memory goes with the object it belongs to.
fajit_emu::loaded_object::~loaded_object()
{
    if (!under_address_sanitizer() && !under_thread_sanitizer()) {
        if (handle)
            dlclose(handle);
        if (file >= 0)
            close(file);
    }
    driver().memory_used -= bytes;
}

namespace {

CUresult check_image(const void *image, int cc, image_head *head)
{
    memcpy(head, image, sizeof head->magic);
    if (memcmp(head->magic, IMAGE_MAGIC, sizeof head->magic) != 0)
        return CUDA_ERROR_INVALID_IMAGE;
    memcpy(head, image, sizeof *head);
    if (head->abi != ABI)
        return CUDA_ERROR_INVALID_IMAGE;
    const unsigned char *object = static_cast<const unsigned char *>(image) + sizeof *head;
    if (digest(object, head->object_bytes) != head->object_digest)
        return CUDA_ERROR_INVALID_IMAGE;
    const int made = static_cast<int>(head->compute_capability);
    if (head->exact ? made != cc : made / 10 != cc / 10 || made > cc)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    return CUDA_SUCCESS;
}

// What its variables take when they are in memory.
size_t variable_bytes(const unsigned char *object)
{
    Elf64_Ehdr elf;
    size_t bytes = 0;
    memcpy(&elf, object, sizeof elf);
    for (size_t i = 0; i < elf.e_phnum; i++) {
        Elf64_Phdr ph;
        memcpy(&ph, object + elf.e_phoff + i * sizeof ph, sizeof ph);
        if (ph.p_type == PT_LOAD && (ph.p_flags & PF_W))
            bytes += ph.p_memsz;
    }
    return bytes;
}

// The dynamic loader takes files. This one is in memory alone, and stays open: so its name is like no
// other's, and sanitizers and debuggers can read it. Gives the descriptor; negative: *problem says why.
int open_object(const unsigned char *object, size_t bytes, void **handle, std::string *problem)
{
    const int fd = memfd_create("fajit-emu-kernel", MFD_CLOEXEC);
    const std::string path = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd);
    size_t done = 0;
    while (fd >= 0 && done < bytes) {
        const ssize_t wrote = write(fd, object + done, bytes - done);
        if (wrote < 0 && errno != EINTR)
            break;
        done += wrote > 0 ? static_cast<size_t>(wrote) : 0;
    }
    *handle = done == bytes ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (!*handle)
        *problem = done == bytes ? dlerror() : std::string("memfd: ") + strerror(errno);
    return fd;
}

// Where its shared variables are: the running thread's pointer is the one that can be asked for.
bool find_shared(const unsigned char *object, size_t bytes, std::vector<shared_array> *out)
{
    std::vector<tls_variable> variables;
    const tls_variable *own = nullptr;
    if (!tls_variables_read(object, bytes, &variables))
        return false;
    for (const tls_variable &v : variables)
        if (v.own)
            own = &v;
    for (const tls_variable &v : variables)
        if (own && !v.own)
            out->push_back({static_cast<ptrdiff_t>(v.offset - own->offset), v.bytes});
    return own != nullptr;
}

bool function_valid(const CUfunc_st *f)
{
    return f && f->magic == FUNCTION_MAGIC && f->module->magic == MODULE_MAGIC;
}

CUresult load(CUctx_st *context, const void *image, CUmodule *out)
{
    const device_limits &device = driver().devices[static_cast<size_t>(context->device)];
    image_head head;
    std::string problem;
    CUresult result = check_image(image, device.cc, &head);
    if (result)
        return result;
    const unsigned char *object = static_cast<const unsigned char *>(image) + sizeof head;
    const size_t bytes = variable_bytes(object);
    if (bytes > DEVICE_MEMORY - driver().memory_used)
        return CUDA_ERROR_OUT_OF_MEMORY;
    auto loaded = std::make_shared<loaded_object>();
    loaded->bytes = bytes;
    driver().memory_used += bytes;
    loaded->file = open_object(object, head.object_bytes, &loaded->handle, &problem);
    if (loaded->handle)
        loaded->code = static_cast<const module *>(dlsym(loaded->handle, "fajit_emu_module"));
    if (!loaded->code || loaded->code->abi != ABI ||
        !find_shared(object, head.object_bytes, &loaded->shared)) {
        remember_failure(CUDA_ERROR_INVALID_IMAGE, problem);
        return CUDA_ERROR_INVALID_IMAGE;
    }
    *loaded->code->runtime_slot = &block_runtime;
    CUmod_st *m = new CUmod_st{};
    m->magic = MODULE_MAGIC;
    m->context = context;
    m->shared_static = static_cast<int>(head.static_shared_bytes);
    for (unsigned i = 0; i < loaded->code->kernel_count; i++) {
        auto f = std::make_unique<CUfunc_st>();
        f->magic = FUNCTION_MAGIC;
        f->module = m;
        f->code = &loaded->code->kernels[i];
        f->shared_dynamic_max = std::max(0, SHARED_WITHOUT_OPTIN - m->shared_static);
        m->functions.push_back(std::move(f));
    }
    m->object = std::move(loaded);
    driver().modules.insert(m);
    *out = m;
    return CUDA_SUCCESS;
}

} // namespace

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    locked lock(driver().lock);
    CUresult result = CUDA_SUCCESS;
    CUctx_st *c = current_context(&result);
    if (!c || (result = check_capture()))
        return result;
    if (!module || !image)
        return CUDA_ERROR_INVALID_VALUE;
    return load(c, image, module);
}

EXPORT CUresult cuModuleUnload(CUmodule module)
{
    locked lock(driver().lock);
    CUresult result = CUDA_SUCCESS;
    const bool known = module && module->magic == MODULE_MAGIC;
    // After a kernel's failure the call fails as every other does, but nobody will call again.
    const bool broken = known && valid(module->context) && module->context->broken.error;
    if ((!current_context(&result) || (result = check_capture())) && !broken)
        return result;
    if (!known)
        return CUDA_ERROR_INVALID_HANDLE;
    module->magic = 0;
    for (auto &f : module->functions)
        f->magic = 0;
    driver().modules.erase(module);
    delete module; // launches that are still queued keep the object
    return result;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    locked lock(driver().lock);
    CUresult result = CUDA_SUCCESS;
    if (!current_context(&result))
        return result;
    if (!module || module->magic != MODULE_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    for (auto &f : module->functions)
        if (strcmp(f->code->name, name) == 0) {
            *function = f.get();
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction f)
{
    locked lock(driver().lock);
    if (!function_valid(f))
        return CUDA_ERROR_INVALID_HANDLE;
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = static_cast<int>(max_threads_per_block(f));
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        *value = f->module->shared_static;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
        *value = 0;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *value = 32; // as the compiler look-alike reports
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = f->shared_dynamic_max;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *value = driver().devices[static_cast<size_t>(f->module->context->device)].cc;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
        *value = f->nonportable_cluster;
        return CUDA_SUCCESS;
    default:
        return not_implemented("this function attribute");
    }
}

EXPORT CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute attribute, int value)
{
    locked lock(driver().lock);
    if (!function_valid(f))
        return CUDA_ERROR_INVALID_HANDLE;
    const device_limits &device = driver().devices[static_cast<size_t>(f->module->context->device)];
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        if (value < 0 || value > device.shared_optin - f->module->shared_static)
            return CUDA_ERROR_INVALID_VALUE;
        f->shared_dynamic_max = value;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
        f->nonportable_cluster = value != 0;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        return value >= -1 && value <= 100 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default:
        return not_implemented("setting this function attribute");
    }
}

EXPORT CUresult cuFuncLoad(CUfunction f)
{
    locked lock(driver().lock);
    return function_valid(f) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuFuncGetParamInfo(CUfunction f, size_t index, size_t *offset, size_t *size)
{
    locked lock(driver().lock);
    if (!function_valid(f))
        return CUDA_ERROR_INVALID_HANDLE;
    if (index >= f->code->parameter_count)
        return CUDA_ERROR_INVALID_VALUE;
    if (offset)
        *offset = f->code->parameters[index].offset;
    if (size)
        *size = f->code->parameters[index].size;
    return CUDA_SUCCESS;
}
