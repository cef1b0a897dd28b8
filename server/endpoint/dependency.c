/* Dependencies of a build, and the hashes that say whether they changed. Content decides, not
 * times: a touched file rebuilds nothing. */
#include "base/file.h"
#include "endpoint/build.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    DEPENDENCIES_MAX = 4096,
    FILE_MOST = 1 << 30, /* bytes: what is larger, sparse or growing, would keep a builder busy for good */
};

struct dependency *dependencies_add(struct dependencies *d, struct str path, bool missing)
{
    for (size_t i = 0; i < d->count; i++) {
        if (d->items[i].missing == missing && str_eq(str_of(d->items[i].path), path)) {
            return &d->items[i];
        }
    }
    if (d->count == DEPENDENCIES_MAX || path.len == 0 || path.len >= PATH_MAX || memchr(path.ptr, '\0', path.len)) {
        return NULL;
    }
    if (d->count == d->cap) {
        size_t cap = d->cap == 0 ? 8 : d->cap * 2;
        struct dependency *grown = realloc(d->items, cap * sizeof *grown);
        if (grown == NULL) {
            return NULL;
        }
        d->items = grown;
        d->cap = cap;
    }
    char *copy = strndup(path.ptr, path.len);
    if (copy == NULL) {
        return NULL;
    }
    struct dependency *added = &d->items[d->count++];
    *added = (struct dependency){.path = copy, .missing = missing};
    return added;
}

void dependencies_free(struct dependencies *d)
{
    for (size_t i = 0; i < d->count; i++) {
        free(d->items[i].path);
    }
    free(d->items);
    *d = (struct dependencies){0};
}

static uint64_t mtime_ns(const struct stat *st)
{
    return (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec;
}

static bool same_file(const struct dependency *d, const struct stat *st)
{
    return d->size == (uint64_t)st->st_size && d->mtime_ns == mtime_ns(st) && d->inode == (uint64_t)st->st_ino;
}

static void take_identity(struct dependency *d, const struct stat *st)
{
    d->size = (uint64_t)st->st_size;
    d->mtime_ns = mtime_ns(st);
    d->inode = (uint64_t)st->st_ino;
}

/* Hashes it between two looks at what it is, so that the hash is of the file that was looked at. */
static bool hash_held_still(struct dependency *d, unsigned char hash[HASH_SIZE])
{
    struct stat before;
    struct stat after;
    if (stat(d->path, &before) != 0 || !hash_file(d->path, hash) || stat(d->path, &after) != 0) {
        return false;
    }
    if (d->inode == 0) { /* from a compiler that gives only names */
        take_identity(d, &before);
    }
    return same_file(d, &before) && same_file(d, &after);
}

bool dependencies_hash(struct dependencies *d)
{
    bool same = true;
    for (size_t i = 0; i < d->count; i++) {
        same = d->items[i].missing || hash_held_still(&d->items[i], d->items[i].hash) ? same : false;
    }
    return same;
}

bool dependencies_confirm(struct dependencies *d)
{
    bool same = true;
    for (size_t i = 0; i < d->count && same; i++) {
        struct dependency *it = &d->items[i];
        unsigned char now[HASH_SIZE];
        it->inode = 0;
        same = it->missing || (hash_held_still(it, now) && memcmp(now, it->hash, HASH_SIZE) == 0);
    }
    return same;
}

bool dependencies_changed(const struct dependencies *d, bool thorough)
{
    for (size_t i = 0; i < d->count; i++) {
        const struct dependency *it = &d->items[i];
        struct stat st;
        bool there = stat(it->path, &st) == 0;
        if (it->missing) {
            if (there && S_ISREG(st.st_mode)) {
                return true;
            }
            continue;
        }
        if (!there) {
            return true;
        }
        if (!thorough && same_file(it, &st)) {
            continue;
        }
        unsigned char now[HASH_SIZE];
        if (!hash_file(it->path, now) || memcmp(now, it->hash, HASH_SIZE) != 0) {
            return true;
        }
    }
    return false;
}

static bool is_below(const char *path, const char *directory)
{
    size_t len = directory != NULL ? strlen(directory) : 0;
    return len > 0 && strncmp(path, directory, len) == 0 && path[len] == '/';
}

bool dependencies_unwatched(const struct dependencies *d, const char *web_root, const char *sdk_include)
{
    for (size_t i = 0; i < d->count; i++) {
        const char *path = d->items[i].path;
        /* "/site/../shared/x.h" is below the root in writing only. */
        bool climbs = strstr(path, "/../") != NULL;
        if (climbs || (!is_below(path, web_root) && !is_below(path, sdk_include))) {
            return true;
        }
    }
    return false;
}

bool dependencies_name(const struct dependencies *d, struct str name)
{
    for (size_t i = 0; i < d->count; i++) {
        struct str path = str_of(d->items[i].path);
        size_t slash = str_find_last(path, '/');
        if (str_eq(slash == SIZE_MAX ? path : str_from(path, slash + 1), name)) {
            return true;
        }
    }
    return false;
}

/* ---- hashing ------------------------------------------------------------------------------------ */

struct hasher {
    EVP_MD_CTX *context;
};

struct hasher *hasher_create(void)
{
    struct hasher *h = malloc(sizeof *h);
    if (h == NULL) {
        return NULL;
    }
    h->context = EVP_MD_CTX_new();
    if (h->context == NULL || EVP_DigestInit_ex(h->context, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(h->context);
        free(h);
        return NULL;
    }
    return h;
}

void hasher_add(struct hasher *h, const void *data, size_t len)
{
    EVP_DigestUpdate(h->context, data, len);
}

void hasher_add_field(struct hasher *h, struct str field)
{
    uint64_t len = field.len;
    hasher_add(h, &len, sizeof len);
    hasher_add(h, field.ptr != NULL ? field.ptr : "", field.len);
}

void hasher_finish(struct hasher *h, unsigned char out[HASH_SIZE])
{
    EVP_DigestFinal_ex(h->context, out, NULL);
    EVP_MD_CTX_free(h->context);
    free(h);
}

static int open_regular(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        return -1;
    }
    struct stat st;
    bool regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    if (!regular || st.st_size > FILE_MOST) {
        close(fd);
        errno = regular ? EFBIG : EINVAL;
        return -1;
    }
    return fd;
}

/* Feeds the file to the hasher and, when to >= 0, copies it there. False with errno. */
static bool pump(int from, int to, struct hasher *h)
{
    char block[65536];
    for (uint64_t all = 0; all <= FILE_MOST;) {
        ssize_t n = read(from, block, sizeof block);
        if (n == 0) {
            return true;
        }
        if (n < 0) {
            if (errno == EINTR) {
                continue;
            }
            return false;
        }
        hasher_add(h, block, (size_t)n);
        if (to >= 0 && !fd_write_all(to, block, (size_t)n)) {
            return false;
        }
        all += (uint64_t)n;
    }
    errno = EFBIG;
    return false;
}

bool hash_file(const char *path, unsigned char out[HASH_SIZE])
{
    int fd = open_regular(path);
    struct hasher *h = fd >= 0 ? hasher_create() : NULL;
    bool ok = h != NULL && pump(fd, -1, h);
    if (h != NULL) {
        hasher_finish(h, out);
    }
    if (fd >= 0) {
        close(fd);
    }
    return ok;
}

bool copy_file(const char *from, const char *to, unsigned char hash[HASH_SIZE])
{
    int in = open_regular(from);
    if (in < 0) {
        return false;
    }
    int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    struct hasher *h = out >= 0 ? hasher_create() : NULL;
    bool ok = h != NULL && pump(in, out, h);
    int reason = errno;
    if (h != NULL) {
        hasher_finish(h, hash);
    }
    close(in);
    if (out >= 0) {
        if (close(out) != 0 && ok) {
            reason = errno;
            ok = false;
        }
        if (!ok) {
            unlink(to);
        }
    }
    errno = reason;
    return ok;
}

void hash_hex(const unsigned char hash[HASH_SIZE], char out[HASH_HEX + 1])
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < HASH_SIZE; i++) {
        out[2 * i] = digits[hash[i] >> 4];
        out[2 * i + 1] = digits[hash[i] & 15];
    }
    out[HASH_HEX] = '\0';
}

bool hash_from_hex(struct str hex, unsigned char out[HASH_SIZE])
{
    if (hex.len != HASH_HEX) {
        return false;
    }
    for (size_t i = 0; i < HASH_SIZE; i++) {
        int high = hex_digit(hex.ptr[2 * i]);
        int low = hex_digit(hex.ptr[2 * i + 1]);
        if (high < 0 || low < 0) {
            return false;
        }
        out[i] = (unsigned char)(high << 4 | low);
    }
    return true;
}
