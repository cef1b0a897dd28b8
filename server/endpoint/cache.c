/* DESIGN: built objects outlive the server here. Layout of the directory, which is ours alone (0700):
 *   record/<source+compiler>   which files a build was made of, with the hash of each, and which
 *                              object it gave; a restart finds the object without compiling
 *   object/<content+compiler>.so
 *   run/<process>/             this process's private copies, one per load, removed when unloaded
 * A record counts only while every file in it has the recorded content and every file that was
 * looked for in vain is still absent; an object only when its bytes have the recorded hash. What
 * the record of a source that no longer builds names is its last good build. So
 * nothing needs fsync, and a damaged entry is a miss. Files appear by rename: servers may share the
 * directory. Until then they lie in run/<process>, which its owner holds locked (flock): what is
 * not locked was left by a process that died, half-made files with it, and is removed by the
 * next process that starts or by those that still run, within seconds. */
#include "base/file.h"
#include "endpoint/build.h"
#include "observe/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    RECORD_MAX = 4 * 1024 * 1024,
    KEEP_SECONDS = 30 * 24 * 3600,
    RUN_ATTEMPTS = 100,
};
static const uint64_t KEEP_BYTES = 512ull * 1024 * 1024;

struct cache {
    char *directory;
    char *run; /* <directory>/run/<process> */
    int run_fd; /* holds the lock */
    _Atomic unsigned next;
};

/* ---- directories ------------------------------------------------------------------------------------ */

static bool is_inside(const char *path, const char *root)
{
    size_t len = strlen(root);
    return len > 0 && strncmp(path, root, len) == 0 && (path[len] == '/' || path[len] == '\0');
}

/* Where the path leads, as far as it is there. */
static bool leads_inside(const char *path, const char *web_root)
{
    char known[PATH_MAX];
    snprintf(known, sizeof known, "%s", path);
    for (;;) {
        char *real = realpath(known, NULL);
        if (real != NULL) {
            bool inside = is_inside(real, web_root);
            free(real);
            return inside;
        }
        char *slash = strrchr(known, '/');
        if (errno != ENOENT || slash == NULL || slash == known) {
            return false; /* making it fails as well */
        }
        *slash = '\0';
    }
}

/* Makes it ours alone, or says why it cannot be used. */
static bool claim_directory(const char *path, const char *web_root, char *why, size_t size)
{
    if (leads_inside(path, web_root)) {
        snprintf(why, size, "it lies in the web directory");
        return false;
    }
    if (!dir_make(path, 0700)) {
        snprintf(why, size, "%s", strerror(errno));
        return false;
    }
    struct stat st;
    if (lstat(path, &st) != 0 || !S_ISDIR(st.st_mode)) {
        snprintf(why, size, "it is not a directory");
        return false;
    }
    if (st.st_uid != geteuid()) {
        snprintf(why, size, "it belongs to another user");
        return false;
    }
    if ((st.st_mode & 077) != 0 && chmod(path, 0700) != 0) {
        snprintf(why, size, "its mode cannot be made 0700: %s", strerror(errno));
        return false;
    }
    if (access(path, R_OK | W_OK | X_OK) != 0) {
        snprintf(why, size, "%s", strerror(errno));
        return false;
    }
    return true;
}

static char *format_path(const char *a, const char *b, const char *c)
{
    char *path = NULL;
    return asprintf(&path, "%s%s%s", a, b, c) >= 0 ? path : NULL;
}

/* The directories to try, best first; NULL at the end. */
static void list_candidates(char *out[6])
{
    size_t n = 0;
    const char *systemd = getenv("CACHE_DIRECTORY");
    const char *xdg = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    const char *temp = getenv("TMPDIR");
    if (systemd != NULL && systemd[0] == '/') {
        out[n++] = format_path(systemd, "", "");
    }
    if (geteuid() == 0 || access("/var/cache/kiln", W_OK) == 0) {
        out[n++] = format_path("/var/cache/kiln", "", "");
    }
    if (xdg != NULL && xdg[0] == '/') {
        out[n++] = format_path(xdg, "/kiln", "");
    }
    if (home != NULL && home[0] == '/') {
        out[n++] = format_path(home, "/.cache/kiln", "");
    }
    char user[24];
    snprintf(user, sizeof user, "/kiln-%u", (unsigned)geteuid());
    out[n++] = format_path(temp != NULL && temp[0] == '/' ? temp : "/tmp", user, "");
    out[n] = NULL;
}

static char *choose_directory(const char *configured, const char *web_root)
{
    char why[256];
    if (configured != NULL && configured[0] != '\0') {
        if (claim_directory(configured, web_root, why, sizeof why)) {
            return strdup(configured);
        }
        log_error("CacheDir %s cannot be used: %s", configured, why);
        return NULL;
    }
    char *candidates[6];
    char *chosen = NULL;
    list_candidates(candidates);
    for (size_t i = 0; candidates[i] != NULL; i++) {
        if (chosen == NULL && claim_directory(candidates[i], web_root, why, sizeof why)) {
            chosen = candidates[i];
            continue;
        }
        if (chosen == NULL) {
            log_debug("cache directory %s cannot be used: %s", candidates[i], why);
        }
        free(candidates[i]);
    }
    if (chosen == NULL) {
        log_error("no directory for built endpoints can be made; set CacheDir to one outside the web directory");
    }
    return chosen;
}

void directory_remove(const char *directory, unsigned depth)
{
    DIR *stream = opendir(directory);
    struct dirent *entry;
    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        if (unlinkat(dirfd(stream), entry->d_name, 0) != 0 && depth > 0) {
            char below[PATH_MAX];
            if ((size_t)snprintf(below, sizeof below, "%s/%s", directory, entry->d_name) < sizeof below) {
                directory_remove(below, depth - 1);
            }
        }
    }
    if (stream != NULL) {
        closedir(stream);
    }
    rmdir(directory);
}

void cache_remove_dead_runs(const struct cache *cache)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/run", cache->directory);
    DIR *stream = opendir(path);
    struct dirent *entry;
    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
            (size_t)snprintf(path, sizeof path, "%s/run/%s", cache->directory, name) >= sizeof path ||
            (cache->run != NULL && strcmp(path, cache->run) == 0)) {
            continue;
        }
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) {
            directory_remove(path, 1);
        }
        if (fd >= 0) {
            close(fd);
        }
    }
    if (stream != NULL) {
        closedir(stream);
    }
}

/* Until it is locked it looks like one of the dead, and another process may remove it: then once more. */
static bool make_run_directory(struct cache *cache)
{
    for (int i = 0; i < RUN_ATTEMPTS; i++) {
        char path[PATH_MAX];
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        if ((size_t)snprintf(path, sizeof path, "%s/run/%ld-%lld%09ld", cache->directory, (long)getpid(),
                             (long long)now.tv_sec, now.tv_nsec) >= sizeof path) {
            errno = ENAMETOOLONG;
            return false;
        }
        if (mkdir(path, 0700) != 0) {
            return false;
        }
        cache->run_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (cache->run_fd >= 0 && flock(cache->run_fd, LOCK_EX | LOCK_NB) == 0 && access(path, F_OK) == 0) {
            cache->run = strdup(path);
            return cache->run != NULL;
        }
        if (cache->run_fd >= 0) {
            close(cache->run_fd);
            cache->run_fd = -1;
        } else if (errno != ENOENT) {
            return false;
        }
    }
    errno = EBUSY;
    return false;
}

struct cache *cache_open(const char *configured, const char *web_root)
{
    struct cache *cache = calloc(1, sizeof *cache);
    if (cache == NULL) {
        return NULL;
    }
    cache->run_fd = -1;
    cache->directory = choose_directory(configured, web_root);
    if (cache->directory == NULL) {
        free(cache);
        return NULL;
    }
    static const char *const parts[] = {"/record", "/object", "/run"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        char *path = format_path(cache->directory, parts[i], "");
        if (path == NULL || (mkdir(path, 0700) != 0 && errno != EEXIST)) {
            log_error("cannot make %s: %s", path != NULL ? path : parts[i], strerror(errno));
        }
        free(path);
    }
    cache_remove_dead_runs(cache);
    if (!make_run_directory(cache)) {
        log_error("cannot make a directory in %s/run: %s", cache->directory, strerror(errno));
        cache_close(cache);
        return NULL;
    }
    return cache;
}

void cache_close(struct cache *cache)
{
    if (cache->run != NULL) {
        directory_remove(cache->run, 1);
    }
    if (cache->run_fd >= 0) {
        close(cache->run_fd);
    }
    free(cache->run);
    free(cache->directory);
    free(cache);
}

const char *cache_directory(const struct cache *cache)
{
    return cache->directory;
}

void cache_private_path(struct cache *cache, struct str name, const char *suffix, char out[PATH_MAX])
{
    size_t slash = str_find_last(name, '/');
    struct str base = slash == SIZE_MAX ? name : str_from(name, slash + 1);
    /* A path with ':' or a blank would be cut by tools that print it. */
    char clean[64];
    size_t n = 0;
    for (size_t i = 0; i < base.len && n < sizeof clean - 1; i++) {
        char c = base.ptr[i];
        char low = ascii_lower(c);
        clean[n++] = (low >= 'a' && low <= 'z') || ascii_is_digit(c) || c == '.' || c == '_' || c == '-' ? c : '_';
    }
    clean[n] = '\0';
    unsigned number = atomic_fetch_add(&cache->next, 1) + 1;
    if (snprintf(out, PATH_MAX, "%s/%06u-%s%s", cache->run, number, clean, suffix) >= PATH_MAX) {
        out[0] = '\0'; /* every use of it fails and says so */
    }
}

/* ---- entries ------------------------------------------------------------------------------------------ */

static void entry_names(struct cache *cache, const char *source, const unsigned char fingerprint[HASH_SIZE],
                        const unsigned char *content, char path[PATH_MAX])
{
    unsigned char hash[HASH_SIZE] = {0};
    char hex[HASH_HEX + 1];
    struct hasher *h = hasher_create();
    if (h != NULL) {
        hasher_add(h, fingerprint, HASH_SIZE);
        if (content != NULL) {
            hasher_add(h, content, HASH_SIZE);
        } else {
            hasher_add_field(h, str_of(source));
        }
        hasher_finish(h, hash);
    }
    hash_hex(hash, hex);
    if (snprintf(path, PATH_MAX, "%s/%s/%s%s", cache->directory, content != NULL ? "object" : "record", hex,
                 content != NULL ? ".so" : "") >= PATH_MAX) {
        path[0] = '\0';
    }
}

/* One line of a record: a letter, a blank, and the rest; a hash and a blank before a path. */
static bool parse_record_line(struct str line, struct build_result *result, unsigned char object[HASH_SIZE],
                              bool *complete)
{
    if (line.len < 2 || line.ptr[1] != ' ') {
        return false;
    }
    struct str rest = str_from(line, 2);
    switch (line.ptr[0]) {
    case 'O': return hash_from_hex(rest, object);
    case 'C': return hash_from_hex(rest, result->content);
    case 'M': return dependencies_add(&result->dependencies, rest, true) != NULL;
    case 'F': {
        unsigned char hash[HASH_SIZE];
        if (rest.len <= HASH_HEX + 1 || !hash_from_hex(str_first(rest, HASH_HEX), hash)) {
            return false;
        }
        struct dependency *d = dependencies_add(&result->dependencies, str_from(rest, HASH_HEX + 1), false);
        if (d != NULL) {
            memcpy(d->hash, hash, HASH_SIZE);
        }
        return d != NULL;
    }
    case 'E': *complete = true; return true;
    default: return false;
    }
}

static bool parse_record(struct str text, struct build_result *result, unsigned char object[HASH_SIZE])
{
    bool complete = false;
    while (text.len > 0) {
        size_t end = str_find(text, '\n');
        if (end == SIZE_MAX || complete || !parse_record_line(str_first(text, end), result, object, &complete)) {
            return false;
        }
        text = str_from(text, end + 1);
    }
    return complete;
}

static void touch(const char *path)
{
    utimensat(AT_FDCWD, path, NULL, 0);
}

/* Reads the record of the last build and copies its object; `up_to_date`: only when no file differs from it. */
static bool fetch(struct cache *cache, const char *source, const unsigned char fingerprint[HASH_SIZE],
                  const char *output, bool up_to_date, struct build_result *result)
{
    char record[PATH_MAX];
    char object[PATH_MAX];
    unsigned char expected[HASH_SIZE] = {0};
    unsigned char found[HASH_SIZE];
    entry_names(cache, source, fingerprint, NULL, record);
    struct buffer text = BUFFER_EMPTY;
    bool hit = file_read(record, RECORD_MAX, &text) && parse_record(buffer_str(&text), result, expected) &&
               (!up_to_date || !dependencies_changed(&result->dependencies, true));
    buffer_free(&text);
    if (hit) {
        entry_names(cache, source, fingerprint, result->content, object);
        hit = copy_file(object, output, found);
        if (hit && memcmp(found, expected, HASH_SIZE) != 0) {
            log_warning("%s is damaged; it is built again", object);
            unlink(output);
            unlink(object);
            hit = false;
        }
    }
    /* From now on its times are those of today's files, which may have changed while the object was copied. */
    hit = hit && (!up_to_date || dependencies_confirm(&result->dependencies));
    if (!hit) {
        build_result_free(result);
        return false;
    }
    touch(record);
    touch(object);
    result->ok = true;
    result->from_cache = true;
    return true;
}

bool cache_lookup(struct cache *cache, const char *source, const unsigned char fingerprint[HASH_SIZE],
                  const char *output, struct build_result *result)
{
    return fetch(cache, source, fingerprint, output, true, result);
}

/* When a record was last written or used; 0: there is none. */
static int64_t record_time(struct cache *cache, const char *source, const unsigned char fingerprint[HASH_SIZE])
{
    char record[PATH_MAX];
    struct stat st;
    entry_names(cache, source, fingerprint, NULL, record);
    return stat(record, &st) == 0 ? (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec : 0;
}

bool cache_last_good(struct cache *cache, const char *source, const struct settings *settings, const char *output,
                     struct build_result *result)
{
    int64_t native = record_time(cache, source, settings->native_fingerprint);
    int64_t tcc = record_time(cache, source, settings->tcc_fingerprint);
    bool optimized = native > tcc;
    bool found = fetch(cache, source, optimized ? settings->native_fingerprint : settings->tcc_fingerprint, output,
                       false, result);
    result->optimized = optimized;
    return found;
}

static bool print_record(const struct build_result *result, const unsigned char object[HASH_SIZE], struct buffer *out)
{
    char hex[HASH_HEX + 1];
    hash_hex(object, hex);
    buffer_printf(out, "O %s\n", hex);
    hash_hex(result->content, hex);
    buffer_printf(out, "C %s\n", hex);
    for (size_t i = 0; i < result->dependencies.count; i++) {
        const struct dependency *d = &result->dependencies.items[i];
        if (strchr(d->path, '\n') != NULL) {
            return false; /* a record is lines */
        }
        hash_hex(d->hash, hex);
        buffer_printf(out, d->missing ? "M %s%s\n" : "F %s %s\n", d->missing ? "" : hex, d->path);
    }
    buffer_append_z(out, "E \n");
    return !out->failed;
}

void cache_store(struct cache *cache, const char *source, const unsigned char fingerprint[HASH_SIZE],
                 const char *object, const struct build_result *result)
{
    char record[PATH_MAX];
    char entry[PATH_MAX];
    char fresh[PATH_MAX];
    unsigned char hash[HASH_SIZE];
    entry_names(cache, source, fingerprint, NULL, record);
    entry_names(cache, source, fingerprint, result->content, entry);
    cache_private_path(cache, STR("object"), ".new", fresh);
    bool ok = copy_file(object, fresh, hash) && rename(fresh, entry) == 0;
    struct buffer text = BUFFER_EMPTY;
    if (ok && print_record(result, hash, &text)) {
        cache_private_path(cache, STR("record"), ".new", fresh);
        int fd = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        ok = fd >= 0 && fd_write_all(fd, text.data, text.len);
        if (fd >= 0) {
            close(fd);
        }
        ok = ok && rename(fresh, record) == 0;
    }
    if (!ok) {
        log_debug("cannot keep the build of %s in %s: %s", source, cache->directory, strerror(errno));
        unlink(fresh);
    }
    buffer_free(&text);
}

/* ---- pruning -------------------------------------------------------------------------------------------- */

struct entry {
    char *name;
    int64_t used; /* seconds */
    uint64_t size;
};

static int newest_first(const void *a, const void *b)
{
    const struct entry *left = a;
    const struct entry *right = b;
    return left->used > right->used ? -1 : left->used < right->used;
}

/* Keeps the newest `keep_bytes` of what was used in the last KEEP_SECONDS. */
static void prune_directory(const char *path, uint64_t keep_bytes)
{
    DIR *stream = opendir(path);
    if (stream == NULL) {
        return;
    }
    struct entry *entries = NULL;
    size_t count = 0;
    size_t cap = 0;
    int64_t now = (int64_t)time(NULL);
    struct dirent *it;
    while ((it = readdir(stream)) != NULL) {
        struct stat st;
        if (fstatat(dirfd(stream), it->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode)) {
            continue;
        }
        int64_t age = now - (int64_t)st.st_mtime;
        if (age > KEEP_SECONDS) {
            unlinkat(dirfd(stream), it->d_name, 0);
            continue;
        }
        if (count == cap) {
            cap = cap == 0 ? 64 : cap * 2;
            struct entry *grown = realloc(entries, cap * sizeof *grown);
            if (grown == NULL) {
                break;
            }
            entries = grown;
        }
        char *name = strdup(it->d_name);
        if (name != NULL) {
            entries[count++] = (struct entry){name, (int64_t)st.st_mtime, (uint64_t)st.st_size};
        }
    }
    if (count > 0) {
        qsort(entries, count, sizeof *entries, newest_first);
    }
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++) {
        total += entries[i].size;
        if (total > keep_bytes) {
            unlinkat(dirfd(stream), entries[i].name, 0);
        }
        free(entries[i].name);
    }
    free(entries);
    closedir(stream);
}

void cache_prune(struct cache *cache)
{
    static const char *const parts[] = {"object", "record"};
    for (size_t i = 0; i < 2; i++) {
        char path[PATH_MAX];
        if ((size_t)snprintf(path, sizeof path, "%s/%s", cache->directory, parts[i]) < sizeof path) {
            prune_directory(path, i == 0 ? KEEP_BYTES : KEEP_BYTES / 16);
        }
    }
}
