#include "route/watch.h"

#include "base/check.h"
#include "base/epoch.h"
#include "endpoint/loader.h"
#include "observe/log.h"
#include "route/scan.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

enum {
    QUIET_MS = 50, /* after the last sign of writing */
    LONGEST_MS = 1000, /* for a file that never falls quiet */
    ROOT_CHECK_MS = 1000, /* also of links that lead out of the root */
    RETRY_MS = 60000, /* scan of everything while degraded */
    READS_AT_ONCE = 16,
    EVENTS = IN_CREATE | IN_CLOSE_WRITE | IN_MODIFY | IN_ATTRIB | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE |
             IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR | IN_EXCL_UNLINK,
    PARENT_EVENTS = IN_CREATE | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE | IN_ONLYDIR | IN_MASK_ADD,
};

/* A name that waits for quiet. */
struct pending {
    struct list node; /* in `queue`, the one due first at the head */
    uint64_t first_ms;
    uint64_t due_ms;
    size_t length;
    char path[];
};

static int inotify = -1;
static int wake = -1;
static pthread_t thread;
static bool thread_runs;
static struct map dirs_by_watch; /* watch descriptor -> struct dir chain */
static struct map pending_by_path;
static struct list queue = {&queue, &queue};
static int parent_watch = -1; /* of the directory that holds the root */
static bool refused; /* the limit was reached in this scan: do not ask again */
static bool said_refused;
static bool said_root_gone;
static bool root_event;
static bool overflowed;
static uint64_t links_due_ms; /* 0: no need */
static uint64_t next_root_check_ms;
static uint64_t next_retry_ms;

static _Atomic bool stop_wanted;
static _Atomic bool scan_wanted;
static pthread_mutex_t settle_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t settle_done_changed = PTHREAD_COND_INITIALIZER;
static uint64_t settle_wanted;
static uint64_t settle_done;

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000 + 1; /* never 0 */
}

static struct str key_of(const int *watch)
{
    return (struct str){(const char *)watch, sizeof *watch};
}

/* ---- watches ------------------------------------------------------------------------------- */

void watch_drop(struct dir *dir)
{
    if (dir->watch < 0) {
        return;
    }
    struct str key = key_of(&dir->watch);
    struct dir *first = map_get(&dirs_by_watch, key);
    if (first == dir) {
        map_remove(&dirs_by_watch, key);
        if (dir->same_watch != NULL) {
            map_put(&dirs_by_watch, key, dir->same_watch, NULL);
        } else if (dir->watch != parent_watch) {
            inotify_rm_watch(inotify, dir->watch);
            atomic_fetch_sub(&tree.watches, 1);
        }
    } else {
        while (first != NULL && first->same_watch != dir) {
            first = first->same_watch;
        }
        if (first != NULL) {
            first->same_watch = dir->same_watch;
        }
    }
    dir->same_watch = NULL;
    dir->watch = -1;
}

static void say_refused(const char *path)
{
    refused = true;
    atomic_store(&tree.degraded, true);
    if (said_refused) {
        return;
    }
    said_refused = true;
    unsigned long long watched = atomic_load(&tree.watches);
    log_warning("inotify limit reached at %s after %llu directories: from now on each request checks the disk for "
                "changes. Raise it: sysctl fs.inotify.max_user_watches=%llu",
                path, watched, watched < 262144 ? 524288ULL : watched * 4);
}

void watch_add(struct dir *dir, int fd, const char *path)
{
    if (inotify < 0 || (refused && dir->watch < 0)) {
        return;
    }
    char name[32];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    int watch = inotify_add_watch(inotify, name, EVENTS);
    if (watch < 0 && errno == ENOENT) {
        watch = inotify_add_watch(inotify, path, EVENTS);
    }
    if (watch < 0 && (errno == ENOSPC || errno == ENOMEM)) {
        say_refused(path);
    }
    if (watch == dir->watch) {
        return;
    }
    watch_drop(dir);
    if (watch < 0) {
        return;
    }
    dir->watch = watch;
    void *before = NULL;
    if (!map_put(&dirs_by_watch, key_of(&watch), dir, &before)) {
        dir->watch = -1;
        inotify_rm_watch(inotify, watch);
        say_refused(path);
        return;
    }
    dir->same_watch = before;
    if (before == NULL) {
        atomic_fetch_add(&tree.watches, 1);
    }
}

void watch_note_links(void)
{
    if (links_due_ms == 0 && !list_is_empty(&tree.links) && thread_runs) {
        links_due_ms = now_ms() + QUIET_MS;
    }
}

static void watch_parent_of_root(void)
{
    struct str root = tree.settings.root;
    size_t slash = str_find_last(root, '/');
    char *parent = slash == 0 ? strdup("/") : strndup(root.ptr, slash);
    if (parent != NULL && inotify >= 0) {
        parent_watch = inotify_add_watch(inotify, parent, PARENT_EVENTS);
    }
    free(parent);
}

/* ---- names that wait for quiet ------------------------------------------------------------------ */

static size_t path_join(const struct dir *dir, struct str name, char out[PATH_MAX])
{
    struct str base = dir->cell != NULL ? dir->cell->node.file : tree.settings.root;
    if (base.len + 1 + name.len >= PATH_MAX) {
        return 0;
    }
    memcpy(out, base.ptr, base.len);
    out[base.len] = '/';
    memcpy(out + base.len + 1, name.ptr, name.len);
    return base.len + 1 + name.len;
}

static void wait_for_quiet(struct str path, uint64_t now)
{
    struct pending *p = map_get(&pending_by_path, path);
    if (p == NULL) {
        p = malloc(sizeof *p + path.len);
        if (p == NULL || !map_put(&pending_by_path, path, p, NULL)) {
            free(p);
            overflowed = true; /* a scan will find it */
            return;
        }
        memcpy(p->path, path.ptr, path.len);
        p->length = path.len;
        p->first_ms = now;
        list_init(&p->node);
    } else if (now + QUIET_MS > p->first_ms + LONGEST_MS) {
        return;
    }
    p->due_ms = now + QUIET_MS;
    list_remove(&p->node);
    list_append(&queue, &p->node);
}

static void forget_pending(struct str path)
{
    struct pending *p = map_remove(&pending_by_path, path);
    if (p != NULL) {
        list_remove(&p->node);
        free(p);
    }
}

static void look_at_due(uint64_t now)
{
    while (!list_is_empty(&queue)) {
        struct pending *p = LIST_ENTRY(queue.next, struct pending, node);
        if (p->due_ms > now) {
            return;
        }
        struct str path = {p->path, p->length};
        map_remove(&pending_by_path, path);
        list_remove(&p->node);
        scan_path(path, true);
        free(p);
    }
}

/* ---- events ---------------------------------------------------------------------------------------- */

static void on_name(struct str path, uint32_t mask, uint64_t now)
{
    if ((mask & (IN_ISDIR | IN_MOVED_FROM)) == (IN_ISDIR | IN_MOVED_FROM)) {
        wait_for_quiet(path, now); /* so that the new name is there before the old one goes */
        watch_note_links();
    } else if ((mask & IN_ISDIR) != 0) {
        forget_pending(path);
        scan_path(path, (mask & IN_ATTRIB) != 0);
        watch_note_links();
    } else if ((mask & (IN_CLOSE_WRITE | IN_MOVED_TO)) != 0) {
        forget_pending(path);
        scan_path(path, true);
    } else {
        wait_for_quiet(path, now);
    }
}

static void on_watched(struct dir *first, uint32_t mask, struct str name, uint64_t now)
{
    char path[PATH_MAX];
    if (first->same_watch == NULL) {
        size_t length = path_join(first, name, path);
        if (length > 0) {
            on_name((struct str){path, length}, mask, now);
        }
        return;
    }
    /* The same directory under several URLs. Acting on one may change the chain. */
    size_t count = 0;
    for (const struct dir *dir = first; dir != NULL; dir = dir->same_watch) {
        count++;
    }
    char **paths = calloc(count, sizeof *paths);
    if (paths == NULL) {
        overflowed = true;
        return;
    }
    size_t i = 0;
    for (const struct dir *dir = first; dir != NULL; dir = dir->same_watch, i++) {
        size_t length = path_join(dir, name, path);
        paths[i] = length > 0 ? strndup(path, length) : NULL;
    }
    for (i = 0; i < count; i++) {
        if (paths[i] != NULL) {
            on_name(str_of(paths[i]), mask, now);
        }
        free(paths[i]);
    }
    free(paths);
}

/* The kernel let go of it: the directory is gone, or its file system. */
static void on_ignored(struct dir *first, int watch)
{
    map_remove(&dirs_by_watch, key_of(&watch));
    atomic_fetch_sub(&tree.watches, 1);
    while (first != NULL) {
        struct dir *next = first->same_watch;
        first->watch = -1;
        first->same_watch = NULL;
        first = next;
    }
}

static bool is_root_name(struct str name)
{
    struct str root = tree.settings.root;
    return str_eq(name, str_from(root, str_find_last(root, '/') + 1));
}

static void on_event(const struct inotify_event *event, uint64_t now)
{
    if ((event->mask & IN_Q_OVERFLOW) != 0) {
        overflowed = true;
        return;
    }
    struct str name = event->len > 0 ? str_of(event->name) : STR("");
    if (event->wd == parent_watch) {
        root_event = root_event || is_root_name(name) || (event->mask & IN_IGNORED) != 0;
        parent_watch = (event->mask & IN_IGNORED) != 0 ? -1 : parent_watch;
    }
    int watch = event->wd;
    struct dir *first = map_get(&dirs_by_watch, key_of(&watch));
    if (first == NULL) {
        return;
    }
    if ((event->mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED)) != 0) {
        root_event = true;
        watch_note_links();
        if ((event->mask & IN_IGNORED) != 0) {
            on_ignored(first, watch);
        }
    } else if (name.len > 0 && name.ptr[0] == '.' && !str_eq(name, STR(".well-known"))) {
        if ((event->mask & (IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO)) != 0) {
            watch_note_links(); /* "..data" swapped */
        }
        char path[PATH_MAX];
        size_t length = path_join(first, name, path);
        if (length > 0 && (event->mask & (IN_CLOSE_WRITE | IN_MOVED_TO)) != 0) {
            endpoints_include_changed((struct str){path, length}); /* #include ".private.h" */
        }
    } else if (name.len > 0) {
        on_watched(first, event->mask, name, now);
    }
}

/* True: there was nothing left to read. */
static bool read_events(void)
{
    static _Alignas(struct inotify_event) char buffer[65536];
    if (inotify < 0) {
        return true;
    }
    for (unsigned i = 0; i < READS_AT_ONCE; i++) {
        ssize_t got = read(inotify, buffer, sizeof buffer);
        if (got <= 0) {
            return got < 0 && errno == EAGAIN;
        }
        uint64_t now = now_ms();
        for (ssize_t at = 0; at < got;) {
            const struct inotify_event *event = (const struct inotify_event *)(const void *)(buffer + at);
            at += (ssize_t)(sizeof *event + event->len);
            on_event(event, now);
        }
    }
    return false;
}

/* ---- the rest of the index's health ------------------------------------------------------------------ */

static void scan_again(void)
{
    bool was_degraded = atomic_load(&tree.degraded);
    refused = false;
    overflowed = false;
    if (!scan_all()) {
        if (!said_root_gone) {
            log_error("%s: %s; nothing is served until it is back", tree.settings.root.ptr, strerror(errno));
        }
        said_root_gone = true;
        return;
    }
    if (said_root_gone) {
        log_notice("%s is back", tree.settings.root.ptr);
        said_root_gone = false;
    }
    if (was_degraded && !refused && inotify >= 0) {
        atomic_store(&tree.degraded, false);
        said_refused = false;
        log_notice("all directories are watched again");
    }
    next_retry_ms = now_ms() + RETRY_MS;
}

static void check_root(uint64_t now)
{
    struct stat st;
    bool there = stat(tree.settings.root.ptr, &st) == 0 && S_ISDIR(st.st_mode);
    if (parent_watch < 0) {
        watch_parent_of_root();
    }
    bool changed = there ? st.st_ino != tree.root_inode || st.st_dev != tree.root_device : tree.root_inode != 0;
    if (changed) {
        scan_again();
    }
    if (links_due_ms == 0 && scan_has_links_outside()) {
        links_due_ms = now;
    }
    root_event = false;
    next_root_check_ms = now + ROOT_CHECK_MS;
}

static int wait_time(uint64_t now)
{
    uint64_t due = next_root_check_ms;
    if (!list_is_empty(&queue)) {
        uint64_t first = LIST_ENTRY(queue.next, struct pending, node)->due_ms;
        due = first < due ? first : due;
    }
    if (links_due_ms != 0 && links_due_ms < due) {
        due = links_due_ms;
    }
    return due > now && !overflowed ? (int)(due - now) : 0;
}

/* Under tree.lock. True: nothing is left to do. */
static bool work(void)
{
    bool drained = read_events();
    uint64_t now = now_ms();
    if (root_event || now >= next_root_check_ms) {
        check_root(now);
    }
    bool retry = atomic_load(&tree.degraded) && now >= next_retry_ms;
    if (atomic_exchange(&scan_wanted, false) || overflowed || retry) {
        scan_again();
    }
    look_at_due(now);
    if (links_due_ms != 0 && now >= links_due_ms) {
        links_due_ms = 0;
        scan_links();
    }
    scan_finish();
    return drained && list_is_empty(&queue) && links_due_ms == 0 && !overflowed;
}

static void *watch_main(void *arg)
{
    (void)arg;
    pthread_setname_np(pthread_self(), "kiln-index");
    int wait_ms = 0;
    while (!atomic_load(&stop_wanted)) {
        struct pollfd fds[2] = {{.fd = wake, .events = POLLIN}, {.fd = inotify, .events = POLLIN}};
        poll(fds, 2, wait_ms);
        uint64_t ignored;
        ssize_t got = read(wake, &ignored, sizeof ignored);
        (void)got;
        pthread_mutex_lock(&settle_lock);
        uint64_t ticket = settle_wanted;
        pthread_mutex_unlock(&settle_lock);
        tree_lock();
        bool done = work();
        wait_ms = wait_time(now_ms());
        tree_unlock();
        if (done) {
            pthread_mutex_lock(&settle_lock);
            settle_done = ticket;
            pthread_cond_broadcast(&settle_done_changed);
            pthread_mutex_unlock(&settle_lock);
        }
        if (epoch_reclaim() > 0 && wait_ms > QUIET_MS) {
            wait_ms = QUIET_MS;
        }
    }
    return NULL;
}

static void wake_up(void)
{
    uint64_t one = 1;
    ssize_t put = write(wake, &one, sizeof one);
    (void)put; /* a full counter wakes as well */
}

/* ---- life ------------------------------------------------------------------------------------------------ */

bool watch_start(void)
{
    inotify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (inotify < 0) {
        atomic_store(&tree.degraded, true);
        said_refused = true;
        log_warning("inotify: %s: each request checks the disk for changes. Raise it: sysctl "
                    "fs.inotify.max_user_instances=1024",
                    strerror(errno));
        return false;
    }
    watch_parent_of_root();
    return true;
}

bool watch_thread_start(void)
{
    wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (wake < 0) {
        log_error("eventfd: %s; changes of files will not be noticed", strerror(errno));
        return false;
    }
    next_root_check_ms = now_ms() + ROOT_CHECK_MS;
    next_retry_ms = now_ms() + RETRY_MS;
    thread_runs = true;
    int error = pthread_create(&thread, NULL, watch_main, NULL);
    if (error != 0) {
        thread_runs = false;
        log_error("thread for watching files: %s; changes will not be noticed", strerror(error));
    }
    return thread_runs;
}

void watch_thread_stop(void)
{
    if (thread_runs) {
        atomic_store(&stop_wanted, true);
        wake_up();
        pthread_join(thread, NULL);
    }
    thread_runs = false;
    atomic_store(&stop_wanted, false);
    size_t cursor = 0;
    struct str path;
    void *value;
    while (map_next(&pending_by_path, &cursor, &path, &value)) {
        free(value);
    }
    list_init(&queue);
    map_free(&pending_by_path);
    map_free(&dirs_by_watch);
    if (inotify >= 0) {
        close(inotify);
    }
    if (wake >= 0) {
        close(wake);
    }
    inotify = -1;
    wake = -1;
    parent_watch = -1;
    links_due_ms = 0;
    refused = false;
    said_refused = false;
    said_root_gone = false;
    overflowed = false;
}

void watch_request_scan(void)
{
    atomic_store(&scan_wanted, true);
    if (thread_runs) {
        wake_up();
    }
}

void watch_settle(void)
{
    if (!thread_runs) {
        return;
    }
    pthread_mutex_lock(&settle_lock);
    uint64_t ticket = ++settle_wanted;
    wake_up();
    while (settle_done < ticket) {
        pthread_cond_wait(&settle_done_changed, &settle_lock);
    }
    pthread_mutex_unlock(&settle_lock);
}
