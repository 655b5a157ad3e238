// Modules and functions.
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
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
    if (head->abi != ABI || digest(head, offsetof(image_head, head_digest)) != head->head_digest)
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

// The dynamic loader takes files. This one is in memory alone, and stays open: so its name is like
// no other's, and sanitizers and debuggers can read it. Gives the descriptor. *handle is null when
// it cannot be opened, and *problem says why.
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

} // namespace

CUresult fajit_emu::module_load(CUctx_st *context, const void *image, CUmodule *out)
{
    const device_limits &device = limits_of(context);
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
    m->context = context;
    m->shared_static = static_cast<int>(head.static_shared_bytes);
    for (unsigned i = 0; i < loaded->code->kernel_count; i++) {
        auto f = std::make_unique<CUfunc_st>();
        f->module = m;
        f->code = &loaded->code->kernels[i];
        f->shared_dynamic_max = std::max(0, SHARED_WITHOUT_OPTIN - m->shared_static);
        m->functions.push_back(std::move(f));
    }
    m->object = std::move(loaded);
    driver().handles[m] = handle::MODULE;
    for (auto &f : m->functions)
        driver().handles[f.get()] = handle::FUNCTION;
    *out = m;
    return CUDA_SUCCESS;
}

void fajit_emu::module_unload(CUmodule m)
{
    for (auto &f : m->functions)
        driver().handles.erase(f.get());
    driver().handles.erase(m);
    delete m; // launches that are still queued keep the object
}

CUfunction fajit_emu::module_function(CUmodule m, const char *name)
{
    for (auto &f : m->functions)
        if (strcmp(f->code->name, name) == 0)
            return f.get();
    return nullptr;
}

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    api_call c;
    if (!c.context || (c.result = check_capture()))
        return c.result;
    if (!module || !image)
        return CUDA_ERROR_INVALID_VALUE;
    return module_load(c.context, image, module);
}

// The options are about compiling PTX, which there is none of.
EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count,
                                   CUjit_option *options, void **values)
{
    if (count && (!options || !values))
        return CUDA_ERROR_INVALID_VALUE;
    return cuModuleLoadData(module, image);
}

CUresult fajit_emu::read_image(const char *path, std::string *image)
{
    char buffer[65536];
    FILE *file = fopen(path, "rb");
    if (!file)
        return CUDA_ERROR_FILE_NOT_FOUND;
    for (size_t got; (got = fread(buffer, 1, sizeof buffer, file)) > 0;)
        image->append(buffer, got);
    const bool good = !ferror(file);
    fclose(file);
    image_head head;
    if (!good || image->size() < sizeof head)
        return CUDA_ERROR_INVALID_IMAGE;
    memcpy(&head, image->data(), sizeof head);
    return head.object_bytes <= image->size() - sizeof head ? CUDA_SUCCESS
                                                            : CUDA_ERROR_INVALID_IMAGE;
}

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    std::string image;
    if (!module || !path)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = read_image(path, &image);
    return result ? result : cuModuleLoadData(module, image.data());
}

EXPORT CUresult cuModuleLoadFatBinary(CUmodule *, const void *)
{
    return not_implemented("fat binaries");
}

EXPORT CUresult cuModuleUnload(CUmodule module)
{
    api_call c;
    const bool known = valid(module) && !module->library;
    // After a kernel's failure the call fails as every other does, but nobody will call again.
    const bool broken = known && module->context->broken.error;
    if ((!c.context || (c.result = check_capture())) && !broken)
        return c.result;
    if (!known)
        return CUDA_ERROR_INVALID_HANDLE;
    module_unload(module);
    return c.result;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    api_call c;
    if (!c.context)
        return c.result;
    if (!valid(module))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!function || !name)
        return CUDA_ERROR_INVALID_VALUE;
    CUfunction found = module_function(module, name);
    if (!found) {
        remember_failure(CUDA_ERROR_NOT_FOUND,
                         std::string("emulator has no kernel ") + name +
                             ": give its name to nvrtcAddNameExpression, or make it extern \"C\" "
                             "outside namespaces and #if");
        return CUDA_ERROR_NOT_FOUND;
    }
    *function = found;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunctionCount(unsigned *count, CUmodule module)
{
    locked lock(driver().lock);
    if (!valid(module))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = static_cast<unsigned>(module->functions.size());
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned count, CUmodule module)
{
    locked lock(driver().lock);
    if (!valid(module))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!functions || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count && i < module->functions.size(); i++)
        functions[i] = module->functions[i].get();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *, size_t *, CUmodule, const char *)
{
    return not_implemented("the addresses of variables of a module");
}

EXPORT CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
}
