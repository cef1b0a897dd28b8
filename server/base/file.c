#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

bool file_read(const char *path, size_t max, struct buffer *out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return false;
    }
    for (;;) {
        char *to = buffer_reserve(out, 65536);
        if (to == NULL) {
            errno = ENOMEM;
            break;
        }
        ssize_t n = read(fd, to, 65536);
        if (n == 0) {
            close(fd);
            return true;
        }
        if (n < 0) {
            if (errno == EINTR) {
                continue;
            }
            break;
        }
        out->len += (size_t)n;
        if (out->len > max) {
            errno = EFBIG;
            break;
        }
    }
    int saved = errno;
    close(fd);
    errno = saved;
    return false;
}

bool fd_write_all(int fd, const void *data, size_t len)
{
    const char *p = data;
    while (len > 0) {
        ssize_t n = write(fd, p, len);
        if (n < 0) {
            if (errno == EINTR) {
                continue;
            }
            return false;
        }
        p += n;
        len -= (size_t)n;
    }
    return true;
}

/* Not mkostemp() and fchmod(): an isolated endpoint may not change modes (isolate/seccomp.c). */
static int open_beside(const char *path, mode_t mode, char temporary[PATH_MAX])
{
    for (int tries = 0; tries < 16; tries++) {
        uint64_t random;
        if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random) {
            return -1;
        }
        int length = snprintf(temporary, PATH_MAX, "%s.%016" PRIx64, path, random);
        if (length < 0 || length >= PATH_MAX) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
        if (fd >= 0 || errno != EEXIST) {
            return fd;
        }
    }
    return -1;
}

bool file_replace(const char *path, const void *data, size_t len, mode_t mode)
{
    char temporary[PATH_MAX];
    int fd = open_beside(path, mode, temporary);
    if (fd < 0) {
        return false;
    }
    bool ok = fd_write_all(fd, data, len) && fsync(fd) == 0;
    int saved = errno;
    if (close(fd) != 0 && ok) {
        saved = errno;
        ok = false;
    }
    if (ok && rename(temporary, path) == 0) {
        return true;
    }
    if (ok) {
        saved = errno;
    }
    unlink(temporary);
    errno = saved;
    return false;
}

bool dir_make(const char *path, mode_t mode)
{
    char copy[PATH_MAX];
    size_t len = strlen(path);
    if (len == 0 || len >= sizeof copy) {
        errno = len == 0 ? EINVAL : ENAMETOOLONG;
        return false;
    }
    memcpy(copy, path, len + 1);
    for (size_t i = 1; i <= len; i++) {
        if (copy[i] != '/' && copy[i] != '\0') {
            continue;
        }
        char end = copy[i];
        copy[i] = '\0';
        if (mkdir(copy, mode) != 0 && errno != EEXIST) {
            return false;
        }
        copy[i] = end;
    }
    struct stat st;
    if (stat(path, &st) != 0) {
        return false;
    }
    if (!S_ISDIR(st.st_mode)) {
        errno = ENOTDIR;
        return false;
    }
    return true;
}
