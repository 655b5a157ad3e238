#include "elf_tls.h"

#include <elf.h>

#include <cstring>

namespace fajit_emu {

namespace {

constexpr char OWN[] = "_ZN9fajit_emuL7currentE";

// The section headers; empty: no object file.
std::vector<Elf64_Shdr> sections_of(const char *object, size_t bytes, uint64_t *at)
{
    Elf64_Ehdr head;
    if (bytes < sizeof head)
        return {};
    memcpy(&head, object, sizeof head);
    if (memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_shentsize != sizeof(Elf64_Shdr) ||
        head.e_shoff > bytes || uint64_t{head.e_shnum} * sizeof(Elf64_Shdr) > bytes - head.e_shoff)
        return {};
    std::vector<Elf64_Shdr> sections(head.e_shnum);
    memcpy(sections.data(), object + head.e_shoff, sections.size() * sizeof(Elf64_Shdr));
    *at = head.e_shoff;
    return sections;
}

bool inside(const Elf64_Shdr &s, size_t bytes)
{
    return s.sh_offset <= bytes && s.sh_size <= bytes - s.sh_offset;
}

bool read_table(const char *object, size_t bytes, const Elf64_Shdr &symbols,
                const Elf64_Shdr &strings, std::vector<tls_variable> *found)
{
    if (!inside(symbols, bytes) || !inside(strings, bytes) || strings.sh_size == 0 ||
        object[strings.sh_offset + strings.sh_size - 1] != '\0')
        return false;
    for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= symbols.sh_size; at += sizeof(Elf64_Sym)) {
        Elf64_Sym s;
        memcpy(&s, object + symbols.sh_offset + at, sizeof s);
        if (ELF64_ST_TYPE(s.st_info) != STT_TLS || s.st_name >= strings.sh_size)
            continue;
        const char *name = object + strings.sh_offset + s.st_name;
        found->push_back(
            {name, s.st_value, s.st_size, s.st_shndx != SHN_UNDEF, strcmp(name, OWN) == 0});
    }
    return true;
}

} // namespace

bool tls_variables_read(const void *object, size_t bytes, std::vector<tls_variable> *found)
{
    const char *text = static_cast<const char *>(object);
    uint64_t at = 0;
    found->clear();
    const std::vector<Elf64_Shdr> sections = sections_of(text, bytes, &at);
    for (const Elf64_Shdr &s : sections)
        if (s.sh_type == SHT_SYMTAB && (s.sh_link >= sections.size() ||
                                        !read_table(text, bytes, s, sections[s.sh_link], found)))
            return false;
    return !sections.empty();
}

bool tls_add_red_zones(std::string *object)
{
    uint64_t at = 0;
    std::vector<Elf64_Shdr> sections = sections_of(object->data(), object->size(), &at);
    for (Elf64_Shdr &s : sections)
        if ((s.sh_flags & SHF_TLS) && s.sh_size) {
            if (s.sh_type != SHT_NOBITS)
                return false;
            s.sh_size += RED_ZONE_BYTES;
        }
    memcpy(&(*object)[at], sections.data(), sections.size() * sizeof(Elf64_Shdr));
    return !sections.empty();
}

} // namespace fajit_emu
