/* A site in a temporary directory, running loops, and requests on them, for the tests of
 * server/endpoint/. Sources are written with put(); ask() makes one request on a loop's thread,
 * which waits for builds as a real one does, and runs the endpoint with a pointer to an int. */
#ifndef KILN_TESTS_ENDPOINT_SUPPORT_H
#define KILN_TESTS_ENDPOINT_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/buffer.h"
#include "base/file.h"
#include "config/config.h"
#include "endpoint/loader.h"
#include "observe/log.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LOOPS = 2 };

#define STAMP "#include <kiln.h>\n"
#define RETURNS(number) STAMP "int kiln_run(kiln_context *ctx, const char *path) { (void)ctx; return " #number "; }\n"

struct site {
    char directory[PATH_MAX];
    char root[PATH_MAX + 8];
    char cache[PATH_MAX + 8];
    struct config *config;
    struct loop *loops[LOOPS];
    pthread_t threads[LOOPS];
};

static struct site site;

static inline int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static inline void *loop_main(void *loop)
{
    loop_run(loop);
    return NULL;
}

static inline void server_start(const char *more_options)
{
    struct config_errors errors = {0};
    struct buffer text = BUFFER_EMPTY;
    buffer_printf(&text, "{\"SiteDir\": \"%s\", \"CacheDir\": \"%s\"%s}", site.root, site.cache, more_options);
    config_unref(site.config);
    site.config = config_parse(buffer_str(&text), "kiln.json", NULL, &errors);
    if (site.config == NULL) {
        fail_msg("%.*s", STR_ARG(buffer_str(&errors.text)));
    }
    buffer_free(&text);
    assert_true(endpoints_start(site.config, LOOPS));
    for (unsigned i = 0; i < LOOPS; i++) {
        site.loops[i] = loop_create(i);
        assert_non_null(site.loops[i]);
        pthread_create(&site.threads[i], NULL, loop_main, site.loops[i]);
    }
}

static inline void server_stop(void)
{
    for (unsigned i = 0; i < LOOPS; i++) {
        loop_stop(site.loops[i]);
        pthread_join(site.threads[i], NULL);
    }
    endpoints_stop();
    for (unsigned i = 0; i < LOOPS; i++) {
        loop_destroy(site.loops[i]);
    }
    /* The config stays, for what a test looks up while nothing runs. */
}

static inline void site_make(void)
{
    snprintf(site.directory, sizeof site.directory, "/tmp/kiln-endpoint-XXXXXX");
    assert_non_null(mkdtemp(site.directory));
    snprintf(site.root, sizeof site.root, "%s/site", site.directory);
    snprintf(site.cache, sizeof site.cache, "%s/cache", site.directory);
    assert_int_equal(mkdir(site.root, 0755), 0);
}

static inline void site_remove(void)
{
    config_unref(site.config);
    site.config = NULL;
    nftw(site.directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static inline int set_up(void **state)
{
    (void)state;
    site_make();
    server_start(", \"OptimizeEndpoints\": false");
    return 0;
}

static inline int tear_down(void **state)
{
    (void)state;
    server_stop();
    site_remove();
    return 0;
}

/* Path of a file of the site; valid until the next call but three. */
static inline const char *at(const char *name)
{
    static char *paths[4];
    static unsigned next;
    char **path = &paths[next++ % 4];
    free(*path);
    assert_true(asprintf(path, "%s/%s", site.root, name) > 0);
    return *path;
}

static inline void put(const char *name, const char *text)
{
    if (!file_replace(at(name), text, strlen(text), 0644)) {
        fail_msg("cannot write %s", at(name));
    }
}

static inline struct endpoint *open_endpoint(const char *name)
{
    struct endpoint *endpoint = endpoint_open(str_of(at(name)));
    assert_non_null(endpoint);
    return endpoint;
}

/* ---- requests --------------------------------------------------------------------------------- */

struct client {
    struct endpoint *endpoint;
    unsigned loop;
    struct endpoint_waiter waiter;
    struct task start;
    struct module *module;
    enum endpoint_status status;
    int returned;
    int context;
    unsigned waits;
    bool keep; /* the module until client_let_go() */
    sem_t done;
};

static inline void client_try(struct client *c)
{
    c->status = endpoint_acquire(c->endpoint, c->loop, &c->module, &c->waiter);
    if (c->status == ENDPOINT_BUILDING) {
        c->waits++;
        return;
    }
    if (c->status == ENDPOINT_READY) {
        c->returned = module_entry(c->module)->run((struct kiln_context *)(void *)&c->context, "/path");
        if (!c->keep) {
            module_release(c->module, c->loop);
        }
    }
    sem_post(&c->done);
}

static inline void client_woken(struct task *task)
{
    client_try(CONTAINER_OF(CONTAINER_OF(task, struct endpoint_waiter, task), struct client, waiter));
}

static inline void client_started(struct task *task)
{
    client_try(CONTAINER_OF(task, struct client, start));
}

static inline void client_begin(struct client *c, struct endpoint *endpoint, unsigned loop)
{
    *c = (struct client){.endpoint = endpoint, .loop = loop, .keep = c->keep};
    c->waiter.task.run = client_woken;
    c->waiter.loop = site.loops[loop];
    c->start.run = client_started;
    sem_init(&c->done, 0, 0);
    loop_post(site.loops[loop], &c->start);
}

static inline void client_end(struct client *c)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 60;
    if (sem_timedwait(&c->done, &limit) != 0) {
        fail_msg("no answer");
    }
    sem_destroy(&c->done);
}

static inline void release_task(struct task *task)
{
    struct client *c = CONTAINER_OF(task, struct client, start);
    module_release(c->module, c->loop);
    sem_post(&c->done);
}

static inline void client_let_go(struct client *c)
{
    c->start.run = release_task;
    sem_init(&c->done, 0, 0);
    loop_post(site.loops[c->loop], &c->start);
    client_end(c);
}

/* What kiln_run returned, or -1000 for a failed endpoint. */
static inline int ask_on(struct endpoint *endpoint, unsigned loop)
{
    struct client c = {0};
    client_begin(&c, endpoint, loop);
    client_end(&c);
    return c.status == ENDPOINT_READY ? c.returned : -1000;
}

static inline int ask(struct endpoint *endpoint)
{
    static unsigned turn;
    return ask_on(endpoint, turn++ % LOOPS);
}

/* Asks until the answer is this one. */
static inline void ask_until(struct endpoint *endpoint, int expected)
{
    int last = 0;
    for (int i = 0; i < 12000; i++) {
        last = ask(endpoint);
        if (last == expected) {
            return;
        }
        usleep(5000);
    }
    fail_msg("waited for %d, last was %d", expected, last);
}

/* ---- what it says -------------------------------------------------------------------------------- */

static inline char *error_text(struct endpoint *endpoint)
{
    static char text[8192];
    struct buffer out = BUFFER_EMPTY;
    endpoint_error_text(endpoint, &out);
    snprintf(text, sizeof text, "%.*s", STR_ARG(buffer_str(&out)));
    buffer_free(&out);
    return text;
}

static inline void assert_contains(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) {
        fail_msg("\"%s\" does not contain \"%s\"", text, part);
    }
}

static inline void assert_error(struct endpoint *endpoint, const char *part)
{
    assert_int_equal(ask(endpoint), -1000);
    assert_contains(error_text(endpoint), part);
}

/* Files in the private directories of the cache: loaded modules, and nothing else. */
static inline unsigned count_files(const char *path)
{
    unsigned count = 0;
    DIR *stream = opendir(path);
    struct dirent *entry;
    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        if (entry->d_name[0] == '.' && (entry->d_name[1] == '\0' || entry->d_name[1] == '.')) {
            continue;
        }
        char *below = NULL;
        struct stat st;
        if (asprintf(&below, "%s/%s", path, entry->d_name) >= 0 && lstat(below, &st) == 0) {
            count += S_ISDIR(st.st_mode) ? count_files(below) : 1;
        }
        free(below);
    }
    if (stream != NULL) {
        closedir(stream);
    }
    return count;
}

static inline unsigned count_private(void)
{
    char run[PATH_MAX + 32];
    snprintf(run, sizeof run, "%s/run", site.cache);
    return count_files(run);
}

static inline void wait_private(unsigned expected)
{
    unsigned last = 0;
    for (int i = 0; i < 6000; i++) {
        last = count_private();
        if (last == expected) {
            return;
        }
        usleep(5000);
    }
    fail_msg("%u private files, expected %u", last, expected);
}

#endif
