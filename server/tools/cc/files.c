/* DESIGN: every file that libtcc touches passes here, by the linker's --wrap of open, read,
 * lseek and close. Why:
 * - the exact list of dependencies, computed includes and all, comes from what is opened;
 * - a FIFO, a device or a file that is larger than any source is refused before a byte is read;
 * - speed: libtcc looks for each header in four directories, opens small ones a dozen times and
 *   reads linker scripts byte by byte, 1,300 system calls for a hello. Here a file is opened once
 *   and served from memory under a descriptor number of ours; what a search directory does not
 *   hold is known from one listing.
 * Nothing is freed: the process ends with the compilation. */
#include "files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    MAX_SOURCE = 16 * 1024 * 1024,
    MAX_NAMES = 4096, /* a larger search directory is asked each time */
    MAX_DIRECTORIES = 72,
    MAX_OPEN = 128, /* includes nest to 32 in libtcc */
    BUCKETS = 512,
    FIRST_FD = 100000, /* above any descriptor of the kernel's */
    MAX_PENDING = 64,
};

struct cached_file {
    struct cached_file *next;
    char *path;
    const char *data; /* NULL: it is not there */
    size_t size;
    bool is_system;
};

struct open_file {
    const struct cached_file *file; /* NULL: free */
    size_t at;
};

struct directory {
    char *path; /* with a slash at the end */
    size_t len;
    char **names; /* sorted */
    size_t count;
};

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
ssize_t __real_read(int fd, void *to, size_t size);
ssize_t __wrap_read(int fd, void *to, size_t size);
off_t __real_lseek(int fd, off_t offset, int whence);
off_t __wrap_lseek(int fd, off_t offset, int whence);
int __real_close(int fd);
int __wrap_close(int fd);
void *__wrap_dlopen(const char *path, int flags);

static const struct files_events *events;
static struct cached_file *buckets[BUCKETS];
static struct open_file open_files[MAX_OPEN];
static struct directory directories[MAX_DIRECTORIES];
static size_t directory_count;
static char *pending[MAX_PENDING];
static size_t pending_count;
static char refusal[512];

void files_start(const struct files_events *told)
{
    events = told;
}

const char *files_refusal(void)
{
    return refusal;
}

static void *must(void *p)
{
    if (p == NULL) {
        static const char text[] = "kiln-cc: out of memory\n";
        (void)!write(2, text, sizeof text - 1);
        _exit(1);
    }
    return p;
}

/* ---- search directories ------------------------------------------------------------------------ */

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void files_add_directory(const char *path)
{
    if (directory_count == MAX_DIRECTORIES) {
        return;
    }
    struct directory *d = &directories[directory_count];
    d->len = strlen(path) + 1;
    d->path = must(malloc(d->len + 1));
    memcpy(d->path, path, d->len - 1);
    memcpy(d->path + d->len - 1, "/", 2);
    DIR *stream = opendir(path);
    if (stream == NULL) {
        directory_count += errno == ENOENT; /* holds nothing */
        return;
    }
    d->names = must(malloc(MAX_NAMES * sizeof *d->names));
    struct dirent *entry;
    while ((entry = readdir(stream)) != NULL && d->count < MAX_NAMES) {
        if (entry->d_name[0] != '.') {
            d->names[d->count++] = must(strdup(entry->d_name));
        }
    }
    closedir(stream);
    if (entry == NULL) {
        qsort(d->names, d->count, sizeof *d->names, compare_names);
        directory_count++;
    }
}

/* True when a search directory is known not to hold the first part of the path below it. */
static bool is_known_missing(const char *path)
{
    for (size_t i = 0; i < directory_count; i++) {
        const struct directory *d = &directories[i];
        if (strncmp(path, d->path, d->len) != 0) {
            continue;
        }
        const char *name = path + d->len;
        size_t len = strcspn(name, "/");
        char first[256];
        if (len == 0 || len >= sizeof first || name[0] == '.') {
            continue;
        }
        memcpy(first, name, len);
        first[len] = '\0';
        const char *key = first;
        if (bsearch(&key, d->names, d->count, sizeof *d->names, compare_names) == NULL) {
            return true;
        }
    }
    return false;
}

/* ---- what was read -------------------------------------------------------------------------------- */

static bool starts(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* The system's own headers and libraries change with its packages, not with an edit. */
static bool is_system_path(const char *path)
{
    return starts(path, "/usr/include/") || starts(path, "/usr/local/include/") || starts(path, "/usr/lib") ||
           starts(path, "/lib");
}

/* A header that is looked for in the user's directories and found in the system's is none
 * of theirs: those misses are told only when the search ends elsewhere. */
static void settle_pending(bool tell)
{
    for (size_t i = 0; i < pending_count; i++) {
        if (tell) {
            events->on_missing(pending[i]);
        }
        free(pending[i]);
    }
    pending_count = 0;
}

static int not_found(const char *path)
{
    if (!is_system_path(path)) {
        if (pending_count == MAX_PENDING) {
            settle_pending(true);
        }
        pending[pending_count++] = must(strdup(path));
    } else if (starts(path, "/usr/include/") && !starts(path, "/usr/include/x86_64") &&
               !starts(path, "/usr/include/aarch64")) {
        settle_pending(true); /* the last place: nothing was found */
    }
    errno = ENOENT;
    return -1;
}

static int refuse(int fd, const char *path, const char *why)
{
    snprintf(refusal, sizeof refusal, "%s %s", path, why);
    if (fd >= 0) {
        __real_close(fd);
    }
    errno = ENOENT;
    return -1;
}

static uint32_t hash_path(const char *path)
{
    uint32_t h = 2166136261u;
    for (; *path != '\0'; path++) {
        h = (h ^ (unsigned char)*path) * 16777619u;
    }
    return h % BUCKETS;
}

/* Small files are read, large ones mapped: libtcc wants a few pages of a library. */
static const char *load_content(int fd, size_t *size)
{
    if (*size > 256 * 1024) {
        void *map = mmap(NULL, *size, PROT_READ, MAP_PRIVATE, fd, 0);
        return map == MAP_FAILED ? NULL : map;
    }
    char *data = must(malloc(*size + 1));
    size_t got = 0;
    while (got < *size) {
        ssize_t n = __real_read(fd, data + got, *size - got);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            break;
        }
        got += (size_t)n;
    }
    *size = got;
    return data;
}

/* NULL with errno set when there is no such file, or it is refused. */
static const struct cached_file *load_file(const char *path)
{
    if (is_known_missing(path)) {
        errno = ENOENT;
        return NULL;
    }
    /* A FIFO without a writer would block here; O_NONBLOCK means nothing to regular files. */
    int fd = __real_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        if (errno != ENOENT && errno != ENOTDIR) {
            snprintf(refusal, sizeof refusal, "%s: %s", path, strerror(errno));
        }
        errno = ENOENT;
        return NULL;
    }
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        refuse(fd, path, S_ISDIR(st.st_mode) ? "is a directory" : "is not a regular file");
        return NULL;
    }
    bool is_system = is_system_path(path);
    if (!is_system && st.st_size > MAX_SOURCE) {
        refuse(fd, path, "is larger than 16 MB");
        return NULL;
    }
    struct cached_file *file = must(calloc(1, sizeof *file));
    file->size = (size_t)st.st_size;
    file->data = load_content(fd, &file->size);
    __real_close(fd);
    if (file->data == NULL) {
        free(file);
        refuse(-1, path, "cannot be read");
        return NULL;
    }
    file->path = must(strdup(path));
    file->is_system = is_system;
    struct cached_file **bucket = &buckets[hash_path(path)];
    file->next = *bucket;
    *bucket = file;
    if (!is_system) {
        events->on_file(path, &st);
    }
    return file;
}

/* ---- the four calls -------------------------------------------------------------------------------- */

int __wrap_open(const char *path, int flags, ...)
{
    if ((flags & (O_CREAT | O_WRONLY | O_RDWR)) != 0) {
        va_list args;
        va_start(args, flags);
        mode_t mode = va_arg(args, mode_t);
        va_end(args);
        return __real_open(path, flags | O_CLOEXEC | O_NOFOLLOW, mode);
    }
    const struct cached_file *file = buckets[hash_path(path)];
    while (file != NULL && strcmp(file->path, path) != 0) {
        file = file->next;
    }
    if (file == NULL) {
        file = load_file(path);
    }
    if (file == NULL) {
        return not_found(path);
    }
    settle_pending(!file->is_system);
    refusal[0] = '\0';
    for (int i = 0; i < MAX_OPEN; i++) {
        if (open_files[i].file == NULL) {
            open_files[i] = (struct open_file){.file = file};
            return FIRST_FD + i;
        }
    }
    errno = EMFILE;
    return -1;
}

static struct open_file *find_open(int fd)
{
    return fd >= FIRST_FD && fd < FIRST_FD + MAX_OPEN ? &open_files[fd - FIRST_FD] : NULL;
}

ssize_t __wrap_read(int fd, void *to, size_t size)
{
    struct open_file *open_file = find_open(fd);
    if (open_file == NULL) {
        return __real_read(fd, to, size);
    }
    size_t left = open_file->at < open_file->file->size ? open_file->file->size - open_file->at : 0;
    size_t n = size < left ? size : left;
    memcpy(to, open_file->file->data + open_file->at, n);
    open_file->at += n;
    return (ssize_t)n;
}

off_t __wrap_lseek(int fd, off_t offset, int whence)
{
    struct open_file *open_file = find_open(fd);
    if (open_file == NULL) {
        return __real_lseek(fd, offset, whence);
    }
    off_t base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? (off_t)open_file->at : (off_t)open_file->file->size;
    if (base + offset < 0) {
        errno = EINVAL;
        return -1;
    }
    open_file->at = (size_t)(base + offset);
    return base + offset;
}

int __wrap_close(int fd)
{
    struct open_file *open_file = find_open(fd);
    if (open_file == NULL) {
        return __real_close(fd);
    }
    open_file->file = NULL;
    return 0;
}

/* ---- what libtcc would run in memory with ------------------------------------------------------------ */

/* Never called for TCC_OUTPUT_DLL; the C library's own is no good in a static program. */
void *__wrap_dlopen(const char *path, int flags)
{
    (void)path;
    (void)flags;
    return NULL;
}
