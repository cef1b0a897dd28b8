#include "base/check.h"
#include "base/epoch.h"
#include "base/file.h"
#include "config/admin_address.h"
#include "config/values.h"

#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <pthread.h>
#include <pwd.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONFIG_MAGIC = 0x434F4E46, MAX_FILE = 16 << 20 };

/* ---- a snapshot's life ----------------------------------------------------------------------- */

/* What struct config.memory points to. */
struct config_memory {
    struct arena arena;
};

static struct config *config_new(void)
{
    struct config *config = calloc(1, sizeof *config);
    struct config_memory *memory = calloc(1, sizeof *memory);
    if (config == NULL || memory == NULL) {
        free(config);
        free(memory);
        return NULL;
    }
    arena_init(&memory->arena, 0);
    config->magic = CONFIG_MAGIC;
    config->memory = memory;
    atomic_init(&config->references, 1);
    return config;
}

struct config *config_ref(struct config *config)
{
    CHECK(config->magic == CONFIG_MAGIC);
    atomic_fetch_add_explicit(&config->references, 1, memory_order_relaxed);
    return config;
}

void config_unref(struct config *config)
{
    if (config == NULL) {
        return;
    }
    CHECK(config->magic == CONFIG_MAGIC);
    if (atomic_fetch_sub_explicit(&config->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    for (size_t i = 0; i < option_count; i++) {
        value_free(&options[i], config);
    }
    map_free(&config->download_extensions);
    struct config_memory *memory = config->memory;
    arena_reset(&memory->arena);
    free(memory);
    config->magic = 0;
    free(config);
}

/* Loop threads read the pointer alone, under the epoch; the lock is for those who need a
 * reference and are no registered readers. */
static struct config *_Atomic current;
static pthread_mutex_t current_lock = PTHREAD_MUTEX_INITIALIZER;

struct config *config_current(void)
{
    return atomic_load_explicit(&current, memory_order_acquire);
}

struct config *config_acquire(void)
{
    pthread_mutex_lock(&current_lock);
    struct config *config = config_current();
    if (config != NULL) {
        config_ref(config);
    }
    pthread_mutex_unlock(&current_lock);
    return config;
}

static void retire_config(void *arg)
{
    config_unref(MAGIC_CAST(struct config, arg, CONFIG_MAGIC));
}

void config_set_current(struct config *config)
{
    pthread_mutex_lock(&current_lock);
    struct config *old = atomic_exchange_explicit(&current, config, memory_order_acq_rel);
    pthread_mutex_unlock(&current_lock);
    if (old != NULL) {
        epoch_retire(retire_config, old);
    }
}

void config_errors_free(struct config_errors *errors)
{
    buffer_free(&errors->text);
    buffer_free(&errors->warnings);
    *errors = (struct config_errors){0};
}

/* ---- values from the three places ------------------------------------------------------------ */

static bool read_defaults(struct reader *r)
{
    for (size_t i = 0; i < option_count; i++) {
        cJSON *value = cJSON_Parse(options[i].default_json);
        bool ok = value != NULL && value_read(r, &options[i], value);
        cJSON_Delete(value);
        if (!ok) {
            errors_add(r->errors, NULL, 0, "the default of %s cannot be read", options[i].key);
            return false;
        }
    }
    return true;
}

static void read_file(struct reader *r, const struct source *source)
{
    r->source = source;
    for (const cJSON *item = source->root->child; item != NULL; item = item->next) {
        const struct option *option = option_find(str_of(item->string));
        if (option != NULL) {
            value_read(r, option, item);
            if (option->later != NULL) {
                errors_warn(r->errors, source->file, source_line(source, item),
                            "\"%s\": accepted, but not active in this version, which has no %s", option->key,
                            option->later);
            }
            continue;
        }
        const char *nearest = option_nearest(str_of(item->string));
        errors_add(r->errors, source->file, source_line(source, item), "\"%.100s\": unknown key%s%s%s", item->string,
                   nearest != NULL ? "; did you mean \"" : "; kiln --help lists the keys",
                   nearest != NULL ? nearest : "", nearest != NULL ? "\"?" : "");
    }
    r->source = NULL;
}

static void set_site(struct config *config, const struct option *option)
{
    /* One site is named on the command line: what the file named otherwise is out. */
    if (option->offset != offsetof(struct config, www_dir)) {
        config->www_dir = STR("");
    }
    if (option->offset != offsetof(struct config, site_dir)) {
        config->site_dir = STR("");
    }
}

static bool is_site(const struct option *option)
{
    return option->offset == offsetof(struct config, www_dir) || option->offset == offsetof(struct config, site_dir) ||
           option->offset == offsetof(struct config, backend_dir);
}

static void read_override(struct reader *r, const char *name, const char *text)
{
    const struct option *option = option_find_nocase(str_of(name));
    if (option == NULL) {
        const char *nearest = option_nearest(str_of(name));
        errors_add(r->errors, NULL, 0, "--%s: unknown option%s%s%s", name, nearest != NULL ? "; did you mean --" : "",
                   nearest != NULL ? nearest : "", nearest != NULL ? "?" : "");
        return;
    }
    if (text == NULL && option->type != OPTION_bool) {
        errors_add(r->errors, NULL, 0, "--%s: a value is missing; write --%s=VALUE", name, name);
        return;
    }
    cJSON *value = value_from_text(option, text != NULL ? text : "");
    if (value == NULL) {
        struct buffer expected = BUFFER_EMPTY;
        option_describe(option, &expected);
        errors_add(r->errors, NULL, 0, "--%s: expected %.*s; found %.60s", option->key, STR_ARG(buffer_str(&expected)),
                   text);
        buffer_free(&expected);
        return;
    }
    bool ok = value_read(r, option, value);
    cJSON_Delete(value);
    if (ok && is_site(option) && text != NULL && *text != '\0') {
        set_site(r->config, option);
    }
    if (option->later != NULL) {
        errors_warn(r->errors, NULL, 0, "--%s: accepted, but not active in this version, which has no %s", name,
                    option->later);
    }
}

static void read_overrides(struct reader *r, const struct config_overrides *overrides)
{
    if (overrides == NULL) {
        return;
    }
    char directory[PATH_MAX];
    if (getcwd(directory, sizeof directory) == NULL) {
        errors_add(r->errors, NULL, 0, "the current directory cannot be read: %s", strerror(errno));
        return;
    }
    const char *base_dir = r->base_dir;
    r->base_dir = directory;
    for (unsigned i = 0; i < overrides->count; i++) {
        read_override(r, overrides->name[i], overrides->value[i]);
    }
    if (overrides->directory != NULL) {
        read_override(r, "SiteDir", overrides->directory);
    }
    r->base_dir = base_dir;
}

/* ---- what follows from the values ------------------------------------------------------------ */

/* The real path where it exists; otherwise of its directory, then the name as it is. */
static struct str path_real(struct arena *arena, struct str path)
{
    char real[PATH_MAX];
    if (realpath(path.ptr, real) != NULL) {
        return arena_str(arena, str_of(real));
    }
    size_t slash = str_find_last(path, '/');
    char parent[PATH_MAX];
    if (slash == SIZE_MAX || slash == 0 || slash >= sizeof parent) {
        return path;
    }
    memcpy(parent, path.ptr, slash);
    parent[slash] = '\0';
    if (realpath(parent, real) == NULL) {
        return path;
    }
    return str_of(arena_printf(arena, "%s%s", strcmp(real, "/") == 0 ? "" : real, path.ptr + slash));
}

/* Our own files, that no URL may ever lead to. */
static bool derive_private_paths(struct reader *r, const char *file)
{
    struct config *config = r->config;
    const struct str own[] = {config->sessions_dir, config->cert_dir,  config->cache_dir,
                              config->pid_file,     config->error_log, config->access_log};
    struct config_strings *paths = &config->private_paths;
    paths->items = arena_alloc(r->arena, (ARRAY_LEN(own) + 2) * sizeof *paths->items);
    if (paths->items == NULL) {
        return false;
    }
    const char *slash = strrchr(file, '/');
    struct str name = path_absolute(r->arena, config->base_dir.ptr, str_of(slash != NULL ? slash + 1 : file));
    if (name.ptr == NULL) {
        return false;
    }
    paths->items[paths->count++] = name; /* the link itself, and what it leads to */
    paths->items[paths->count++] = path_real(r->arena, name);
    for (size_t i = 0; i < ARRAY_LEN(own); i++) {
        if (own[i].len > 0) {
            paths->items[paths->count++] = path_real(r->arena, own[i]);
        }
    }
    return true;
}

static bool derive_site(struct reader *r)
{
    struct config *config = r->config;
    if (config->www_dir.len > 0) {
        config->layout = SITE_STATIC_ONLY;
        config->web_root_name = config->www_dir;
    } else if (config->site_dir.len > 0) {
        config->layout = SITE_SINGLE;
        config->web_root_name = config->site_dir;
    } else {
        config->layout = SITE_PER_HOST;
        config->web_root_name = config->backend_dir;
    }
    if (config->web_root_name.len == 0) {
        errors_add(r->errors, NULL, 0,
                   "nothing to serve: name a directory (kiln DIR), or set WWWdir, SiteDir or BackendDir");
        return true;
    }
    config->web_root = path_real(r->arena, config->web_root_name);
    return config->web_root.ptr != NULL;
}

static bool derive(struct reader *r, const char *file)
{
    struct config *config = r->config;
    for (size_t i = 0; i < config->download_if_extension.count; i++) {
        if (!map_put(&config->download_extensions, config->download_if_extension.items[i], config, NULL)) {
            return false;
        }
    }
    return derive_site(r) && derive_private_paths(r, file);
}

/* Whoever reaches the admin listener is let in: others than this machine only when that is meant. */
static void check_admin(const struct config *config, struct config_errors *errors)
{
    struct admin_address address;
    if (config->admin_listen.len == 0 || config->admin_allow_remote ||
        !admin_address_parse(config->admin_listen, &address) || address.is_loopback) {
        return;
    }
    errors_add(errors, NULL, 0,
               "AdminListen \"%s\" can be reached from other machines, and nobody is asked for a password there: use "
               "127.0.0.1, [::1] or a socket (unix:/path), or allow it by AdminAllowRemote",
               config->admin_listen.ptr);
}

/* Values that are right alone and wrong together. */
static void check_together(const struct config *config, struct config_errors *errors)
{
    if (config->compress_min_size > config->compress_max_size) {
        errors_add(errors, NULL, 0, "CompressMinSize (%lld) is above CompressMaxSize (%lld)",
                   (long long)config->compress_min_size, (long long)config->compress_max_size);
    }
    if (config->session_max_value > config->session_max_size) {
        errors_add(errors, NULL, 0, "SessionMaxValue (%lld) is above SessionMaxSize (%lld)",
                   (long long)config->session_max_value, (long long)config->session_max_size);
    }
    if (config->session_max_size > config->session_store_size) {
        errors_add(errors, NULL, 0, "SessionMaxSize (%lld) is above SessionStoreSize (%lld)",
                   (long long)config->session_max_size, (long long)config->session_store_size);
    }
    if (config->max_uri_length > config->max_header_size) {
        errors_warn(errors, NULL, 0, "MaxUriLength (%lld) is above MaxHeaderSize (%lld), which holds first",
                    (long long)config->max_uri_length, (long long)config->max_header_size);
    }
    if (config->http_ports.count == 0 && config->https_ports.count == 0) {
        errors_add(errors, NULL, 0, "HttpPorts and HttpsPorts are empty: nothing to listen on");
    }
    if (config->client_certificates != CLIENT_CERTIFICATES_NONE && config->client_ca.len == 0) {
        errors_add(errors, NULL, 0,
                   "ClientCertificates asks for certificates, but ClientCA does not say of which "
                   "authority; name a file with its certificate there");
    }
    if (config->force_tls && config->force_tls_port == 0 && config->https_ports.count == 0) {
        errors_add(errors, NULL, 0,
                   "ForceTLS sends clients to https, but HttpsPorts is empty; name a port there, or in "
                   "ForceTLSPort");
    }
    check_admin(config, errors);
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* Directory of the file, or the current one; absolute, real when it is there. */
static bool find_base_dir(struct reader *r, const char *file)
{
    char directory[PATH_MAX];
    if (getcwd(directory, sizeof directory) == NULL) {
        errors_add(r->errors, NULL, 0, "the current directory cannot be read: %s", strerror(errno));
        return false;
    }
    const char *slash = strrchr(file, '/');
    struct str parent = slash == NULL ? STR(".") : (struct str){file, slash == file ? 1 : (size_t)(slash - file)};
    struct str path = path_absolute(r->arena, directory, parent);
    r->config->base_dir = path.ptr != NULL ? path_real(r->arena, path) : path;
    r->base_dir = r->config->base_dir.ptr;
    return r->base_dir != NULL;
}

struct config *config_parse(struct str text, const char *file, const struct config_overrides *overrides,
                            struct config_errors *errors)
{
    unsigned before = errors->count;
    file = file != NULL ? file : CONFIG_DEFAULT_FILE;
    struct config *config = config_new();
    if (config == NULL) {
        errors_add(errors, NULL, 0, "out of memory while reading the configuration");
        return NULL;
    }
    struct config_memory *memory = config->memory;
    struct reader reader = {.config = config, .arena = &memory->arena, .errors = errors};
    bool ok = find_base_dir(&reader, file) && read_defaults(&reader);
    struct source source;
    if (ok && text.ptr != NULL && source_open(&source, text, file, errors)) {
        read_file(&reader, &source);
        source_close(&source);
    }
    if (ok) {
        read_overrides(&reader, overrides);
        ok = derive(&reader, file);
    }
    if (ok && errors->count == before) {
        check_together(config, errors);
    } else if (!ok && errors->count == before) {
        errors_add(errors, NULL, 0, "out of memory while reading the configuration");
    }
    if (errors->count != before) {
        config_unref(config);
        return NULL;
    }
    return config;
}

/* Handy while one tries things out, so only a word about it. */
static void check_private(const struct config *config, struct config_errors *errors)
{
    struct buffer inside = BUFFER_EMPTY;
    size_t root = str_eq(config->web_root, STR("/")) ? 0 : config->web_root.len;
    for (size_t i = 0; i < config->private_paths.count; i++) {
        struct str path = config->private_paths.items[i];
        bool again = i > 0 && str_eq(path, config->private_paths.items[i - 1]);
        if (!again && access(path.ptr, F_OK) == 0 && str_starts(path, config->web_root) && path.len > root &&
            path.ptr[root] == '/') {
            buffer_printf(&inside, "%s%s", inside.len > 0 ? ", " : "", path.ptr + root + 1);
        }
    }
    if (inside.len > 0) {
        errors_warn(errors, NULL, 0, "kept inside the web directory %s, and not served: %.*s", config->web_root.ptr,
                    STR_ARG(buffer_str(&inside)));
    }
    buffer_free(&inside);
}

/* Said here too, so that --check and a reload find it before a worker cannot start. */
static bool check_accounts(const struct config *config, struct config_errors *errors)
{
    uint64_t number;
    bool ok = true;
    if (config->user.len > 0 && !str_to_u64(config->user, UINT32_MAX - 1, &number) &&
        getpwnam(config->user.ptr) == NULL) {
        errors_add(errors, NULL, 0, "User \"%s\" does not exist; create it, or name another", config->user.ptr);
        ok = false;
    }
    if (config->group.len > 0 && !str_to_u64(config->group, UINT32_MAX - 1, &number) &&
        getgrnam(config->group.ptr) == NULL) {
        errors_add(errors, NULL, 0, "Group \"%s\" does not exist; create it, or name another", config->group.ptr);
        ok = false;
    }
    return ok;
}

static bool check_disk(const struct config *config, struct config_errors *errors)
{
    struct stat st;
    int error = stat(config->web_root.ptr, &st) != 0 ? errno : S_ISDIR(st.st_mode) ? 0 : ENOTDIR;
    if (error == 0 && access(config->web_root.ptr, R_OK | X_OK) != 0) {
        error = errno;
    }
    if (error == 0) {
        check_private(config, errors);
        return check_accounts(config, errors);
    }
    static const char *const keys[] = {
        [SITE_SINGLE] = "the site's directory", [SITE_PER_HOST] = "BackendDir", [SITE_STATIC_ONLY] = "WWWdir"};
    errors_add(errors, NULL, 0, "%s %s: %s; name the directory to serve: kiln DIR", keys[config->layout],
               config->web_root_name.ptr, strerror(error));
    return false;
}

struct config *config_load(const char *file, bool optional, const struct config_overrides *overrides,
                           struct config_errors *errors)
{
    struct buffer text = BUFFER_EMPTY;
    struct config *config = NULL;
    if (file == NULL) {
        file = CONFIG_DEFAULT_FILE;
        optional = true;
    }
    if (file_read(file, MAX_FILE, &text)) {
        struct str whole = text.data != NULL ? buffer_str(&text) : STR("");
        config = config_parse(whole, file, overrides, errors);
    } else if (errno == ENOENT && optional) {
        config = config_parse(STR_NONE, file, overrides, errors);
    } else {
        errors_add(errors, NULL, 0, "%s: cannot be read: %s", file, strerror(errno));
    }
    buffer_free(&text);
    if (config != NULL && !check_disk(config, errors)) {
        config_unref(config);
        config = NULL;
    }
    return config;
}
