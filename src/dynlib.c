#include "dynlib.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "digest.h"

static bool try_open(fa__dynlib *lib, const char *name)
{
    lib->handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!lib->handle) {
        const char *reason = dlerror();
        fa__buf_format(&lib->tried, "\n  %s: %s", name, reason ? reason : "unknown reason");
        return false;
    }
    struct link_map *map = NULL;
    if (dlinfo(lib->handle, RTLD_DI_LINKMAP, &map) != 0 || !map || !map->l_name[0])
        snprintf(lib->path, sizeof lib->path, "%s", name);
    else
        snprintf(lib->path, sizeof lib->path, "%s", map->l_name);
    return true;
}

bool fa__dynlib_open(fa__dynlib *lib, const char *variable, const char *const *candidates)
{
    *lib = (fa__dynlib){0};
    const char *override = variable ? secure_getenv(variable) : NULL;
    if (override && override[0]) {
        if (try_open(lib, override))
            return true;
        fa__buf_format(&lib->tried, "\n  (%s is set, so nothing else is tried)", variable);
        return false;
    }
    for (size_t i = 0; candidates[i]; i++)
        if (try_open(lib, candidates[i])) {
            fa__buf_free(&lib->tried);
            return true;
        }
    return false;
}

void *fa__dynlib_symbol(const fa__dynlib *lib, const char *name)
{
    return dlsym(lib->handle, name);
}

/* --- build id --- */

typedef struct id_search {
    uintptr_t address; /* of a function in the library */
    char *out;
    size_t size;
    bool found;
} id_search;

static bool holds(const struct dl_phdr_info *info, uintptr_t address)
{
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *ph = &info->dlpi_phdr[i];
        uintptr_t begin = info->dlpi_addr + ph->p_vaddr;
        if (ph->p_type == PT_LOAD && address >= begin && address - begin < ph->p_memsz)
            return true;
    }
    return false;
}

/* Looks through a run of ELF notes. */
static bool notes_build_id(const unsigned char *at, size_t len, char *out, size_t size)
{
    while (len >= sizeof(ElfW(Nhdr))) {
        ElfW(Nhdr) note;
        memcpy(&note, at, sizeof note);
        at += sizeof note;
        len -= sizeof note;
        if (note.n_namesz > len || note.n_descsz > len)
            return false;
        size_t name = (note.n_namesz + 3u) & ~(size_t)3, desc = (note.n_descsz + 3u) & ~(size_t)3;
        if (name + desc > len)
            return false;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && memcmp(at, "GNU", 4) == 0) {
            if (2 * (size_t)note.n_descsz + 1 > size)
                return false;
            fa__digest_hex(at + name, note.n_descsz, out);
            return true;
        }
        at += name + desc;
        len -= name + desc;
    }
    return false;
}

bool fa__dynlib_file_id(const unsigned char *head, size_t len, char *out, size_t size)
{
    ElfW(Ehdr) elf;
    out[0] = '\0';
    if (len < sizeof elf || memcmp(head, ELFMAG, SELFMAG) != 0)
        return false;
    memcpy(&elf, head, sizeof elf);
    if (elf.e_phentsize != sizeof(ElfW(Phdr)))
        return false;
    for (size_t i = 0; i < elf.e_phnum; i++) {
        ElfW(Phdr) ph;
        if (elf.e_phoff > len || (i + 1) * sizeof ph > len - elf.e_phoff)
            return false;
        memcpy(&ph, head + elf.e_phoff + i * sizeof ph, sizeof ph);
        if (ph.p_type == PT_NOTE && ph.p_offset <= len && ph.p_filesz <= len - ph.p_offset &&
            notes_build_id(head + ph.p_offset, ph.p_filesz, out, size))
            return true;
    }
    return false;
}

static int find_id(struct dl_phdr_info *info, size_t size, void *user)
{
    (void)size;
    id_search *search = user;
    if (!holds(info, search->address))
        return 0;
    for (size_t i = 0; i < info->dlpi_phnum && !search->found; i++)
        if (info->dlpi_phdr[i].p_type == PT_NOTE)
            search->found = notes_build_id(
                (const unsigned char *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr),
                info->dlpi_phdr[i].p_memsz, search->out, search->size);
    if (search->found)
        return 1;

    /* No id was linked in: the code itself is what differs. Segments that are written to (and so
     * relocated) are left out. */
    XXH64_hash_t hash = 0;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *ph = &info->dlpi_phdr[i];
        if (ph->p_type == PT_LOAD && (ph->p_flags & PF_R) && !(ph->p_flags & PF_W))
            hash = XXH3_64bits_withSeed((const void *)(info->dlpi_addr + ph->p_vaddr), ph->p_filesz,
                                        hash);
    }
    snprintf(search->out, search->size, "digest-%016llx", (unsigned long long)hash);
    search->found = true;
    return 1;
}

bool fa__dynlib_loaded_id(const void *symbol, char *out, size_t size)
{
    id_search search = {.address = (uintptr_t)symbol, .out = out, .size = size};
    out[0] = '\0';
    dl_iterate_phdr(find_id, &search);
    return search.found;
}
