/* What a build is made of: settings, diagnostics, dependencies, result. Used by the loaders and
 * the builder; nothing outside server/endpoint includes it. */
#ifndef KILN_ENDPOINT_BUILD_H
#define KILN_ENDPOINT_BUILD_H

#include "base/buffer.h"
#include "base/str.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct config;
struct cache;

enum { HASH_SIZE = 32, HASH_HEX = 2 * HASH_SIZE };
/* CompilerTimeout bounds processor time; by the clock a build may take so many times that, since a
 * busy machine is no fault of the source. */
enum { WALL_FACTOR = 3 };

/* ---- settings.c: what of the config a build depends on; an immutable snapshot ------------------- */
enum compiler_kind { COMPILER_NONE, COMPILER_GCC, COMPILER_CLANG };

struct settings {
    _Atomic unsigned references;
    unsigned generation;
    char *helper; /* kiln-cc; NULL: not found */
    char *sdk_include; /* directory of kiln.h and kiln_tcc.h; NULL: not found */
    bool out_of_reach; /* what is installed beside the program is closed to the user as whom requests are served */
    char *web_root; /* absolute, no slash at the end; "" when unknown */
    char *compiler; /* gcc or clang; NULL: none installed */
    enum compiler_kind compiler_kind;
    char **include_paths;
    size_t include_count;
    char **offload;
    size_t offload_count;
    char **isolate; /* Isolate */
    size_t isolate_count;
    struct {
        char *pattern;
        double seconds;
    } * timeouts; /* EndpointTimeouts */
    size_t timeout_count;
    double request_timeout;
    bool enable_c;
    bool enable_so;
    bool optimize;
    bool per_host;
    double timeout; /* seconds */
    uint64_t memory;
    /* Stand for the compiler, its version, flags and include directories, and the SDK. */
    unsigned char tcc_fingerprint[HASH_SIZE];
    unsigned char native_fingerprint[HASH_SIZE];
};

struct settings *settings_create(const struct config *config);
struct settings *settings_ref(struct settings *settings);
void settings_unref(struct settings *settings);
/* True when every source gives the same build under both, and it lives in the same place. */
/* Why no C source can be compiled, for people; NULL: it can. */
const char *settings_lack(const struct settings *settings);
bool settings_same_builds(const struct settings *a, const struct settings *b);
/* True when OffloadEndpoints names this file. */
bool settings_offload(const struct settings *settings, struct str file);
/* True when one of the patterns, as in Isolate, names the endpoint with this file. */
bool config_isolates(const struct config *config, struct str file);
bool config_isolated_writes(const struct config *config, struct str file);
/* RequestTimeout for this file in milliseconds; 0: none. */
uint64_t settings_request_timeout(const struct settings *settings, struct str file);

/* ---- diagnostics (report.c, diagnostics.c) ------------------------------------------------------- */
enum severity { SEVERITY_ERROR, SEVERITY_WARNING, SEVERITY_NOTE };

struct diagnostic {
    enum severity severity;
    unsigned line; /* 0: no place */
    char *file; /* "" : no place */
    char *message;
};

struct diagnostics {
    struct diagnostic *items;
    size_t count;
    size_t cap;
};

enum { DIAGNOSTICS_MAX = 200 };

/* Copies; ignores more than DIAGNOSTICS_MAX, except that the first error always fits. */
void diagnostics_add(struct diagnostics *d, enum severity severity, struct str file, unsigned line, struct str message);
/* The first error, or NULL. */
const struct diagnostic *diagnostics_first_error(const struct diagnostics *d);
void diagnostics_free(struct diagnostics *d);

/* ---- dependencies (dependency.c) -------------------------------------------------------------------- */
struct dependency {
    char *path;
    bool missing; /* looked for and not there; a build may change when it appears */
    uint64_t size;
    uint64_t mtime_ns;
    uint64_t inode;
    unsigned char hash[HASH_SIZE]; /* of the content */
};

struct dependencies {
    struct dependency *items;
    size_t count;
    size_t cap;
};

struct dependency *dependencies_add(struct dependencies *d, struct str path, bool missing);
void dependencies_free(struct dependencies *d);
/* Reads and hashes every file. False when one is not as it was when the compiler read it (or
 * is gone): the build saw a mixture. */
bool dependencies_hash(struct dependencies *d);
/* Of a record: true when every file still has the recorded content, whose size, time and inode are taken. An edit
 * after that is seen by dependencies_changed. */
bool dependencies_confirm(struct dependencies *d);
/* True when a file has other content than recorded, is gone, or a missing one is there. Files
 * whose size, time and inode are the same are only read when `thorough`. */
bool dependencies_changed(const struct dependencies *d, bool thorough);
/* True when one lies outside both directories, where nobody watches it. */
bool dependencies_unwatched(const struct dependencies *d, const char *web_root, const char *sdk_include);
/* True when one has this last path component. */
bool dependencies_name(const struct dependencies *d, struct str name);

/* ---- hashing (dependency.c) ---------------------------------------------------------------------------- */
struct hasher;
/* NULL when out of memory. */
struct hasher *hasher_create(void);
void hasher_add(struct hasher *h, const void *data, size_t len);
/* Adds the length too, so that two fields never run together. */
void hasher_add_field(struct hasher *h, struct str field);
/* Frees it. */
void hasher_finish(struct hasher *h, unsigned char out[HASH_SIZE]);
bool hash_file(const char *path, unsigned char out[HASH_SIZE]);
void hash_hex(const unsigned char hash[HASH_SIZE], char out[HASH_HEX + 1]);
bool hash_from_hex(struct str hex, unsigned char out[HASH_SIZE]);
/* Copies `from` to the new file `to` (0600) and hashes what it copied. False with errno. */
bool copy_file(const char *from, const char *to, unsigned char hash[HASH_SIZE]);

/* ---- result -------------------------------------------------------------------------------------------- */
struct build_job {
    const char *source; /* absolute path */
    char output[PATH_MAX];
    const struct settings *settings;
    struct cache *cache;
};

struct build_result {
    bool ok;
    bool transient; /* failed for a reason that may pass by itself: worth another try */
    bool moved; /* failed because a file changed while it was compiled */
    bool from_cache;
    bool optimized; /* by gcc or clang */
    const char *compiler; /* "tcc", "gcc", "clang", or "" for a file that is loaded as it is */
    struct diagnostics diagnostics; /* warnings too, when ok */
    struct dependencies dependencies; /* also when it failed */
    unsigned char content[HASH_SIZE]; /* stands for source and includes, whatever the compiler */
};

void build_result_free(struct build_result *result);
/* An error without a place in the source. */
void build_fail(struct build_result *result, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Sets result->content from the dependencies. */
void build_content_hash(struct build_result *result, const char *source);

/* ---- helper.c: running kiln-cc and compilers ---------------------------------------------------------------- */
struct helper_run {
    const char *const *argv; /* NULL at the end; argv[0] is an absolute path */
    const char *temp_dir; /* TMPDIR of the child */
    double wall; /* seconds; killed after, with its process group */
    bool may_wait; /* argv[0] is kiln-cc: the one that was started ahead may do it */
    struct buffer output; /* what it wrote to 1, 2 and 3; bounded */
    int status; /* as from waitpid */
    bool timed_out;
    bool stopped; /* helpers_stop() */
    int spawn_error; /* errno */
};

/* Runs to its end. False when it could not be started. */
bool helper_run(struct helper_run *run);
/* Starts the kiln-cc that waits for the next build, when none does. */
void helper_warm_up(const char *program);
/* Kills those that run and refuses new ones, until helpers_allow(). */
void helpers_stop(void);
void helpers_allow(void);
/* Why it died, in words ("took longer than 5 s"), or NULL when it ended by itself. `buffer` holds the
 * words. */
const char *helper_death(const struct helper_run *run, const struct settings *settings, char *text, size_t size);

/* ---- report.c: what helpers write ------------------------------------------------------------------------------ */
/* kiln-cc's report. True when it ended with "E ok". Lines that are no records go to `stray` (may be
 * NULL). */
bool report_parse(struct str text, struct diagnostics *diagnostics, struct dependencies *dependencies,
                  struct buffer *stray);
/* gcc's and clang's "file:line:column: error: message". */
void compiler_output_parse(struct str text, struct diagnostics *diagnostics);
/* The files of a make rule ("x.o: a.c b.h \"). */
void make_rule_parse(struct str text, struct dependencies *dependencies);
/* The libraries named by `#pragma comment(lib, "x")` in preprocessed text, appended as "-lx" strings
 * separated by NUL; only names that can be part of one. Returns how many. */
unsigned pragma_libraries(struct str text, struct buffer *out);

/* ---- native.c: gcc and clang -------------------------------------------------------------------------------------- */
/* Compiles with optimisation; result as from a loader's build. `patience` multiplies the time limit. */
bool native_build(struct build_job *job, struct build_result *result, double patience);

/* ---- cache.c --------------------------------------------------------------------------------------------------------- */
/* NULL with a log line when no directory can be used. */
struct cache *cache_open(const char *configured, const char *web_root);
void cache_close(struct cache *cache);
const char *cache_directory(const struct cache *cache);
/* A new path in this process's private directory: "<dir>/<number>-<name><suffix>". */
void cache_private_path(struct cache *cache, struct str name, const char *suffix, char out[PATH_MAX]);
/* Copies the object of this source, compiler and content to `output`; fills dependencies and content.
 * False when there is none. */
bool cache_lookup(struct cache *cache, const char *source, const unsigned char fingerprint[HASH_SIZE],
                  const char *output, struct build_result *result);
/* The same for the last build of this source by either compiler, whatever has become of its files since. */
bool cache_last_good(struct cache *cache, const char *source, const struct settings *settings, const char *output,
                     struct build_result *result);
/* Remembers a build. Errors are logged at debug level: a cache that fails only costs time. */
void cache_store(struct cache *cache, const char *source, const unsigned char fingerprint[HASH_SIZE],
                 const char *object, const struct build_result *result);
/* Removes a directory with its files, and those `depth` levels below. */
void directory_remove(const char *directory, unsigned depth);
/* Removes what processes left that died without a chance to. */
void cache_remove_dead_runs(const struct cache *cache);
/* Removes what is old or too much. */
void cache_prune(struct cache *cache);

/* ---- build_error.c ------------------------------------------------------------------------------------------------------ */
/* "shop/cart._c:12: error: message"; file names relative to web_root. */
void build_error_text(const struct build_result *result, const char *source, const char *web_root, struct buffer *out);
/* The whole page for DebugPages. */
void build_error_page(const struct build_result *result, const char *source, const char *web_root, struct buffer *html);
/* Help for a message, or NULL. */
const char *build_error_hint(const char *message);

/* ---- elf_file.c ------------------------------------------------------------------------------------------------------------ */
enum elf_verdict {
    ELF_GOOD,
    ELF_UNREADABLE,
    ELF_NOT_ELF,
    ELF_TRUNCATED,
    ELF_WRONG_CLASS, /* 32 bits or big-endian */
    ELF_WRONG_MACHINE,
    ELF_NOT_SHARED, /* an object file or a plain program */
    ELF_MALFORMED,
};

struct elf_facts {
    uint16_t machine;
    bool has_run;
    bool has_socket;
    bool has_load;
    bool has_unload;
    bool has_stamp;
    bool has_constructors; /* the author's: code that dlopen runs */
    uint32_t stamp[4];
};

enum elf_verdict elf_inspect(const char *path, struct elf_facts *facts);
/* trial.c: false when a constructor crashes or hangs; says so in the result. */
bool trial_load(const char *file, bool constructors, const struct settings *settings, struct build_result *result);
const char *elf_machine_name(uint16_t machine);
/* True unless it is certain that the object keeps nothing between calls: no writable variable, no
 * constructor. */
bool elf_has_state(const char *path);

#endif
