/* DESIGN: a config is an immutable snapshot with a reference count. options.def is the
 * one table of every key: name, type, bounds, default, help, and whether its feature is
 * active; the struct below, --help, validation, `kiln config --defaults` and kiln.json(5)
 * are all made from it. A reload builds a second snapshot and swaps the pointer; what is
 * running keeps the one it started with. */
#ifndef KILN_CONFIG_CONFIG_H
#define KILN_CONFIG_CONFIG_H

#include "base/buffer.h"
#include "base/map.h"
#include "base/str.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* One "Name: value" line of DefaultHeaders or ExtTypes, ready for the wire. */
struct config_header {
    struct str name;
    struct str value;
    struct str lower; /* the name as HTTP/2 has it */
};

struct config_headers {
    struct config_header *items;
    size_t count;
};

struct config_strings {
    struct str *items; /* NUL-terminated each */
    size_t count;
};

struct config_ports {
    uint16_t *items;
    size_t count;
};

/* Option types in options.def and the C type of the member each one makes. */
typedef bool config_bool;
typedef int64_t config_int; /* null in JSON: the option's "none" value, 0 */
typedef int64_t config_size; /* bytes; "64M" in JSON as well */
typedef double config_number;
typedef struct str config_string; /* NUL-terminated, "" when unset */
typedef struct str config_path; /* NUL-terminated and absolute, "" when unset */
typedef struct config_strings config_list;
typedef struct config_strings config_path_list; /* absolute */
typedef struct config_ports config_port_list;
typedef struct map config_string_map; /* key -> struct str * */
typedef struct map config_header_map; /* extension (lower case, no dot) -> struct config_headers * */
typedef struct config_headers config_header_list;
typedef int config_enum; /* one of the enums below */

enum compression_level { COMPRESSION_OPTIMAL, COMPRESSION_FASTEST, COMPRESSION_NONE, COMPRESSION_SMALLEST };
enum access_log_format { ACCESS_LOG_COMBINED, ACCESS_LOG_JSON };
enum session_store_kind { SESSION_STORE_LMDB, SESSION_STORE_MEMORY };
enum session_sync_kind { SESSION_SYNC_GROUPED, SESSION_SYNC_STRICT };
enum tls_profile { TLS_PROFILE_INTERMEDIATE, TLS_PROFILE_MODERN };
enum client_certificates { CLIENT_CERTIFICATES_NONE, CLIENT_CERTIFICATES_OPTIONAL, CLIENT_CERTIFICATES_REQUIRED };
enum unknown_names { UNKNOWN_NAMES_DEFAULT, UNKNOWN_NAMES_REFUSE };
/* log_level: enum log_level of observe/log.h */

struct config {
    uint32_t magic;
    _Atomic unsigned references;
#define OPTION(member, name, type, ...) config_##type member;
#include "config/options.def"
#undef OPTION
    /* Derived from the above by config.c. */
    struct str base_dir; /* directory that relative paths start from, no trailing slash */
    struct str web_root; /* absolute, real path of WWWdir, SiteDir (`kiln DIR`) or BackendDir */
    enum { SITE_SINGLE, SITE_PER_HOST, SITE_STATIC_ONLY } layout;
    struct str web_root_name; /* the same absolute path as configured, symbolic links not resolved */
    struct map download_extensions; /* lower case -> non-NULL */
    struct config_strings private_paths; /* our own files (config, sessions, logs, ...): never served,
                                            even where they lie inside web_root */
    void *memory; /* private to config.c */
};

struct config *config_ref(struct config *config);
void config_unref(struct config *config);

/* The process's current snapshot, NULL before the first. Loop threads use it within one
 * iteration without a reference (epoch-protected); others call config_acquire(). */
struct config *config_current(void);
/* The current snapshot with a reference of the caller's; any thread. */
struct config *config_acquire(void);
/* Publishes `config` and takes over the caller's reference; the one before is let go
 * once no loop can be reading it. */
void config_set_current(struct config *config);

/* ---- loading --------------------------------------------------------------------------- */

enum { CONFIG_ERRORS_TOLD = 100 }; /* of one file: nobody reads more, and each is looked for from its beginning */

/* What went wrong, for a person: "kiln.json:12: \"httpPort\": unknown key; did you mean
 * \"HttpPorts\"?" One line per problem, all problems of the file at once, up to CONFIG_ERRORS_TOLD. */
struct config_errors {
    struct buffer text;
    unsigned count;
    struct buffer warnings; /* inactive keys and the like; one line each */
};

void config_errors_free(struct config_errors *errors);

enum { CONFIG_OVERRIDES = 128 };

/* Command-line settings that stand above the file. The caller owns the text. */
struct config_overrides {
    const char *name[CONFIG_OVERRIDES]; /* option key in any case, or a short name ("httpPort") */
    const char *value[CONFIG_OVERRIDES]; /* NULL: no value given */
    unsigned count;
    const char *directory; /* `kiln DIR`, or NULL */
};

/* `text` is the whole JSON (with comments); `file` names it in messages and gives
 * base_dir (file NULL: kiln.json in the current directory). text.ptr NULL: defaults and overrides
 * only. NULL on errors. Relative paths of overrides start from the current directory. */
struct config *config_parse(struct str text, const char *file, const struct config_overrides *overrides,
                            struct config_errors *errors);
#define CONFIG_DEFAULT_FILE "kiln.json"

/* Reads the file and calls config_parse(), then checks what is on the disk: the web
 * directory is there. A missing file is an error unless `optional`; file NULL is
 * kiln.json in the current directory, when there is one. */
struct config *config_load(const char *file, bool optional, const struct config_overrides *overrides,
                           struct config_errors *errors);

/* The commented default file. */
void config_print_defaults(struct buffer *out);
/* The option part of --help. */
void config_print_help(struct buffer *out, bool colour);
/* The options section of kiln.json(5), in mdoc/man markup. */
void config_print_man(struct buffer *out);
/* The whole snapshot as JSON, for handing it to the worker; config_parse() reads it back. */
void config_print(const struct config *config, struct buffer *out);

#endif
