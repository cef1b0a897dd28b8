/* DESIGN: two things that libtcc leaves undone.
 *
 * It does not look whether its writes succeed: on a full disk the section headers, which come
 * last, are missing.
 *
 * It writes no PT_GNU_STACK. The C library takes that as "this code runs on its stack": up to
 * glibc 2.40 loading such a module makes the stacks of the whole process executable, from
 * 2.41 on (Debian 13) it refuses the module. There is no room for one more program header where
 * they stand, so the table is written again at the end of the file, with that one added.
 *
 * Files are opened by stdio here: open() counts what the source reads (files.c). */
#include "cc/object.h"

#include <elf.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { HEADERS_MAX = 64 };

static bool read_at(FILE *file, uint64_t at, void *to, size_t len)
{
    return fseek(file, (long)at, SEEK_SET) == 0 && fread(to, len, 1, file) == 1;
}

static bool write_at(FILE *file, uint64_t at, const void *from, size_t len)
{
    return fseek(file, (long)at, SEEK_SET) == 0 && fwrite(from, len, 1, file) == 1;
}

static bool mark_stack(FILE *file, Elf64_Ehdr *head, uint64_t size)
{
    Elf64_Phdr table[HEADERS_MAX + 1];
    unsigned count = head->e_phnum;
    if (count > HEADERS_MAX || head->e_phentsize != sizeof table[0] ||
        !read_at(file, head->e_phoff, table, count * sizeof table[0])) {
        return false;
    }
    for (unsigned i = 0; i < count; i++) {
        if (table[i].p_type == PT_GNU_STACK) {
            return true;
        }
    }
    table[count] = (Elf64_Phdr){.p_type = PT_GNU_STACK, .p_flags = PF_R | PF_W, .p_align = 16};
    head->e_phoff = (size + 7) & ~(uint64_t)7;
    head->e_phnum = (Elf64_Half)(count + 1);
    return write_at(file, head->e_phoff, table, (count + 1) * sizeof table[0]) && write_at(file, 0, head, sizeof *head);
}

bool object_finish(const char *path)
{
    FILE *file = fopen(path, "r+e");
    if (file == NULL) {
        return false;
    }
    Elf64_Ehdr head;
    struct stat st;
    bool whole = fstat(fileno(file), &st) == 0 && read_at(file, 0, &head, sizeof head) &&
                 (uint64_t)st.st_size >= head.e_shoff + (uint64_t)head.e_shnum * head.e_shentsize;
    bool ok = whole && mark_stack(file, &head, (uint64_t)st.st_size);
    ok = fclose(file) == 0 && ok;
    if (!whole) {
        errno = ENOSPC; /* as far as that can be told afterwards */
    }
    return ok;
}
