#include "request/spill.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

void spill_init(struct spill *spill, size_t memory_limit, const char *directory)
{
    *spill = (struct spill){.memory_limit = memory_limit, .directory = directory, .fd = -1};
}

static const char *temporary_directory(const char *wanted)
{
    if (wanted != NULL && wanted[0] != '\0') {
        return wanted;
    }
    const char *env = getenv("TMPDIR");
    return env != NULL && env[0] != '\0' ? env : "/tmp";
}

/* A file without a name; where the file system cannot make one, unlinked at once. */
static int open_nameless(const char *directory)
{
    int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL && errno != ENOENT)) {
        return fd;
    }
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/kiln-XXXXXX", directory);
    if (length < 0 || (size_t)length >= sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0) {
        unlink(path);
    }
    return fd;
}

enum spill_result spill_append(struct spill *spill, const void *data, size_t len)
{
    if (len == 0) {
        return SPILL_OK;
    }
    if (spill->fd < 0 && len <= spill->memory_limit && spill->memory.len <= spill->memory_limit - len) {
        if (!buffer_append(&spill->memory, data, len)) {
            return SPILL_NO_MEMORY;
        }
        spill->size += len;
        return SPILL_OK;
    }
    if (spill->fd < 0) {
        spill->fd = open_nameless(temporary_directory(spill->directory));
        if (spill->fd < 0 || !fd_write_all(spill->fd, spill->memory.data, spill->memory.len)) {
            return SPILL_DISK;
        }
        buffer_free(&spill->memory);
    }
    if (!fd_write_all(spill->fd, data, len)) {
        return SPILL_DISK;
    }
    spill->size += len;
    return SPILL_OK;
}

const char *spill_data(struct spill *spill)
{
    if (spill->map != NULL) {
        return spill->map;
    }
    if (spill->fd < 0) {
        char *end = buffer_reserve(&spill->memory, 1);
        if (end == NULL) {
            errno = ENOMEM;
            return NULL;
        }
        *end = '\0';
        return spill->memory.data;
    }
    /* The NUL is one more byte of the file: a size of whole pages would have none in the map. */
    if (pwrite(spill->fd, "", 1, (off_t)spill->size) != 1) {
        return NULL;
    }
    size_t len = (size_t)spill->size + 1;
    void *map = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE, spill->fd, 0);
    if (map == MAP_FAILED) {
        return NULL;
    }
    spill->map = map;
    spill->map_len = len;
    return map;
}

void spill_free(struct spill *spill)
{
    if (spill->map != NULL) {
        munmap(spill->map, spill->map_len);
    }
    if (spill->fd >= 0) {
        close(spill->fd);
    }
    buffer_free(&spill->memory);
    spill_init(spill, spill->memory_limit, spill->directory);
}
