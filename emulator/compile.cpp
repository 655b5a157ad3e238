#include "compile.h"

#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "bounds.h"
#include "device/abi.h"
#include "elf_tls.h"
#include "host_compiler.h"
#include "image.h"
#include "sanitizer.h"

extern const char text_abi[], text_prelude[], text_bits[], text_rounded[], text_approx[],
    text_math[], text_half[], text_collective[], text_atomic[], text_copy[], text_small_float[],
    text_matrix[], text_epilogue[], text_sources[];

namespace fajit_emu {

namespace {

// --- files ---------------------------------------------------------------------------------------

int remove_one(const char *path, const struct stat *, int, struct FTW *)
{
    return remove(path);
}

struct scratch_folder {
    std::string path;
    int error = 0;

    scratch_folder()
    {
        const char *base = getenv("TMPDIR");
        std::string name = std::string(base && *base ? base : "/tmp") + "/fajit-emu.XXXXXX";
        if (mkdtemp(&name[0]))
            path = name;
        else
            error = errno;
    }
    ~scratch_folder()
    {
        if (!path.empty())
            nftw(path.c_str(), remove_one, 8, FTW_DEPTH | FTW_PHYS);
    }
    scratch_folder(const scratch_folder &) = delete;
    scratch_folder &operator=(const scratch_folder &) = delete;
};

bool write_file(const std::string &path, const std::string &text, std::string *log)
{
    FILE *file = fopen(path.c_str(), "wb");
    bool ok = file && fwrite(text.data(), 1, text.size(), file) == text.size();
    if (file && fclose(file) != 0)
        ok = false;
    if (!ok)
        *log += "emulator: cannot write " + path + ": " + strerror(errno) + "\n";
    return ok;
}

bool read_file(const std::string &path, std::string *text)
{
    char buffer[65536];
    FILE *file = fopen(path.c_str(), "rb");
    text->clear();
    if (!file)
        return false;
    for (size_t got; (got = fread(buffer, 1, sizeof buffer, file)) > 0;)
        text->append(buffer, got);
    const bool ok = !ferror(file);
    fclose(file);
    return ok;
}

// A header's name may have folders, but must stay inside the scratch folder.
bool write_header(const std::string &folder, const header &h, std::string *log)
{
    const std::string between = "/" + h.name + "/";
    if (h.name.empty() || h.name[0] == '/' || between.find("/../") != std::string::npos ||
        h.name.find('\0') != std::string::npos) {
        *log += "emulator does not implement a header of this name: " + h.name + "\n";
        return false;
    }
    for (size_t at = h.name.find('/'); at != std::string::npos; at = h.name.find('/', at + 1))
        if (mkdir((folder + "/" + h.name.substr(0, at)).c_str(), 0700) != 0 && errno != EEXIST) {
            *log += "emulator: cannot make a folder for " + h.name + ": " + strerror(errno) + "\n";
            return false;
        }
    return write_file(folder + "/" + h.name, h.text, log);
}

// --- what is compiled ----------------------------------------------------------------------------

std::string quoted(const std::string &text)
{
    std::string out = "\"";
    for (char c : text) {
        if (c == '"' || c == '\\')
            out += '\\';
        out += c;
    }
    return out + "\"";
}

std::string arch_macros(const target &t)
{
    const std::string number = std::to_string(t.cc * 10), plain = std::to_string(t.cc);
    std::string text =
        "#define __CUDA_ARCH__ " + number + "\n#define __CUDA_ARCH_LIST__ " + number + "\n";
    if (t.suffix == 'a')
        text += "#define __CUDA_ARCH_FEAT_SM" + plain + "_ALL 1\n#define __CUDA_ARCH_SPECIFIC__ " +
                number + "\n#define __CUDA_ARCH_FAMILY_SPECIFIC__ " + number + "\n";
    else if (t.suffix == 'f')
        text += "#define __CUDA_ARCH_FAMILY_SPECIFIC__ " + number + "\n";
    return text;
}

// Behind abi.h and the macros of the architecture, in this order.
const char *const prelude_texts[] = {
    text_prelude,    text_bits,   text_rounded, text_approx,      text_math,   text_half,
    text_collective, text_atomic, text_copy,    text_small_float, text_matrix,
};

std::string prelude(const target &t)
{
    std::string text = std::string("#line 1 \"emulator/prelude\"\n") + text_abi + arch_macros(t);
    for (const char *part : prelude_texts)
        text += part;
    return text;
}

std::string unit(const program &p)
{
    std::string text = "#line 1 " + quoted(p.file) + "\n" + p.source +
                       "\n#line 1 \"emulator/epilogue\"\n" + text_epilogue +
                       "static constexpr fajit_emu::kernel fajit_emu_kernels[] = {\n";
    for (const std::string &e : p.expressions)
        text += "#line 1 \"__nv_name_map\"\nFAJIT_EMU_KERNEL(" + quoted(lowered_name(e)) + ", " +
                e + "),\n";
    return text +
           "{}};\n"
           "extern \"C\" __attribute__((visibility(\"default\"))) const fajit_emu::module "
           "fajit_emu_module = {fajit_emu::ABI, sizeof fajit_emu_kernels / sizeof "
           "*fajit_emu_kernels - 1, fajit_emu_kernels, &fajit_emu::host, fajit_emu::view_slot, "
           "fajit_emu_dynamic_shared};\n";
}

// Memory behind the `extern __shared__` arrays: all of them are the same.
std::string dynamic_shared_unit(const std::vector<std::string> &names)
{
    std::string text = "static const unsigned size = " + std::to_string(MAX_SHARED_BYTES) + ";\n";
    text +=
        "extern \"C\" { extern __attribute__((visibility(\"hidden\"))) __thread unsigned char "
        "area[size] __asm__(\"" +
        names[0] +
        "\");\nalignas(1024) __thread unsigned char area[size];\n"
        "__attribute__((visibility(\"hidden\"))) unsigned char *fajit_emu_dynamic_shared() { "
        "return area; } }\n";
    for (size_t i = 1; i < names.size(); i++)
        text += "__asm__(\".globl " + names[i] + "\\n.hidden " + names[i] + "\\n.type " + names[i] +
                ", @object\\n.set " + names[i] + ", " + names[0] + "\");\n";
    return text;
}

bool sanitized()
{
    return under_address_sanitizer() || under_thread_sanitizer() || under_undefined_sanitizer();
}

std::vector<std::string> common_words()
{
    const host_compiler &cxx = host_compiler_find();
    std::vector<std::string> words;
    for (const char *word : {"-x",
                             "c++",
                             "-O1",
                             "-fPIC",
                             "-fvisibility=hidden",
                             "-fno-exceptions",
                             "-fno-rtti",
                             "-fno-builtin-printf",
                             "-fno-ident",
                             "-fno-math-errno",
                             "-fno-strict-aliasing",
                             "-fwrapv",
                             "-fdata-sections",
                             "-fstack-clash-protection",
                             "-fno-delete-null-pointer-checks",
                             "-nostdinc",
                             "-nostdinc++",
                             "-Wno-unknown-pragmas",
                             "-Wno-attributes",
                             "-Wno-subobject-linkage"})
        words.push_back(word);
    if (cxx.gnu)
        words.insert(words.end(), {"-frandom-seed=fajit", "-fno-gnu-unique", "-fno-extern-tls-init",
                                   "-fexpensive-optimizations"}); // contraction is one
    else
        // A cast of what is out of range gives what a GPU gives. Loops stay rolled: a CPU gains little
        // from what kernels unroll, and compiling it takes several times as long.
        words.insert(words.end(), {"-fno-strict-float-cast-overflow", "-Wno-unknown-warning-option",
                                   "-Wno-unused-command-line-argument", "-Wno-undefined-internal",
                                   "-Wno-pass-failed", "-mllvm", "-pragma-unroll-threshold=0",
                                   "-mllvm", "-unroll-threshold=0"});
#ifdef __x86_64__
    if (__builtin_cpu_supports("fma"))
        words.push_back("-mfma");
#endif
    // Kernels have the sanitizers of the process that will run them; its copy of their runtime
    // serves, so that they are linked without.
    if (under_address_sanitizer())
        words.insert(words.end(), {"-fsanitize=address", "-fno-omit-frame-pointer"});
    if (under_thread_sanitizer())
        words.push_back("-fsanitize=thread");
    if (under_undefined_sanitizer())
        words.insert(words.end(), {"-fsanitize=undefined", "-fno-sanitize=vptr"});
    if (under_undefined_sanitizer() && !cxx.gnu)
        words.push_back("-fno-sanitize=function");
    if (sanitized()) // with lines, in a form that every sanitizer's runtime reads
        words.insert(words.end(), {"-g1", "-gdwarf-4"});
    words.insert(words.begin(), cxx.command.front());
    words.insert(words.end(), cxx.command.begin() + 1, cxx.command.end()); // the user's come last
    return words;
}

// The scratch folder is nobody's business.
std::string without_folder(std::string text, const std::string &folder)
{
    const std::string prefix = folder + "/";
    for (size_t at; (at = text.find(prefix)) != std::string::npos;)
        text.erase(at, prefix.size());
    return text;
}

bool run_step(std::vector<std::string> words, const std::vector<std::string> &more,
              const std::string &folder, std::string *log)
{
    std::string output;
    words.insert(words.end(), more.begin(), more.end());
    const int status = run_command(host_compiler_find().path, words, folder.c_str(), &output);
    *log += without_folder(output, folder);
    if (status && output.empty())
        *log += host_compiler_find().path + " failed without a message\n";
    return status == 0;
}

// The shared memory of a program: what is declared, and the names of what the launch sizes.
struct shared_memory {
    uint64_t static_bytes = 0; // each at a multiple of 16
    std::vector<std::string> dynamic;
};

// Reads it from the object file, which gets red zones.
bool find_shared(const std::string &path, shared_memory *shared, std::string *log)
{
    std::string object;
    std::vector<tls_variable> variables;
    if (!read_file(path, &object) ||
        !tls_variables_read(object.data(), object.size(), &variables)) {
        *log += "emulator: cannot read what the host compiler wrote\n";
        return false;
    }
    for (const tls_variable &v : variables) {
        if (!v.defined)
            shared->dynamic.push_back(v.name);
        else if (!v.own)
            shared->static_bytes += (v.bytes + 15) / 16 * 16;
    }
    if (!tls_add_red_zones(&object)) {
        *log += "error: a __shared__ variable cannot have an initial value\n";
        return false;
    }
    return write_file(path, object, log);
}

bool add_dynamic_shared(const std::string &folder, const shared_memory &shared, std::string *log)
{
    return write_file(folder + "/shared.cpp", dynamic_shared_unit(shared.dynamic), log) &&
           run_step(common_words(), {"-c", "shared.cpp", "-o", "shared.o"}, folder, log);
}

void report(const program &p, const settings &s, uint64_t static_bytes, std::string *log)
{
    const std::string arch =
        "sm_" + std::to_string(s.arch.cc) + (s.arch.suffix ? std::string(1, s.arch.suffix) : "");
    *log += "emulated by " +
            host_compiler_find().identity.substr(0, host_compiler_find().identity.find('\n')) +
            ": registers mean nothing\nptxas info    : 0 bytes gmem\n";
    for (const std::string &e : p.expressions) {
        const std::string name = lowered_name(e);
        *log += "ptxas info    : Compiling entry function '" + name + "' for '" + arch +
                "'\nptxas info    : Function properties for " + name +
                "\nptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill "
                "loads\nptxas info    : Used 32 registers, used 1 barriers" +
                (static_bytes ? ", " + std::to_string(static_bytes) + " bytes smem" : "") + "\n";
    }
}

void pack(const settings &s, const shared_memory &shared, const std::string &object,
          std::string *image)
{
    image_head head{};
    memcpy(head.magic, IMAGE_MAGIC, sizeof head.magic);
    head.abi = ABI;
    head.compute_capability = static_cast<uint32_t>(s.arch.cc);
    head.exact = s.arch.suffix == 'a';
    head.static_shared_bytes = static_cast<uint32_t>(shared.static_bytes);
    head.object_bytes = object.size();
    head.object_digest = digest(object.data(), object.size());
    head.head_digest = digest(&head, offsetof(image_head, head_digest));
    image->assign(reinterpret_cast<const char *>(&head), sizeof head);
    image->append(object);
}

// --- steps ---------------------------------------------------------------------------------------

bool can_compile(const settings &s, const scratch_folder &folder, std::string *log)
{
    const host_compiler &cxx = host_compiler_find();
    if (cxx.command.empty())
        *log += cxx.problem + "\n";
    else if (s.arch.virtual_arch)
        *log += "emulator does not implement PTX (--gpu-architecture=compute_" +
                std::to_string(s.arch.cc) + ")\n";
    else if (folder.path.empty())
        *log += std::string("emulator: cannot make a folder for temporary files: ") +
                strerror(folder.error) + "\n";
    else
        return true;
    return false;
}

bool write_sources(program *p, const settings &s, const std::string &folder, std::string *log)
{
    for (const std::string &name : plain_kernels(p->source))
        if (std::find(p->expressions.begin(), p->expressions.end(), name) == p->expressions.end())
            p->expressions.push_back(name);
    std::vector<std::string *> texts = {&p->source};
    for (header &h : p->headers)
        texts.push_back(&h.text);
    bounds_rewrite(texts);
    for (const header &h : p->headers)
        if (!write_header(folder, h, log))
            return false;
    return write_file(folder + "/fajit-emu-prelude.hpp", prelude(s.arch), log) &&
           write_file(folder + "/fajit-emu-unit.cpp", unit(*p), log);
}

bool compile_unit(const settings &s, const std::string &folder, std::string *log)
{
    std::vector<std::string> words = common_words();
    words.insert(words.end(), s.words.begin(), s.words.end());
    words.push_back(s.fmad ? "-ffp-contract=fast" : "-ffp-contract=off");
    return run_step(
        words,
        {"-I.", "-include", "fajit-emu-prelude.hpp", "-c", "fajit-emu-unit.cpp", "-o", "unit.o"},
        folder, log);
}

bool link_object(const shared_memory &shared, const std::string &folder, std::string *log)
{
    const host_compiler &cxx = host_compiler_find();
    std::vector<std::string> link = cxx.command;
    link.insert(link.end(),
                {"-shared", "-Wl,--build-id=none", "-Wl,-Bsymbolic", "-o", "kernel.so", "unit.o"});
    if (!sanitized())
        link.push_back("-Wl,-z,defs");
    if (!cxx.gnu)
        link.push_back("-nostdlib++"); // nothing of it is used, and looking through it takes long
    if (!shared.dynamic.empty()) {
        if (!add_dynamic_shared(folder, shared, log))
            return false;
        link.push_back("shared.o");
    }
    link.push_back("-lm");
    return run_step(link, {}, folder, log);
}

} // namespace

std::string lowered_name(const std::string &expression)
{
    std::string name;
    for (char c : expression)
        if (c != ' ' && c != '\t' && c != '\n' && c != '&')
            name += c == '\'' ? '_' : c;
    return name;
}

bool compile(program p, const settings &s, std::string *image, std::string *log)
{
    const scratch_folder folder;
    std::string object;
    shared_memory shared;
    image->clear();
    if (!can_compile(s, folder, log) || !write_sources(&p, s, folder.path, log) ||
        !compile_unit(s, folder.path, log) || !find_shared(folder.path + "/unit.o", &shared, log) ||
        !link_object(shared, folder.path, log))
        return false;
    if (!read_file(folder.path + "/kernel.so", &object)) {
        *log += "emulator: cannot read what the linker wrote\n";
        return false;
    }
    pack(s, shared, object, image);
    report(p, s, shared.static_bytes, log);
    return true;
}

void compiler_identity(unsigned char out[20])
{
    const host_compiler &cxx = host_compiler_find();
    std::string all = cxx.identity + cxx.problem;
    if (!cxx.command.empty())
        for (const std::string &word : common_words())
            all += word + "\n";
    for (const char *text : {text_abi, text_epilogue, text_sources})
        all += text;
    for (const char *text : prelude_texts)
        all += text;
    const uint64_t a = digest(all.data(), all.size()), b = digest(all.data(), all.size(), ~a);
    memcpy(out, "EMU1", 4);
    memcpy(out + 4, &a, 8);
    memcpy(out + 12, &b, 8);
}

} // namespace fajit_emu
