/* A real directory tree and a running index for the tests of this room. */
#ifndef TEST_ROUTE_SUPPORT_H
#define TEST_ROUTE_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/buffer.h"
#include "base/epoch.h"
#include "config/config.h"
#include "route/site_index.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define ONE_SITE "{\"SiteDir\": \"www\", \"PidFile\": \"\"}"

static char base[64]; /* temporary directory of the test */
static struct config *config;

static inline const char *at(const char *path)
{
    static char full[8][PATH_MAX];
    static unsigned next;
    char *out = full[next++ % 8];
    snprintf(out, PATH_MAX, "%s/%s", base, path);
    return out;
}

/* Writes the file, and the directories it needs. */
static inline void put(const char *path, const char *text)
{
    char full[PATH_MAX];
    snprintf(full, sizeof full, "%s", at(path));
    for (char *p = full + strlen(base) + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        mkdir(full, 0755);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static inline void make_dir(const char *path)
{
    assert_int_equal(mkdir(at(path), 0755), 0);
}

static inline void make_link(const char *target, const char *path)
{
    assert_int_equal(symlink(target, at(path)), 0);
}

static inline void move(const char *from, const char *to)
{
    assert_int_equal(rename(at(from), at(to)), 0);
}

static inline int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static inline void remove_tree(const char *path)
{
    nftw(path, remove_one, 32, FTW_DEPTH | FTW_PHYS);
}

static inline int base_set_up(void **state)
{
    (void)state;
    const char *temp = getenv("TMPDIR");
    epoch_register(); /* this thread looks things up, as a loop does */
    snprintf(base, sizeof base, "%s/kiln-route-XXXXXX", temp != NULL && strlen(temp) < 40 ? temp : "/tmp");
    return mkdtemp(base) != NULL ? 0 : -1;
}

static inline struct config *parse_config(const char *json)
{
    struct config_errors errors = {0};
    struct config *parsed = config_parse(str_of(json), at("kiln.json"), NULL, &errors);
    if (parsed == NULL) {
        fprintf(stderr, "%.*s", STR_ARG(buffer_str(&errors.text)));
    }
    config_errors_free(&errors);
    assert_non_null(parsed);
    return parsed;
}

/* Starts the index with that config (JSON; paths relative to the test's directory). */
static inline void start(const char *json)
{
    config = parse_config(json);
    assert_true(site_index_start(config, true));
}

static inline int base_tear_down(void **state)
{
    (void)state;
    epoch_unregister();
    if (config != NULL) {
        site_index_stop();
        config_unref(config);
        config = NULL;
    }
    remove_tree(base);
    return 0;
}

static inline const struct site_node *find_at(const char *host, const char *path)
{
    struct site *site = site_find(str_of(host));
    return site != NULL ? site_lookup(site, str_of(path)) : NULL;
}

static inline const struct site_node *find(const char *path)
{
    return find_at("", path);
}

/* What is served under the path, as a plain file: its size, -1 when nothing is. */
static inline long served(const char *path)
{
    const struct site_node *node = find(path);
    bool is = node != NULL && node->kind == NODE_FILE && !site_node_is_hidden(node) && !node->symlink_out;
    return is ? (long)node->size : -1;
}

static inline void settle(void)
{
    epoch_quiet(); /* no node is kept over it */
    site_index_settle();
}

/* Name of the file that answers the directory, "" for none. */
static inline const char *index_of(const char *directory)
{
    const struct site_node *node = find(directory);
    assert_non_null(node);
    assert_int_equal(node->kind, NODE_DIRECTORY);
    const struct site_node *index = site_directory_index(node);
    return index != NULL ? strrchr(index->file.ptr, '/') + 1 : "";
}

/* Name of the file of the endpoint that answers the path, "" for none. */
static inline const char *endpoint_at(const char *path)
{
    const struct site_node *node = find(path);
    return node != NULL && node->kind == NODE_ENDPOINT ? strrchr(node->file.ptr, '/') + 1 : "";
}

#define ROUTE_TEST(name) cmocka_unit_test_setup_teardown(name, base_set_up, base_tear_down)

#endif
