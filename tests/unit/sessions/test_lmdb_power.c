/* Loss of power, played: this program puts itself between LMDB and the kernel, keeps for
 * both files of the store what a disk would hold (what was synced, and of the rest any part,
 * page by page, in any state it went through), and takes such disks out at many points of a
 * run. Then a machine starts again with each of them. */
#include "tests/unit/sessions/store_support.h"

#include "observe/log.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum { PAGE = 4096, CUTS = 60, STEPS = 200 };

struct written {
    struct written *next;
    off_t offset;
    size_t len;
    uint8_t data[];
};

struct disk_file {
    const char *name;
    uint8_t *bytes; /* surely on the disk */
    size_t size;
    struct written *first; /* handed to the kernel since the last sync */
    struct written **last;
};

static struct {
    pthread_mutex_t lock;
    bool on;
    char directory[PATH_MAX];
    struct disk_file files[2];
    uint64_t random;
    unsigned calls;
    unsigned cuts;
    unsigned syncs;
    _Atomic int64_t answered; /* the last count that the store confirmed */
    int64_t at_last_commit; /* the same, when saved.mdb was last committed */
    int64_t promised;
    bool strict;
    int64_t promise_of[CUTS];
} disk = {.lock = PTHREAD_MUTEX_INITIALIZER, .files = {{.name = "saved.mdb"}, {.name = "live.mdb"}}};

static unsigned draw(unsigned below)
{
    disk.random ^= disk.random << 13;
    disk.random ^= disk.random >> 7;
    disk.random ^= disk.random << 17;
    return (unsigned)(disk.random >> 33) % below;
}

static struct disk_file *file_of(int fd)
{
    char link[64];
    char path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (!disk.on || n <= 0) {
        return NULL;
    }
    path[n] = '\0';
    size_t prefix = strlen(disk.directory);
    for (unsigned i = 0; i < 2; i++) {
        if (strncmp(path, disk.directory, prefix) == 0 && strcmp(path + prefix + 1, disk.files[i].name) == 0) {
            return &disk.files[i];
        }
    }
    return NULL;
}

static void put_bytes(uint8_t **bytes, size_t *size, const struct written *w)
{
    size_t end = (size_t)w->offset + w->len;
    if (end > *size) {
        *bytes = realloc(*bytes, end);
        memset(*bytes + *size, 0, end - *size);
        *size = end;
    }
    memcpy(*bytes + w->offset, w->data, w->len);
}

/* What may be on the disk if the power goes now. */
static void write_image(const struct disk_file *file, const char *directory)
{
    size_t size = file->size;
    uint8_t *bytes = malloc(size > 0 ? size : 1);
    memcpy(bytes, file->bytes, size);
    uint8_t stopped[1 << 16] = {0}; /* pages whose later states did not make it */
    for (const struct written *w = file->first; w != NULL; w = w->next) {
        size_t page = (size_t)w->offset / PAGE;
        stopped[page] = stopped[page] || draw(2) == 0;
        if (!stopped[page]) {
            put_bytes(&bytes, &size, w);
        }
    }
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", directory, file->name);
    FILE *out = fopen(path, "w");
    fwrite(bytes, 1, size, out);
    fclose(out);
    free(bytes);
}

static void maybe_cut(void)
{
    disk.calls++;
    if (disk.cuts >= CUTS || draw(80) != 0) {
        return;
    }
    char directory[PATH_MAX + 32];
    snprintf(directory, sizeof directory, "%s/cut%u", disk.directory, disk.cuts);
    mkdir(directory, 0700);
    write_image(&disk.files[0], directory);
    write_image(&disk.files[1], directory);
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/boot", directory);
    FILE *boot = fopen(path, "w");
    fputs("before\n", boot);
    fclose(boot);
    disk.promise_of[disk.cuts++] = disk.strict ? atomic_load(&disk.answered) : disk.promised;
}

static void note_write(struct disk_file *file, int fd, off_t offset, const struct iovec *parts, int count)
{
    bool at_once = (fcntl(fd, F_GETFL) & O_DSYNC) != 0;
    for (int i = 0; i < count; i++) {
        const uint8_t *data = parts[i].iov_base;
        size_t left = parts[i].iov_len;
        while (left > 0) {
            size_t len = PAGE - (size_t)offset % PAGE;
            len = len < left ? len : left;
            struct written *w = malloc(sizeof *w + len);
            *w = (struct written){.offset = offset, .len = len};
            memcpy(w->data, data, len);
            if (at_once) {
                put_bytes(&file->bytes, &file->size, w);
                free(w);
            } else {
                *file->last = w;
                file->last = &w->next;
            }
            offset += (off_t)len;
            data += len;
            left -= len;
        }
    }
    if (at_once && file == &disk.files[0]) {
        disk.promised = disk.at_last_commit;
        disk.at_last_commit = atomic_load(&disk.answered);
    }
}

static void note_sync(struct disk_file *file)
{
    disk.syncs++;
    while (file->first != NULL) {
        struct written *w = file->first;
        file->first = w->next;
        put_bytes(&file->bytes, &file->size, w);
        free(w);
    }
    file->last = &file->first;
}

/* ---- in place of the C library's ----------------------------------------------------------------- */

ssize_t pwrite(int fd, const void *data, size_t len, off_t offset)
{
    pthread_mutex_lock(&disk.lock);
    struct disk_file *file = file_of(fd);
    if (file != NULL) {
        maybe_cut();
    }
    ssize_t n = syscall(SYS_pwrite64, fd, data, len, offset);
    if (file != NULL && n > 0) {
        struct iovec part = {(void *)(uintptr_t)data, (size_t)n};
        note_write(file, fd, offset, &part, 1);
    }
    pthread_mutex_unlock(&disk.lock);
    return n;
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    pthread_mutex_lock(&disk.lock);
    struct disk_file *file = file_of(fd);
    off_t offset = file != NULL ? lseek(fd, 0, SEEK_CUR) : 0;
    if (file != NULL) {
        maybe_cut();
    }
    ssize_t n = syscall(SYS_writev, fd, parts, count);
    if (file != NULL && n > 0) {
        note_write(file, fd, offset, parts, count);
    }
    pthread_mutex_unlock(&disk.lock);
    return n;
}

static int sync_fd(long call, int fd)
{
    pthread_mutex_lock(&disk.lock);
    struct disk_file *file = file_of(fd);
    if (file != NULL) {
        maybe_cut();
    }
    int result = (int)syscall(call, fd);
    if (file != NULL && result == 0) {
        note_sync(file);
    }
    pthread_mutex_unlock(&disk.lock);
    return result;
}

int fdatasync(int fd)
{
    return sync_fd(SYS_fdatasync, fd);
}

int fsync(int fd)
{
    return sync_fd(SYS_fsync, fd);
}

/* ---- the run ---------------------------------------------------------------------------------------- */

static void disk_begin(const char *directory, bool strict)
{
    pthread_mutex_lock(&disk.lock);
    snprintf(disk.directory, sizeof disk.directory, "%s", directory);
    disk.random = 0x9E3779B97F4A7C15;
    disk.cuts = disk.syncs = disk.calls = 0;
    disk.strict = strict;
    atomic_store(&disk.answered, 0);
    disk.promised = disk.at_last_commit = 0;
    for (unsigned i = 0; i < 2; i++) {
        struct disk_file *file = &disk.files[i];
        char path[PATH_MAX + 64];
        snprintf(path, sizeof path, "%s/%s", directory, file->name);
        FILE *in = fopen(path, "r");
        file->bytes = calloc(1, 1 << 20);
        file->size = fread(file->bytes, 1, 1 << 20, in);
        fclose(in);
        file->first = NULL;
        file->last = &file->first;
    }
    disk.on = true;
    pthread_mutex_unlock(&disk.lock);
}

static void disk_end(void)
{
    pthread_mutex_lock(&disk.lock);
    disk.on = false;
    for (unsigned i = 0; i < 2; i++) {
        note_sync(&disk.files[i]);
        free(disk.files[i].bytes);
        disk.files[i].bytes = NULL;
    }
    pthread_mutex_unlock(&disk.lock);
}

/* One session counts and changes its id now and then; others come and go around it. */
static void work(struct fixture *f)
{
    char text[3001];
    char id[32];
    char next[32];
    memset(text, 't', 3000);
    text[0] = text[2999] = '"';
    text[3000] = '\0';
    assert_int_equal(do_set(f, "main0", "text", text, 1), STORE_OK);
    for (int i = 1; i <= STEPS; i++) {
        int64_t sum;
        snprintf(id, sizeof id, "main%d", (i - 1) / 10);
        assert_int_equal(do_increment(f, id, "n", 1, &sum), STORE_OK);
        atomic_store(&disk.answered, sum);
        if (i % 10 == 0) {
            snprintf(next, sizeof next, "main%d", i / 10);
            assert_int_equal(do_rename(f, id, next, 1, 100 + i), STORE_OK);
        }
        snprintf(id, sizeof id, "other%d", i);
        assert_int_equal(do_create(f, id, 100), STORE_OK);
        assert_int_equal(do_set(f, id, "text", text, 1), STORE_OK);
        snprintf(id, sizeof id, "other%d", i - 20);
        assert_int_equal(do_destroy(f, id), STORE_OK);
    }
}

/* True when the store in `directory` opens and is whole; *count is what it had counted to. */
static bool is_whole(const char *directory, const char *boot, int64_t *count)
{
    struct fixture f = {.ops = &store_lmdb,
                        .options = {.directory = directory,
                                    .sync_ms = 60000,
                                    .max_value = 65536,
                                    .max_session = 200000,
                                    .max_bytes = 64 << 20,
                                    .boot_id = boot}};
    struct buffer error = BUFFER_EMPTY;
    f.store = f.ops->open(&f.options, &error);
    if (f.store == NULL) {
        printf("    %.*s\n", STR_ARG(buffer_str(&error)));
        buffer_free(&error);
        return false;
    }
    unsigned found = 0;
    bool whole = true;
    char id[32];
    *count = 0;
    for (int i = 0; i <= STEPS / 10; i++) {
        snprintf(id, sizeof id, "main%d", i);
        if (do_exists(&f, id, 1, NULL) != STORE_OK) {
            continue;
        }
        found++;
        const char *n = do_get(&f, id, "n", 1);
        *count = n != NULL ? atoll(n) : 0;
        const char *text = do_get(&f, id, "text", 1);
        whole = whole && (*count == 0 || (text != NULL && strlen(text) == 3000));
    }
    /* It can be worked with, and everything can be taken out again: no row is astray. */
    whole = whole && found == 1 && do_create(&f, "after", 1000000) == STORE_OK;
    do_sweep(&f, 999999, 100000);
    whole = whole && f.ops->count(f.store) == 1 && do_destroy(&f, "after") == STORE_OK && f.ops->count(f.store) == 0;
    f.ops->close(f.store);
    buffer_free(&f.out);
    return whole;
}

static void run_and_cut(struct fixture *f, bool strict)
{
    f->options.strict = strict;
    f->options.sync_ms = 1;
    f->options.boot_id = "before";
    fixture_open(f);
    assert_int_equal(do_create(f, "main0", 1000), STORE_OK);
    fixture_close(f); /* begin with both files complete */
    fixture_open(f);
    disk_begin(f->directory, strict);
    work(f);
    fixture_close(f);
    disk_end();
    assert_in_range(disk.cuts, CUTS / 3, CUTS);
}

static void check_cuts(struct fixture *f)
{
    int64_t before = 0;
    for (unsigned i = 0; i < disk.cuts; i++) {
        char directory[PATH_MAX + 32];
        int64_t count = -1;
        snprintf(directory, sizeof directory, "%s/cut%u", f->directory, i);
        if (!is_whole(directory, "after", &count)) {
            fail_msg("cut %u of %u: the store is not whole", i, disk.cuts);
        }
        if (count < disk.promise_of[i] || count < before || count > STEPS) {
            fail_msg("cut %u: counted to %lld, promised were %lld, an earlier disk had %lld", i, (long long)count,
                     (long long)disk.promise_of[i], (long long)before);
        }
        before = count;
    }
}

static void strict_has_on_the_disk_what_it_answered(void **state)
{
    struct fixture *f = fixture_make(&store_lmdb);
    (void)state;
    run_and_cut(f, true);
    assert_true(disk.promise_of[disk.cuts - 1] > 0);
    check_cuts(f);
    fixture_free(f);
}

static void grouped_is_whole_and_only_a_little_behind(void **state)
{
    struct fixture *f = fixture_make(&store_lmdb);
    (void)state;
    run_and_cut(f, false);
    assert_true(disk.promise_of[disk.cuts - 1] > 0);
    check_cuts(f);
    fixture_free(f);
}

/* The test of this test: the file without syncs, looked at as if no power had been lost, does
 * not survive the same disks. */
static void the_unsynced_file_alone_would_not_survive(void **state)
{
    struct fixture *f = fixture_make(&store_lmdb);
    unsigned broken = 0;
    (void)state;
    run_and_cut(f, false);
    unsigned looked_at = 0;
    for (unsigned i = 0; i < disk.cuts; i += 10, looked_at++) {
        fflush(stdout);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            char directory[PATH_MAX + 32];
            int64_t count;
            int null = open("/dev/null", O_WRONLY);
            dup2(null, 1);
            dup2(null, 2);
            alarm(2); /* a circle of pages is a form of broken, too */
            setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
            snprintf(directory, sizeof directory, "%s/cut%u", f->directory, i);
            _exit(is_whole(directory, "before", &count) ? 0 : 1);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        broken += status != 0;
    }
    assert_true(broken > looked_at / 4);
    fixture_free(f);
}

/* Many at once share the syncs of the disk. */
static void *strict_writer(void *arg)
{
    struct fixture *f = arg;
    for (int i = 0; i < 50; i++) {
        struct store_op op = {.kind = STORE_INCREMENT, .id = STR("shared"), .key = STR("n"), .number = 1};
        if (store_run(f->ops, f->store, &op) != STORE_OK) {
            return f;
        }
    }
    return NULL;
}

static void strict_writers_share_syncs(void **state)
{
    struct fixture *f = fixture_make(&store_lmdb);
    pthread_t threads[16];
    (void)state;
    f->options.strict = true;
    fixture_open(f);
    assert_int_equal(do_create(f, "shared", 100), STORE_OK);
    disk_begin(f->directory, true);
    disk.cuts = CUTS; /* none */
    for (unsigned i = 0; i < 16; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, strict_writer, f), 0);
    }
    for (unsigned i = 0; i < 16; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    disk_end();
    assert_string_equal(do_get(f, "shared", "n", 1), "800");
    assert_true(disk.syncs > 0);
    assert_true(disk.syncs < 400); /* one each would be 800; about 50 when all 16 always meet */
    fixture_free(f);
}

static void strict_alone_syncs_each(void **state)
{
    struct fixture *f = fixture_make(&store_lmdb);
    (void)state;
    f->options.strict = true;
    fixture_open(f);
    assert_int_equal(do_create(f, "shared", 100), STORE_OK);
    disk_begin(f->directory, true);
    disk.cuts = CUTS;
    for (unsigned i = 1; i <= 20; i++) {
        assert_int_equal(do_increment(f, "shared", "n", 1, NULL), STORE_OK);
        assert_int_equal(disk.syncs, i);
    }
    disk_end();
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strict_has_on_the_disk_what_it_answered),
        cmocka_unit_test(grouped_is_whole_and_only_a_little_behind),
        cmocka_unit_test(the_unsynced_file_alone_would_not_survive),
        cmocka_unit_test(strict_writers_share_syncs),
        cmocka_unit_test(strict_alone_syncs_each),
    };
    log_level_set(LOG_ERROR);
    if (access("/dev/shm", W_OK) == 0) {
        setenv("TMPDIR", "/dev/shm", 1); /* the disk is played: a real one would only be slow */
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
