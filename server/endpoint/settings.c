/* What of the config a build depends on, where the helper and the SDK are, which compiler is
 * installed, and the fingerprints that keep builds of different settings apart in the cache. */
#include "config/config.h"
#include "endpoint/build.h"
#include "endpoint/home.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bump when the meaning of a cached build changes: flags of kiln-cc or of native.c. */
#define BUILD_FORMAT "kiln-build 1"

static _Atomic unsigned generations;

/* The directory of the running program. */
static bool program_directory(char out[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", out, PATH_MAX - 1);
    if (n <= 0) {
        return false;
    }
    out[n] = '\0';
    char *slash = strrchr(out, '/');
    if (slash == NULL) {
        return false;
    }
    *slash = '\0';
    return true;
}

/* First of <directory or one of its parents>/<name> that is there: build/kiln finds
 * build/kiln-cc and plugin-sdk/include, PREFIX/bin/kiln finds PREFIX/libexec and PREFIX/include. */
static char *find_above(const char *directory, const char *const *names, size_t count, int mode)
{
    char at[PATH_MAX];
    snprintf(at, sizeof at, "%s", directory);
    for (int level = 0; level < 6 && at[0] != '\0'; level++) {
        for (size_t i = 0; i < count; i++) {
            char *path = NULL;
            if (asprintf(&path, "%s/%s", at, names[i]) < 0) {
                return NULL;
            }
            if (access(path, mode) == 0) {
                return path;
            }
            free(path);
        }
        char *slash = strrchr(at, '/');
        if (slash == NULL) {
            break;
        }
        *slash = '\0';
    }
    return NULL;
}

static char *find_helper(const char *directory)
{
    static const char *const names[] = {"kiln-cc", "libexec/kiln/kiln-cc", "lib/kiln/kiln-cc"};
    const char *given = getenv("KILN_CC");
    if (given != NULL && given[0] == '/') {
        return strdup(given);
    }
    return find_above(directory, names, 3, X_OK);
}

static char *find_sdk(const char *directory)
{
    static const char *const names[] = {"plugin-sdk/include/kiln_tcc.h", "include/kiln_tcc.h",
                                        "share/kiln/include/kiln_tcc.h"};
    const char *given = getenv("KILN_SDK_INCLUDE");
    if (given != NULL && given[0] == '/') {
        return strdup(given);
    }
    char *prelude = find_above(directory, names, 3, R_OK);
    if (prelude != NULL) {
        *strrchr(prelude, '/') = '\0';
    }
    return prelude;
}

static char *find_in_path(const char *name)
{
    struct str rest = str_of(getenv("PATH") != NULL ? getenv("PATH") : "/usr/local/bin:/usr/bin:/bin");
    struct str part;
    while (str_split_next(&rest, ':', &part)) {
        char *path = NULL;
        if (part.len == 0 || part.ptr[0] != '/' || asprintf(&path, "%.*s/%s", STR_ARG(part), name) < 0) {
            continue;
        }
        if (access(path, X_OK) == 0) {
            return path;
        }
        free(path);
    }
    return NULL;
}

static void find_compiler(struct settings *s)
{
    static const struct {
        const char *name;
        enum compiler_kind kind;
    } known[] = {{"gcc", COMPILER_GCC}, {"clang", COMPILER_CLANG}};
    const char *given = getenv("KILN_OPTIMIZER"); /* an absolute path; "none": as if none were installed */
    if (given != NULL && given[0] == '/') {
        s->compiler = strdup(given);
        s->compiler_kind = strstr(given, "clang") != NULL ? COMPILER_CLANG : COMPILER_GCC;
        return;
    }
    for (size_t i = 0; given == NULL && s->compiler == NULL && i < 2; i++) {
        s->compiler = find_in_path(known[i].name);
        s->compiler_kind = known[i].kind;
    }
    if (s->compiler == NULL) {
        s->compiler_kind = COMPILER_NONE;
    }
}

static void fingerprint(const struct settings *s, const char *program, unsigned char out[HASH_SIZE])
{
    struct hasher *h = hasher_create();
    if (h == NULL) {
        memset(out, 0, HASH_SIZE);
        return;
    }
    /* An upgraded compiler is another file under the same name. */
    struct stat st = {0};
    if (program != NULL && stat(program, &st) != 0) {
        st = (struct stat){0};
    }
    uint64_t identity[3] = {(uint64_t)st.st_size, (uint64_t)st.st_mtim.tv_sec, (uint64_t)st.st_mtim.tv_nsec};
    hasher_add_field(h, STR(BUILD_FORMAT " " KILN_VERSION));
    hasher_add_field(h, str_of(program != NULL ? program : ""));
    hasher_add(h, identity, sizeof identity);
    hasher_add_field(h, str_of(s->sdk_include != NULL ? s->sdk_include : ""));
    for (size_t i = 0; i < s->include_count; i++) {
        hasher_add_field(h, str_of(s->include_paths[i]));
    }
    hasher_finish(h, out);
}

static char **copy_strings(const struct config_strings *from, size_t *count)
{
    char **to = calloc(from->count + 1, sizeof *to);
    for (size_t i = 0; to != NULL && i < from->count; i++) {
        char *copy = strndup(from->items[i].ptr, from->items[i].len);
        if (copy != NULL) {
            to[(*count)++] = copy;
        }
    }
    return to;
}

static void copy_timeouts(struct settings *s, const struct config *config)
{
    s->request_timeout = config->request_timeout;
    s->timeouts = calloc(config->endpoint_timeouts.count + 1, sizeof *s->timeouts);
    struct str key;
    void *value;
    for (size_t i = 0; s->timeouts != NULL && map_next(&config->endpoint_timeouts, &i, &key, &value);) {
        char *pattern = strndup(key.ptr, key.len);
        if (pattern != NULL) {
            s->timeouts[s->timeout_count].pattern = pattern;
            s->timeouts[s->timeout_count++].seconds = strtod(((const struct str *)value)->ptr, NULL);
        }
    }
}

struct settings *settings_create(const struct config *config)
{
    struct settings *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return NULL;
    }
    atomic_init(&s->references, 1);
    s->generation = atomic_fetch_add(&generations, 1) + 1;
    char directory[PATH_MAX];
    if (program_directory(directory)) {
        s->helper = find_helper(directory);
        s->sdk_include = find_sdk(directory);
        s->out_of_reach = access(directory, X_OK) != 0 && errno == EACCES;
    }
    find_compiler(s);
    s->web_root = strndup(config->web_root.ptr != NULL ? config->web_root.ptr : "", config->web_root.len);
    s->include_paths = copy_strings(&config->include_paths, &s->include_count);
    s->offload = copy_strings(&config->offload_endpoints, &s->offload_count);
    s->isolate = copy_strings(&config->isolate, &s->isolate_count);
    copy_timeouts(s, config);
    s->enable_c = config->enable_c;
    s->enable_so = config->enable_so;
    s->optimize = config->optimize_endpoints;
    s->per_host = config->layout == SITE_PER_HOST;
    s->timeout = config->compiler_timeout > 0 ? config->compiler_timeout : 5;
    s->memory = config->compiler_memory > 0 ? (uint64_t)config->compiler_memory : 536870912u;
    fingerprint(s, s->helper, s->tcc_fingerprint);
    fingerprint(s, s->compiler, s->native_fingerprint);
    return s;
}

const char *settings_lack(const struct settings *s)
{
    if (s->helper != NULL && s->sdk_include != NULL) {
        return NULL;
    }
    if (s->out_of_reach) {
        return "the compiler helper kiln-cc lies beside kiln in a directory that is closed to the user as whom "
               "requests are served: open "
               "the directories above it to that user (chmod o+x), install Kiln elsewhere (make install), or set the "
               "option User";
    }
    return s->helper == NULL ? "kiln-cc, the compiler helper, is not installed beside kiln (or name it by KILN_CC)"
                             : "kiln.h and kiln_tcc.h are not installed (or name their directory by KILN_SDK_INCLUDE)";
}

static bool same_strings(char *const *a, size_t a_count, char *const *b, size_t b_count)
{
    for (size_t i = 0; a_count == b_count && i < a_count; i++) {
        if (strcmp(a[i], b[i]) != 0) {
            return false;
        }
    }
    return a_count == b_count;
}

bool settings_same_builds(const struct settings *a, const struct settings *b)
{
    return memcmp(a->tcc_fingerprint, b->tcc_fingerprint, HASH_SIZE) == 0 &&
           memcmp(a->native_fingerprint, b->native_fingerprint, HASH_SIZE) == 0 && a->enable_c == b->enable_c &&
           a->enable_so == b->enable_so && same_strings(a->isolate, a->isolate_count, b->isolate, b->isolate_count);
}

struct settings *settings_ref(struct settings *settings)
{
    atomic_fetch_add(&settings->references, 1);
    return settings;
}

static void free_strings(char **strings, size_t count)
{
    for (size_t i = 0; strings != NULL && i < count; i++) {
        free(strings[i]);
    }
    free(strings);
}

void settings_unref(struct settings *settings)
{
    if (settings == NULL || atomic_fetch_sub(&settings->references, 1) != 1) {
        return;
    }
    free_strings(settings->include_paths, settings->include_count);
    free_strings(settings->offload, settings->offload_count);
    free_strings(settings->isolate, settings->isolate_count);
    for (size_t i = 0; i < settings->timeout_count; i++) {
        free(settings->timeouts[i].pattern);
    }
    free(settings->timeouts);
    free(settings->helper);
    free(settings->sdk_include);
    free(settings->web_root);
    free(settings->compiler);
    free(settings);
}

/* The URL path that an endpoint's file answers: below the root (and the host directory), without
 * suffix, "index" being its directory. */
static struct str url_below(struct str root, bool per_host, struct str file)
{
    if (root.len == 0 || !str_starts(file, root)) {
        return STR_NONE;
    }
    struct str url = str_from(file, root.len);
    if (per_host && url.len > 1) {
        size_t slash = str_find(str_from(url, 1), '/');
        url = slash == SIZE_MAX ? url : str_from(url, slash + 1);
    }
    size_t slash = str_find_last(url, '/');
    size_t dot = str_find_last(url, '.');
    if (slash != SIZE_MAX && dot != SIZE_MAX && dot > slash) {
        url = str_first(url, dot);
    }
    if (str_eq(url, STR("/index"))) {
        return STR("/");
    }
    return str_ends(url, STR("/index")) ? str_first(url, url.len - 6) : url;
}

static struct str url_of(const struct settings *s, struct str file)
{
    return url_below(str_of(s->web_root), s->per_host, file);
}

/* A URL path (a slash at its end does not count) or a file pattern. */
static bool matches(const char *text, struct str url, struct str file)
{
    struct str pattern = str_of(text);
    size_t len = pattern.len;
    while (len > 1 && pattern.ptr[len - 1] == '/') {
        len--;
    }
    return str_eq(str_first(pattern, len), url) || fnmatch(text, file.ptr, 0) == 0;
}

/* A URL path also names everything below it. */
static bool covers(struct str pattern, struct str url, struct str file)
{
    if (matches(pattern.ptr, url, file)) {
        return true;
    }
    while (pattern.len > 0 && pattern.ptr[pattern.len - 1] == '/') {
        pattern.len--;
    }
    return str_starts(url, pattern) && url.len > pattern.len && url.ptr[pattern.len] == '/';
}

const struct home *settings_home(const struct settings *settings, struct str file)
{
    struct str url = url_of(settings, file);
    for (size_t i = 0; i < settings->isolate_count; i++) {
        if (covers(str_of(settings->isolate[i]), url, file)) {
            return &home_isolated;
        }
    }
    return &home_here;
}

static bool any_covers(const struct config *config, const struct config_strings *patterns, struct str file)
{
    struct str url = url_below(config->web_root, config->layout == SITE_PER_HOST, file);
    for (size_t i = 0; i < patterns->count; i++) {
        if (covers(patterns->items[i], url, file)) {
            return true;
        }
    }
    return false;
}

bool config_isolates(const struct config *config, struct str file)
{
    return any_covers(config, &config->isolate, file);
}

bool config_isolated_writes(const struct config *config, struct str file)
{
    return any_covers(config, &config->isolate_write, file);
}

bool settings_offload(const struct settings *settings, struct str file)
{
    struct str url = url_of(settings, file);
    for (size_t i = 0; i < settings->offload_count; i++) {
        if (matches(settings->offload[i], url, file)) {
            return true;
        }
    }
    return false;
}

uint64_t settings_request_timeout(const struct settings *settings, struct str file)
{
    struct str url = url_of(settings, file);
    double seconds = settings->request_timeout;
    for (size_t i = 0; i < settings->timeout_count; i++) {
        if (matches(settings->timeouts[i].pattern, url, file)) {
            seconds = settings->timeouts[i].seconds;
            break;
        }
    }
    return seconds > 0 && seconds < 0.001 ? 1 : (uint64_t)(seconds * 1000);
}
