/* DESIGN: opening the two files of the store (see lmdb.c), under a lock, because another worker
 * may do the same. `boot` names the start of the machine (the kernel's boot id) in which
 * live.mdb was made. As long as it is the running one, whatever was committed to live.mdb is
 * there. Otherwise the page cache it relied on is gone: it is made again as a copy of
 * saved.mdb before it is looked at.
 * Nothing that may hold sessions is deleted because it is damaged or missing its partner:
 * the server refuses to start and says what can be done. */
#include "base/file.h"
#include "observe/log.h"
#include "sessions/lmdb_private.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_READERS = 2048, MAP_FACTOR = 4 };
#define MAP_LEAST ((uint64_t)64 << 20)
#define FORMAT "kiln-sessions-1"
#define NO_BOOT_ID "unknown"

static bool path_of(const struct store *store, const char *name, char path[PATH_MAX])
{
    int n = snprintf(path, PATH_MAX, "%s/%s", store->directory, name);
    return n > 0 && n < PATH_MAX;
}

static bool file_is_there(const struct store *store, const char *name)
{
    char path[PATH_MAX];
    return path_of(store, name, path) && access(path, F_OK) == 0;
}

static bool fail(struct store *store, struct buffer *error, const char *name, const char *what)
{
    buffer_printf(error, "sessions: %s/%s: %s", store->directory, name, what);
    return false;
}

/* What can be done when a file cannot be used. */
static bool fail_lmdb(struct store *store, struct buffer *error, const struct table *table, int rc)
{
    buffer_printf(error, "sessions: %s/%s: %s", store->directory, table->name, mdb_strerror(rc));
    bool damaged = rc == MDB_INVALID || rc == MDB_CORRUPTED || rc == MDB_PAGE_NOTFOUND || rc == MDB_VERSION_MISMATCH ||
                   rc == MDB_INCOMPATIBLE || rc == MDB_NOTFOUND;
    if (damaged) {
        const char *other = table == &store->live ? store->saved.name : store->live.name;
        buffer_printf(error,
                      "; it is damaged or was not made by Kiln, and is left as it is. Move %s away and start again: it "
                      "is made anew from %s. To begin with no sessions, move both away",
                      table->name, other);
    }
    return false;
}

/* ---- boot ---------------------------------------------------------------------------------------- */

static void find_boot_id(struct store *store)
{
    if (store->boot_id[0] != '\0') {
        return;
    }
    struct buffer text = BUFFER_EMPTY;
    bool ok = file_read("/proc/sys/kernel/random/boot_id", 256, &text);
    struct str id = str_first(buffer_str(&text), ok ? 36 : 0);
    if (id.len == 36) {
        snprintf(store->boot_id, sizeof store->boot_id, "%.36s", id.ptr);
    } else {
        snprintf(store->boot_id, sizeof store->boot_id, "%s", NO_BOOT_ID);
        log_warning("sessions: the kernel tells no boot id; a killed server continues from %s", store->saved.name);
    }
    buffer_free(&text);
}

static bool live_is_of_this_boot(struct store *store)
{
    char path[PATH_MAX];
    struct buffer text = BUFFER_EMPTY;
    bool same = path_of(store, "boot", path) && file_read(path, 256, &text) &&
                str_eq(str_trim(str_first(buffer_str(&text), strlen(store->boot_id))), str_of(store->boot_id)) &&
                strcmp(store->boot_id, NO_BOOT_ID) != 0;
    buffer_free(&text);
    return same;
}

static bool write_boot(struct store *store, struct buffer *error)
{
    char path[PATH_MAX];
    char line[sizeof store->boot_id + 1];
    int n = snprintf(line, sizeof line, "%s\n", store->boot_id);
    if (!path_of(store, "boot", path) || !file_replace(path, line, (size_t)n, 0600)) {
        return fail(store, error, "boot", strerror(errno));
    }
    return true;
}

/* ---- one file ---------------------------------------------------------------------------------------- */

static uint64_t map_size(const struct store *store)
{
    uint64_t size = store->max_bytes > UINT64_MAX / MAP_FACTOR ? UINT64_MAX / 2 : store->max_bytes * MAP_FACTOR;
    size = size < MAP_LEAST ? MAP_LEAST : size;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return (size + page - 1) / page * page;
}

/* The touch of a page that a file cut short does not have is a SIGBUS. A file may be short for
 * good, though, when its last pages are free and were never written. So a short file is
 * filled up with zeros, which LMDB takes for no page of its own, and read through once
 * (read_through); *short_by says by how much. */
static int fill_up(MDB_env *env, off_t *short_by)
{
    MDB_envinfo info;
    MDB_stat stat;
    struct stat st;
    int fd;
    int rc = mdb_env_info(env, &info);
    rc = rc == 0 ? mdb_env_stat(env, &stat) : rc;
    rc = rc == 0 ? mdb_env_get_fd(env, &fd) : rc;
    if (rc != 0 || fstat(fd, &st) != 0) {
        return rc != 0 ? rc : errno;
    }
    off_t wanted = (off_t)(info.me_last_pgno + 1) * (off_t)stat.ms_psize;
    *short_by = wanted > st.st_size ? wanted - st.st_size : 0;
    return *short_by > 0 && ftruncate(fd, wanted) != 0 ? errno : 0;
}

/* Back to the length it had: it is damaged, and left as it was. */
static void cut_back(MDB_env *env, off_t by)
{
    struct stat st;
    int fd;
    if (by > 0 && mdb_env_get_fd(env, &fd) == 0 && fstat(fd, &st) == 0 && ftruncate(fd, st.st_size - by) != 0) {
        log_warning("sessions: cannot cut a damaged file back to its length: %s", strerror(errno));
    }
}

/* LMDB meets some damage with an assertion. While a file is opened, that is an error like any
 * other (guarded); later it ends the process, with these words. */
static _Thread_local sigjmp_buf *way_out;

static void on_broken_assertion(MDB_env *env, const char *message)
{
    if (way_out != NULL) {
        siglongjmp(*way_out, 1);
    }
    const char *path = "";
    mdb_env_get_path(env, &path);
    log_error(
        "sessions: %s is damaged (%s). Stop the server and move that file away: it is made anew from the other one",
        path, message);
}

static int guarded(int (*step)(struct table *table), struct table *table)
{
    sigjmp_buf buffer;
    volatile int rc = MDB_CORRUPTED;
    if (sigsetjmp(buffer, 0) == 0) {
        way_out = &buffer;
        rc = step(table);
    }
    way_out = NULL;
    if (table->reading != NULL) {
        mdb_cursor_close(table->reading);
        table->reading = NULL;
    }
    if (table->opening != NULL) {
        mdb_txn_abort(table->opening);
        table->opening = NULL;
    }
    return rc;
}

static int read_through(struct table *table)
{
    MDB_val key;
    MDB_val value;
    int rc = mdb_txn_begin(table->env, NULL, MDB_RDONLY, &table->opening);
    if (rc == 0) {
        rc = mdb_cursor_open(table->opening, table->rows, &table->reading);
    }
    while (rc == 0 && (rc = mdb_cursor_get(table->reading, &key, &value, MDB_NEXT)) == 0) {
        /* No row that takes pages of its own begins with 0. */
        if (value.mv_size > 1024 && *(const char *)value.mv_data == '\0') {
            rc = MDB_CORRUPTED;
        }
    }
    return rc == MDB_NOTFOUND ? 0 : rc;
}

static int check_format(struct table *table, MDB_txn *txn)
{
    MDB_val key = {1, "F"};
    MDB_val value;
    MDB_val wanted = {sizeof FORMAT - 1, FORMAT};
    int rc = mdb_get(txn, table->rows, &key, &value);
    if (rc == MDB_NOTFOUND) {
        MDB_stat stat;
        rc = mdb_stat(txn, table->rows, &stat);
        if (rc == 0) {
            rc = stat.ms_entries == 0 ? mdb_put(txn, table->rows, &key, &wanted, 0) : MDB_INCOMPATIBLE;
        }
        return rc;
    }
    if (rc == 0 && (value.mv_size != wanted.mv_size || memcmp(value.mv_data, FORMAT, wanted.mv_size) != 0)) {
        return MDB_VERSION_MISMATCH;
    }
    return rc;
}

static int open_tables(struct table *table)
{
    int rc = mdb_txn_begin(table->env, NULL, 0, &table->opening);
    if (rc == 0) {
        rc = mdb_dbi_open(table->opening, "rows", MDB_CREATE, &table->rows);
    }
    if (rc == 0 && table->has_dirty) {
        rc = mdb_dbi_open(table->opening, "dirty", MDB_CREATE, &table->dirty);
    }
    if (rc == 0) {
        rc = check_format(table, table->opening);
    }
    if (rc == 0) {
        MDB_txn *txn = table->opening;
        table->opening = NULL;
        rc = mdb_txn_commit(txn);
    }
    return rc;
}

static int open_env(struct store *store, struct table *table, unsigned flags)
{
    char path[PATH_MAX];
    int fd;
    int rc = path_of(store, table->name, path) ? mdb_env_create(&table->env) : ENAMETOOLONG;
    if (rc != 0) {
        table->env = NULL;
        return rc;
    }
    mdb_env_set_maxdbs(table->env, 2);
    mdb_env_set_maxreaders(table->env, MAX_READERS);
    mdb_env_set_mapsize(table->env, map_size(store));
    mdb_env_set_assert(table->env, on_broken_assertion);
    rc = mdb_env_open(table->env, path, MDB_NOSUBDIR | MDB_NOTLS | flags, 0600);
    if (rc == 0 && mdb_env_get_fd(table->env, &fd) == 0) {
        fcntl(fd, F_SETFD, FD_CLOEXEC); /* not for compilers and other children */
    }
    off_t short_by = 0;
    rc = rc == 0 ? fill_up(table->env, &short_by) : rc;
    rc = rc == 0 ? guarded(open_tables, table) : rc;
    rc = rc == 0 && short_by > 0 ? guarded(read_through, table) : rc;
    if (rc != 0) {
        cut_back(table->env, short_by);
    }
    return rc;
}

static bool open_file(struct store *store, struct table *table, unsigned flags, struct buffer *error)
{
    int rc = open_env(store, table, flags);
    return rc == 0 || fail_lmdb(store, error, table, rc);
}

/* ---- copies --------------------------------------------------------------------------------------------- */

static bool remove_file(struct store *store, const char *name)
{
    char path[PATH_MAX];
    return path_of(store, name, path) && (unlink(path) == 0 || errno == ENOENT);
}

/* `name` becomes a copy of the open file, whole or not at all. */
static bool copy_file(struct store *store, struct table *from, const char *name, struct buffer *error)
{
    char temporary[PATH_MAX];
    char path[PATH_MAX];
    char lock_name[64];
    snprintf(lock_name, sizeof lock_name, "%s-lock", name);
    if (!path_of(store, "copy.tmp", temporary) || !path_of(store, name, path) || !remove_file(store, "copy.tmp") ||
        !remove_file(store, name) || !remove_file(store, lock_name)) {
        return fail(store, error, name, strerror(errno));
    }
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        return fail(store, error, "copy.tmp", strerror(errno));
    }
    int rc = mdb_env_copyfd2(from->env, fd, 0);
    if (rc == 0 && fsync(fd) != 0) {
        rc = errno;
    }
    close(fd);
    if (rc == 0 && rename(temporary, path) != 0) {
        rc = errno;
    }
    return rc == 0 || fail(store, error, "copy.tmp", mdb_strerror(rc));
}

/* After a restart of the machine, or at the very first start. */
static bool make_live(struct store *store, struct buffer *error)
{
    if (file_is_there(store, store->live.name)) {
        log_notice("sessions: the machine was restarted; going on with %s/%s", store->directory, store->saved.name);
    }
    return copy_file(store, &store->saved, store->live.name, error) && write_boot(store, error);
}

/* ---- all ------------------------------------------------------------------------------------------------- */

static bool open_both(struct store *store, struct buffer *error)
{
    bool has_saved = file_is_there(store, store->saved.name);
    bool has_live = file_is_there(store, store->live.name);
    bool believed = has_live && live_is_of_this_boot(store);
    if (has_live && !has_saved) {
        if (!believed) {
            return fail(store, error, store->saved.name,
                        "is missing, and live.mdb alone may be incomplete since the machine was restarted. Put "
                        "saved.mdb back, or move live.mdb away to begin with no sessions");
        }
        if (!open_file(store, &store->live, MDB_NOSYNC, error) ||
            !copy_file(store, &store->live, store->saved.name, error)) {
            return false;
        }
        return open_file(store, &store->saved, 0, error);
    }
    if (!open_file(store, &store->saved, 0, error)) {
        return false;
    }
    return (believed || make_live(store, error)) && open_file(store, &store->live, MDB_NOSYNC, error);
}

/* The directory itself: private, on the disk with its entries. -1 with a message. */
static int open_directory(struct store *store, struct buffer *error)
{
    if (!dir_make(store->directory, 0700)) {
        fail(store, error, "", strerror(errno));
        return -1;
    }
    int fd = open(store->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0) {
        fail(store, error, "", strerror(errno));
        return -1;
    }
    if ((st.st_mode & 0077) != 0 && fchmod(fd, st.st_mode & 07700) != 0) {
        log_warning("sessions: %s can be entered by others; chmod it to 0700", store->directory);
    }
    return fd;
}

bool lmdb_files_open(struct store *store, struct buffer *error)
{
    int directory = open_directory(store, error);
    if (directory < 0) {
        return false;
    }
    int lock = openat(directory, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    bool ok = lock >= 0 && flock(lock, LOCK_EX) == 0;
    if (!ok) {
        fail(store, error, "lock", strerror(errno));
    } else {
        find_boot_id(store);
        ok = open_both(store, error);
    }
    if (ok && fsync(directory) != 0) {
        ok = fail(store, error, "", strerror(errno));
    }
    if (!ok) {
        lmdb_files_close(store);
    }
    if (lock >= 0) {
        close(lock);
    }
    close(directory);
    return ok;
}

void lmdb_files_close(struct store *store)
{
    if (store->live.env != NULL) {
        mdb_env_close(store->live.env);
        store->live.env = NULL;
    }
    if (store->saved.env != NULL) {
        mdb_env_close(store->saved.env);
        store->saved.env = NULL;
    }
}
