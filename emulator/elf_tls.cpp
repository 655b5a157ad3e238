#include "elf_tls.h"

#include <elf.h>

#include <cstring>

namespace fajit_emu {

namespace {

// The prelude's own: the pointer to the running thread.
constexpr char OWN[] = "current";

bool read_table(const std::string &object, const Elf64_Shdr &symbols, const Elf64_Shdr &strings,
                tls_symbols *found)
{
    if (symbols.sh_offset + symbols.sh_size > object.size() ||
        strings.sh_offset + strings.sh_size > object.size() || strings.sh_size == 0 ||
        object[strings.sh_offset + strings.sh_size - 1] != '\0')
        return false;
    for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= symbols.sh_size; at += sizeof(Elf64_Sym)) {
        Elf64_Sym s;
        memcpy(&s, object.data() + symbols.sh_offset + at, sizeof s);
        if (ELF64_ST_TYPE(s.st_info) != STT_TLS || s.st_name >= strings.sh_size)
            continue;
        const char *name = object.data() + strings.sh_offset + s.st_name;
        if (s.st_shndx == SHN_UNDEF)
            found->undefined.push_back(name);
        else if (!strstr(name, "fajit_emu") || !strstr(name, OWN))
            found->static_bytes += (s.st_size + 15) / 16 * 16;
    }
    return true;
}

} // namespace

bool tls_symbols_read(const std::string &object, tls_symbols *found)
{
    Elf64_Ehdr head;
    *found = {};
    if (object.size() < sizeof head)
        return false;
    memcpy(&head, object.data(), sizeof head);
    if (memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_shentsize != sizeof(Elf64_Shdr) ||
        head.e_shoff + uint64_t{head.e_shnum} * sizeof(Elf64_Shdr) > object.size())
        return false;
    std::vector<Elf64_Shdr> sections(head.e_shnum);
    memcpy(sections.data(), object.data() + head.e_shoff, sections.size() * sizeof(Elf64_Shdr));
    for (const Elf64_Shdr &s : sections)
        if (s.sh_type == SHT_SYMTAB) {
            if (s.sh_link >= sections.size() || !read_table(object, s, sections[s.sh_link], found))
                return false;
        }
    return true;
}

} // namespace fajit_emu
