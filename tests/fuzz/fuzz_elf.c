/* The reader of ELF files, which sees whatever lies in the site as name.so. */
#include "fuzz.h"

#include "endpoint/build.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static char path[64];
    if (fd < 0) {
        fd = memfd_create("object", 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size) {
        abort();
    }
    struct elf_facts facts;
    if (elf_inspect(path, &facts) == ELF_GOOD) {
        elf_has_state(path);
    }
    elf_machine_name(facts.machine);
    return 0;
}
