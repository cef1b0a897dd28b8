#include "supervisor/pid_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static void explain_taken(int fd, const char *path, struct buffer *why)
{
    char text[32] = "";
    ssize_t len = pread(fd, text, sizeof text - 1, 0);
    long pid = len > 0 ? strtol(text, NULL, 10) : 0;
    buffer_append_z(why, "a server is running already");
    if (pid > 0) {
        buffer_printf(why, " (process %ld)", pid);
    }
    buffer_printf(why, " and holds PidFile %s; stop it%s, or give this one another PidFile", path,
                  pid > 0 ? " with kill and that number" : "");
}

/* The holder removes the file when it ends: what was locked may be gone from the path. */
static bool is_still_there(int fd, const char *path)
{
    struct stat open_file;
    struct stat named;
    return fstat(fd, &open_file) == 0 && stat(path, &named) == 0 && open_file.st_ino == named.st_ino &&
           open_file.st_dev == named.st_dev;
}

static enum pid_file_result failed(const char *path, struct buffer *why)
{
    buffer_printf(why, "cannot write PidFile %s: %s", path, strerror(errno));
    return PID_FILE_FAILED;
}

enum pid_file_result pid_file_open(struct pid_file *file, const char *path, struct buffer *why)
{
    *file = (struct pid_file){.fd = -1};
    if (*path == '\0') {
        return PID_FILE_OK;
    }
    int fd = -1;
    for (;;) {
        /* O_NOFOLLOW: in a directory that others may write, a link must not lead us elsewhere. */
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
        if (fd < 0) {
            return failed(path, why);
        }
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            if (errno == EWOULDBLOCK) {
                explain_taken(fd, path, why);
                close(fd);
                return PID_FILE_TAKEN;
            }
            failed(path, why);
            close(fd);
            return PID_FILE_FAILED;
        }
        if (is_still_there(fd, path)) {
            break;
        }
        close(fd);
    }
    *file = (struct pid_file){.fd = fd, .path = strdup(path)};
    if (file->path == NULL || !pid_file_write(file)) {
        failed(path, why);
        pid_file_leave(file);
        return PID_FILE_FAILED;
    }
    return PID_FILE_OK;
}

void pid_file_adopt(struct pid_file *file, int fd, const char *path)
{
    char *copy = fd >= 0 && *path != '\0' && is_still_there(fd, path) ? strdup(path) : NULL;
    if (copy == NULL) {
        if (fd >= 0) {
            close(fd);
        }
        *file = (struct pid_file){.fd = -1};
        return;
    }
    *file = (struct pid_file){.fd = fd, .path = copy, .inherited = true};
}

bool pid_file_write(struct pid_file *file)
{
    char text[32];
    int len = snprintf(text, sizeof text, "%d\n", (int)getpid());
    return file->fd >= 0 && ftruncate(file->fd, 0) == 0 && pwrite(file->fd, text, (size_t)len, 0) == len;
}

void pid_file_leave(struct pid_file *file)
{
    if (file->fd >= 0) {
        close(file->fd);
        free(file->path);
        *file = (struct pid_file){.fd = -1};
    }
}

void pid_file_close(struct pid_file *file)
{
    if (file->fd >= 0 && !file->inherited) {
        /* Before the lock goes, so that no other server's file is removed. */
        unlink(file->path);
    }
    pid_file_leave(file);
}
