/* DESIGN: a module is judged by its bytes before any of its code runs: dlopen would run
 * constructors first and then say "wrong ELF class" at best. Reads the private copy, whole, with
 * every offset checked against the file's size. */
#include "base/file.h"
#include "endpoint/build.h"

#include <elf.h>
#include <errno.h>

enum { ELF_MAX = 1024 * 1024 * 1024 };

#if defined(__x86_64__)
enum { OUR_MACHINE = EM_X86_64 };
#else
enum { OUR_MACHINE = EM_AARCH64 };
#endif

struct image {
    struct buffer bytes;
    const Elf64_Ehdr *header;
};

/* A range of the file, or NULL when it is not whole in there. Not aligned: libtcc puts tables at any
 * address, so they are copied out. */
static const void *range(const struct image *image, uint64_t offset, uint64_t size)
{
    if (offset > image->bytes.len || size > image->bytes.len - offset) {
        return NULL;
    }
    return image->bytes.data + offset;
}

static bool section(const struct image *image, size_t index, Elf64_Shdr *out)
{
    uint64_t offset = image->header->e_shoff + (uint64_t)index * sizeof *out;
    const void *at =
        index < image->header->e_shnum && offset >= image->header->e_shoff ? range(image, offset, sizeof *out) : NULL;
    if (at == NULL) {
        return false;
    }
    memcpy(out, at, sizeof *out);
    return true;
}

/* NUL-terminated text inside a string section, or "". */
static const char *text_at(const struct image *image, const Elf64_Shdr *strings, uint64_t at)
{
    const char *all = range(image, strings->sh_offset, strings->sh_size);
    if (all == NULL || at >= strings->sh_size || memchr(all + at, '\0', strings->sh_size - at) == NULL) {
        return "";
    }
    return all + at;
}

static enum elf_verdict load_image(const char *path, struct image *image)
{
    if (!file_read(path, ELF_MAX, &image->bytes)) {
        return ELF_UNREADABLE;
    }
    const unsigned char *id = (const unsigned char *)image->bytes.data;
    if (image->bytes.len < SELFMAG || memcmp(id, ELFMAG, SELFMAG) != 0) {
        return ELF_NOT_ELF;
    }
    if (image->bytes.len < sizeof(Elf64_Ehdr)) {
        return ELF_TRUNCATED;
    }
    if (id[EI_CLASS] != ELFCLASS64 || id[EI_DATA] != ELFDATA2LSB) {
        return ELF_WRONG_CLASS;
    }
    image->header = (const Elf64_Ehdr *)(const void *)image->bytes.data;
    return ELF_GOOD;
}

static bool segment(const struct image *image, size_t index, Elf64_Phdr *out)
{
    const void *at = range(image, image->header->e_phoff + (uint64_t)index * sizeof *out, sizeof *out);
    if (at == NULL || image->header->e_phoff > image->bytes.len) {
        return false;
    }
    memcpy(out, at, sizeof *out);
    return true;
}

/* Segments that reach past the end of the file would be mapped, and kill us with SIGBUS later. */
static enum elf_verdict check_segments(const struct image *image)
{
    const Elf64_Ehdr *header = image->header;
    if (header->e_phentsize != sizeof(Elf64_Phdr) || header->e_phnum == 0) {
        return ELF_MALFORMED;
    }
    for (unsigned i = 0; i < header->e_phnum; i++) {
        Elf64_Phdr s;
        if (!segment(image, i, &s) || (s.p_type == PT_LOAD && range(image, s.p_offset, s.p_filesz) == NULL)) {
            return ELF_TRUNCATED;
        }
    }
    return ELF_GOOD;
}

/* Bytes of the file behind an address, or NULL. */
static const void *at_address(const struct image *image, uint64_t address, uint64_t size)
{
    for (unsigned i = 0; i < image->header->e_phnum; i++) {
        Elf64_Phdr s;
        if (segment(image, i, &s) && s.p_type == PT_LOAD && address >= s.p_vaddr && address - s.p_vaddr < s.p_filesz &&
            size <= s.p_filesz - (address - s.p_vaddr)) {
            return range(image, s.p_offset + (address - s.p_vaddr), size);
        }
    }
    return NULL;
}

static void note_symbol(const struct image *image, const Elf64_Sym *symbol, const char *name, struct elf_facts *facts)
{
    static const struct {
        const char *name;
        size_t offset;
    } functions[] = {
        {"kiln_run", offsetof(struct elf_facts, has_run)},
        {"kiln_socket", offsetof(struct elf_facts, has_socket)},
        {"kiln_load", offsetof(struct elf_facts, has_load)},
        {"kiln_unload", offsetof(struct elf_facts, has_unload)},
    };
    unsigned type = ELF64_ST_TYPE(symbol->st_info);
    if (symbol->st_shndx == SHN_UNDEF || ELF64_ST_BIND(symbol->st_info) == STB_LOCAL) {
        return;
    }
    if (type == STT_FUNC || type == STT_NOTYPE) {
        for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
            if (strcmp(name, functions[i].name) == 0) {
                *(bool *)((char *)facts + functions[i].offset) = true;
            }
        }
    } else if (type == STT_OBJECT && strcmp(name, "kiln_module_abi") == 0 && symbol->st_size >= sizeof facts->stamp) {
        const void *value = at_address(image, symbol->st_value, sizeof facts->stamp);
        if (value != NULL) {
            memcpy(facts->stamp, value, sizeof facts->stamp);
            facts->has_stamp = true;
        }
    }
}

/* Calls fn for every symbol of the first such table, which is the only one; false when there is none. */
static bool each_symbol(const struct image *image, uint32_t table_type,
                        void (*fn)(const struct image *, const Elf64_Sym *, const char *, void *), void *arg)
{
    for (size_t i = 0; i < image->header->e_shnum; i++) {
        Elf64_Shdr table;
        Elf64_Shdr strings;
        if (!section(image, i, &table) || table.sh_type != table_type) {
            continue;
        }
        const char *symbols = range(image, table.sh_offset, table.sh_size);
        if (symbols == NULL || !section(image, table.sh_link, &strings)) {
            return false;
        }
        for (uint64_t n = 0; n < table.sh_size / sizeof(Elf64_Sym); n++) {
            Elf64_Sym symbol;
            memcpy(&symbol, symbols + n * sizeof symbol, sizeof symbol);
            fn(image, &symbol, text_at(image, &strings, symbol.st_name), arg);
        }
        return true;
    }
    return false;
}

static void on_dynamic_symbol(const struct image *image, const Elf64_Sym *symbol, const char *name, void *arg)
{
    note_symbol(image, symbol, name, arg);
}

/* Code that dlopen or dlclose runs, beyond the one entry of the C runtime that gcc and clang link in;
 * libtcc links none, nor any .eh_frame. */
static bool has_constructors(const struct image *image)
{
    size_t entries = 0;
    bool runtime = false;
    Elf64_Shdr names;
    bool named = section(image, image->header->e_shstrndx, &names);
    for (size_t i = 0; i < image->header->e_shnum; i++) {
        Elf64_Shdr s;
        if (!section(image, i, &s)) {
            continue;
        }
        const char *name = named ? text_at(image, &names, s.sh_name) : "";
        runtime = runtime || strcmp(name, ".eh_frame") == 0;
        /* By name as well: libtcc gives them the type of ordinary data. */
        if (s.sh_type == SHT_INIT_ARRAY || s.sh_type == SHT_FINI_ARRAY || s.sh_type == SHT_PREINIT_ARRAY ||
            strcmp(name, ".init_array") == 0 || strcmp(name, ".fini_array") == 0) {
            size_t here = s.sh_size / sizeof(Elf64_Addr);
            entries = here > entries ? here : entries;
        }
    }
    return entries > (runtime ? 1 : 0);
}

enum elf_verdict elf_inspect(const char *path, struct elf_facts *facts)
{
    *facts = (struct elf_facts){0};
    struct image image = {.bytes = BUFFER_EMPTY};
    enum elf_verdict verdict = load_image(path, &image);
    if (verdict == ELF_GOOD) {
        facts->machine = image.header->e_machine;
        if (image.header->e_machine != OUR_MACHINE) {
            verdict = ELF_WRONG_MACHINE;
        } else if (image.header->e_type != ET_DYN) {
            verdict = ELF_NOT_SHARED;
        } else {
            verdict = check_segments(&image);
        }
    }
    if (verdict == ELF_GOOD && !each_symbol(&image, SHT_DYNSYM, on_dynamic_symbol, facts)) {
        verdict = image.header->e_shoff + (uint64_t)image.header->e_shnum * sizeof(Elf64_Shdr) > image.bytes.len
                      ? ELF_TRUNCATED
                      : ELF_MALFORMED;
    }
    facts->has_constructors = verdict == ELF_GOOD && has_constructors(&image);
    buffer_free(&image.bytes);
    return verdict;
}

const char *elf_machine_name(uint16_t machine)
{
    switch (machine) {
    case EM_X86_64: return "x86-64";
    case EM_AARCH64: return "arm64";
    case EM_386: return "32-bit x86";
    case EM_ARM: return "32-bit ARM";
    case EM_RISCV: return "RISC-V";
    case EM_PPC64: return "POWER";
    case EM_S390: return "s390";
    default: return "another kind of processor";
    }
}

/* ---- state between calls -------------------------------------------------------------------------- */

static bool starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Writable while the dynamic linker works, and constant for the program. */
static bool is_constant_section(const char *name)
{
    static const char *const names[] = {".data.rel.ro", ".dynamic",       ".got",      ".init_array",
                                        ".fini_array",  ".preinit_array", ".eh_frame", ".tm_clone_table",
                                        ".jcr",         ".ctors",         ".dtors"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (starts_with(name, names[i])) {
            return true;
        }
    }
    return false;
}

static void on_symbol(const struct image *image, const Elf64_Sym *symbol, const char *name, void *arg)
{
    bool *has_state = arg;
    unsigned type = ELF64_ST_TYPE(symbol->st_info);
    if (type == STT_TLS && symbol->st_size > 0) {
        *has_state = true;
    }
    if ((type != STT_OBJECT && type != STT_COMMON) || symbol->st_size == 0 || symbol->st_shndx == SHN_UNDEF) {
        return;
    }
    if (symbol->st_shndx >= SHN_LORESERVE) {
        *has_state = *has_state || symbol->st_shndx == SHN_COMMON;
        return;
    }
    Elf64_Shdr home;
    Elf64_Shdr names;
    if (!section(image, symbol->st_shndx, &home) || !section(image, image->header->e_shstrndx, &names)) {
        *has_state = true; /* cannot tell */
        return;
    }
    if ((home.sh_flags & SHF_WRITE) == 0 || is_constant_section(text_at(image, &names, home.sh_name))) {
        return;
    }
    /* The C runtime's own marks. */
    if (starts_with(name, "completed.") || strcmp(name, "__dso_handle") == 0 || strcmp(name, "__TMC_END__") == 0) {
        return;
    }
    *has_state = true;
}

bool elf_has_state(const char *path)
{
    struct elf_facts facts;
    if (elf_inspect(path, &facts) != ELF_GOOD || facts.has_load || facts.has_unload) {
        return true; /* what kiln_load made may be anywhere */
    }
    struct image image = {.bytes = BUFFER_EMPTY};
    bool has_state = true;
    if (load_image(path, &image) == ELF_GOOD) {
        bool found = false;
        has_state = !each_symbol(&image, SHT_SYMTAB, on_symbol, &found) || found || has_constructors(&image);
    }
    buffer_free(&image.bytes);
    return has_state;
}
