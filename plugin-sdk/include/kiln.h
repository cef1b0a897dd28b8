/* kiln.h: the SDK of the Kiln application server, for endpoints written in C, C++ or any
 * language that exports C symbols. What is not in this header is no API.
 *
 * AN ENDPOINT
 *     #include <kiln.h>
 *     int kiln_run(kiln_context *ctx, const char *path)
 *     {
 *         kiln_content_type(ctx, "text/plain");
 *         kiln_printf(ctx, "Hello there! Path: %s\n", path);
 *         return 0;
 *     }
 * Save it as hello._c below the web root and the server compiles it, or build it as
 * hello.so with `cc -shared -fPIC $(pkg-config --cflags kiln)`.
 *
 * LIFETIMES
 * - A kiln_context is valid from the start of kiln_run to its return. Keep no pointer to it.
 * - Every string and block that the SDK returns belongs to the request and stays valid until
 *   the response is sent (a little longer than kiln_run). Never free one, copy what you keep.
 * - Strings that you pass in are copied; they may go as soon as the call returns.
 * - Text is UTF-8 by convention, NUL-terminated; sizes are bytes; times say their unit.
 *
 * THREADS AND COROUTINES
 * - kiln_run is called by many threads at once, once per request. Static variables are shared
 *   by all requests: use kiln_atomic_* or a pthread mutex for what changes.
 * - Each call of kiln_run runs in a coroutine of 256 KB stack (option StackSize) on a thread
 *   that serves many others. Functions marked WAITS below suspend only this coroutine: the
 *   thread goes on with other requests, and so may call your kiln_run again meanwhile. So
 *   hold no mutex and trust no thread-local value across a call that WAITS. The thread is
 *   the same before and after such a call.
 * - Code that blocks the thread itself (a database call, a long computation) belongs in
 *   kiln_offload(), or the whole endpoint on the pool: define KILN_OFFLOAD before including
 *   this header. The server also moves an endpoint there by itself once it sees it block. On
 *   a pool thread every function below works the same; those that WAIT block that thread.
 * - A kiln_context is used by one thread at a time: by kiln_run, or by the function it gave
 *   to kiln_offload while that runs. Threads of your own never touch it.
 * - Never let a C++ exception or a longjmp leave kiln_run or pass through an SDK call.
 *
 * ISOLATION
 * The server's owner may run an endpoint in a process of its own with few rights (option Isolate). The
 * same build works there; it reads its directory, writes in the subdirectory .data of it and in the
 * directory that the environment variable TMPDIR names, starts no programs and has no network unless
 * allowed. Such a process may end when idle, and static variables with it.
 *
 * RESULTS
 * Functions that return int return KILN_OK (0) or one of the negative values of enum
 * kiln_result unless they say otherwise. Functions that return a pointer return NULL for
 * absent or failed; kiln_last_result() tells which.
 *
 * VERSIONS
 * Since: everything here is in SDK 1.0 unless a line says otherwise. Within one major version
 * functions are only added. A module says by its stamp (below) what it was built for, and a
 * server that is too old for it refuses it with that reason. */
#ifndef KILN_H
#define KILN_H

#ifdef KILN_WS_SHARED
#error "kiln.h stands before kiln_ws.h; a program without the server needs kiln_ws.h alone"
#endif
#define KILN_WS_SHARED /* kiln_ws.h leaves out what stands here */

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __TINYC__
/* The C library's headers erase __attribute__ for this compiler, and with it packed, aligned and
 * the weak stamp below. */
#include <sys/cdefs.h>
#undef __attribute__
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ==== version and module stamp ===================================================================== */

#define KILN_SDK_MAJOR 1
#define KILN_SDK_MINOR 0
#define KILN_ABI_MAGIC 0x4b494c4eu /* "KILN" */

/* Flags of a module. */
#define KILN_MODULE_OFFLOAD 1u /* kiln_run always runs on the thread pool */

#if defined(__GNUC__) && !defined(__TINYC__)
#define KILN_API __attribute__((visibility("default")))
#define KILN_PRINTF(format_at, args_at) __attribute__((format(printf, format_at, args_at)))
#else
#define KILN_API
#define KILN_PRINTF(format_at, args_at)
#endif

/* The stamp that the server reads when it loads a module: magic, major, minor, flags. Including this
 * header defines it, weakly, so that any number of source files may. Define KILN_OFFLOAD in the one
 * file that has kiln_run, before the include, to ask for the pool. Languages other than C and C++
 * export `unsigned int kiln_module_abi[4]` themselves. */
#ifndef KILN_NO_STAMP
#ifdef KILN_OFFLOAD
extern const unsigned kiln_module_abi[4] KILN_API;
const unsigned kiln_module_abi[4] = {KILN_ABI_MAGIC, KILN_SDK_MAJOR, KILN_SDK_MINOR, KILN_MODULE_OFFLOAD};
#else
extern const unsigned kiln_module_abi[4] KILN_API __attribute__((weak));
const unsigned kiln_module_abi[4] = {KILN_ABI_MAGIC, KILN_SDK_MAJOR, KILN_SDK_MINOR, 0};
#endif
#endif

/* Version of the running server, "0.1.0". Static. */
KILN_API const char *kiln_version(void);
/* SDK version of the running server: major in the upper, minor in the lower 16 bits. */
KILN_API unsigned kiln_sdk_version(void);

/* ==== types ========================================================================================= */

typedef struct kiln_context kiln_context; /* one request and its response */
typedef struct kiln_module kiln_module; /* one loaded build of an endpoint */
typedef struct kiln_part kiln_part; /* one part of a multipart/form-data body */
typedef struct kiln_local kiln_local; /* a variable with one value per thread */
typedef struct kiln_ws kiln_ws; /* one WebSocket */
struct cJSON; /* of <cjson/cJSON.h>; link with -lcjson to use it */

enum kiln_result {
    KILN_OK = 0,
    KILN_GONE = -1, /* the client left, or the response was cut: stop, nobody listens */
    KILN_TIMEOUT = -2, /* the time given, or a limit of the server, has passed */
    KILN_TOO_LARGE = -3, /* beyond MaxRequestBodySize, RequestMemoryLimit, or a session's limits */
    KILN_NO_MEMORY = -4, /* no memory, no descriptor, no thread, or a full disk */
    KILN_INVALID = -5, /* an argument that cannot be, or malformed data of the client */
    KILN_NOT_FOUND = -6, /* absent */
    KILN_LATE = -7, /* too late: the response head is sent, or the body was read another way */
    KILN_FAILED = -8 /* anything else; the server's log tells more */
};

/* Why the last call that returned NULL did so: KILN_NOT_FOUND for something that is just absent.
 * Any other call leaves it as it is. */
KILN_API int kiln_last_result(const kiln_context *ctx);

/* ==== what you define ================================================================================ */

/* Every HTTP request. `path` is kiln_path(ctx). Return 0 when you made the response, or a status from
 * 200 to 599: it goes out with what was written so far or, from 400 on and when nothing was written,
 * with the site's error page. A negative kiln_result may be returned as it is: KILN_INVALID becomes
 * 400, KILN_NOT_FOUND 404, KILN_TIMEOUT 408, KILN_TOO_LARGE 413, KILN_NO_MEMORY 503, others 500,
 * and KILN_GONE sends nothing. A failure after the head is sent cuts the connection, so that the
 * client sees that the answer is not whole. */
KILN_API int kiln_run(kiln_context *ctx, const char *path);

/* Optional: every WebSocket; see WebSockets below. `path` is as for kiln_run. */
KILN_API void kiln_socket(kiln_ws *ws, const char *path);

/* Optional: once, before the first request of this build, on a thread where blocking is allowed.
 * Return 0; anything else refuses the build and the number is logged. */
KILN_API int kiln_load(kiln_module *module);

/* Optional: once, after the last request of this build has ended, before its code is unmapped.
 * Stop your threads and free what kiln_load made. */
KILN_API void kiln_unload(kiln_module *module);

/* The file that the module was made from, absolute; and the directory it lies in, without a slash
 * at the end. Valid as long as the module. */
KILN_API const char *kiln_module_file(const kiln_module *module);
KILN_API const char *kiln_module_directory(const kiln_module *module);

/* ==== request ======================================================================================== */

/* "GET", "POST"...: as sent. */
KILN_API const char *kiln_method(const kiln_context *ctx);
/* True when the method is `method` (upper case). */
KILN_API int kiln_method_is(const kiln_context *ctx, const char *method);
/* URL path, percent-decoded, begins with '/', without query and without dot segments. */
KILN_API const char *kiln_path(const kiln_context *ctx);
/* The endpoint's own URL: "/shop" of "/shop/cart/7" for shop._c; "/shop/" for shop/index._c. */
KILN_API const char *kiln_script_name(const kiln_context *ctx);
/* What follows it: "/cart/7"; "" when nothing does. */
KILN_API const char *kiln_path_info(const kiln_context *ctx);
/* The request target as sent: path and query, still encoded. */
KILN_API const char *kiln_target(const kiln_context *ctx);
/* Query string as sent, without '?'; "" when there is none. */
KILN_API const char *kiln_query(const kiln_context *ctx);
/* First value of a query parameter, decoded; "" for a name without '='; NULL when absent. */
KILN_API const char *kiln_query_get(kiln_context *ctx, const char *name);
/* Parameter number `index`, from 0, in the order sent. Returns 1, or 0 past the end. Any of the
 * three pointers may be NULL; `length` counts the value's bytes, which may include NUL. */
KILN_API int kiln_query_at(kiln_context *ctx, size_t index, const char **name, const char **value, size_t *length);

/* First header of that name (case-insensitive), without surrounding blanks; NULL when absent. */
KILN_API const char *kiln_header(const kiln_context *ctx, const char *name);
/* Header number `index`, from 0, in the order received. Returns 1, or 0 past the end. */
KILN_API int kiln_header_at(const kiln_context *ctx, size_t index, const char **name, const char **value);
/* A header that came after a chunked body; complete once the body was read to its end. */
KILN_API const char *kiln_trailer(const kiln_context *ctx, const char *name);
/* First cookie of that name (case matters), as sent, without double quotes around it; NULL when absent. */
KILN_API const char *kiln_cookie(kiln_context *ctx, const char *name);
KILN_API int kiln_cookie_at(kiln_context *ctx, size_t index, const char **name, const char **value);

/* Host as the client named it, lower case, with the port if it was sent. */
KILN_API const char *kiln_host(const kiln_context *ctx);
/* Name of the site: the host without port, after DomainAlias. */
KILN_API const char *kiln_hostname(const kiln_context *ctx);
/* "192.0.2.1" or "2001:db8::1"; "unix" for a local socket. */
KILN_API const char *kiln_remote_address(kiln_context *ctx);
KILN_API unsigned kiln_remote_port(const kiln_context *ctx);
/* 1 when the connection is encrypted (https). */
KILN_API int kiln_is_secure(const kiln_context *ctx);
/* Who the client's certificate names ("CN=Ada,O=Example") and its SHA-256 in hexadecimal; NULL when it
 * showed none. One that is shown was signed by an authority of ClientCA (see ClientCertificates). */
KILN_API const char *kiln_client_subject(const kiln_context *ctx);
KILN_API const char *kiln_client_fingerprint(const kiln_context *ctx);
/* "HTTP/1.0", "HTTP/1.1", "HTTP/2". */
KILN_API const char *kiln_protocol(const kiln_context *ctx);
/* The directory that holds the endpoint's file: absolute, without a slash at the end. Names in it
 * that begin with a dot are never served, so private data may lie there as ".name". */
KILN_API const char *kiln_directory(const kiln_context *ctx);

/* ==== request body ===================================================================================
 * Nothing is read before you ask. Take the body in ONE of these ways; a second way gives KILN_LATE:
 * whole (kiln_body, kiln_form_*, kiln_part_*, kiln_json, which may be mixed), streamed raw
 * (kiln_body_read), or streamed multipart (kiln_upload_*). What you leave unread is dropped. The
 * limits MaxRequestBodySize and bytesPerSecond of the server hold for all of them. */

/* Content-Length; -1 when it is not known (chunked); 0 without a body. */
KILN_API int64_t kiln_body_length(const kiln_context *ctx);
/* WAITS for the whole body and returns it with a NUL behind its last byte; *length (may be NULL)
 * is its size, 0 without a body. Past BodyMemoryLimit the bytes lie in a temporary file that is
 * mapped for you, so large bodies cost address space and not memory. NULL: kiln_last_result() is
 * KILN_GONE, KILN_TIMEOUT, KILN_TOO_LARGE, KILN_INVALID (malformed), KILN_NO_MEMORY or KILN_LATE. */
KILN_API const char *kiln_body(kiln_context *ctx, size_t *length);
/* WAITS until at least one byte is there and copies at most `size` bytes to `buffer`. Returns how
 * many, 0 at the end, or a negative kiln_result as for kiln_body. The client is slowed down to the
 * pace at which you read. */
KILN_API ssize_t kiln_body_read(kiln_context *ctx, void *buffer, size_t size);

/* Fields of an application/x-www-form-urlencoded or multipart/form-data body (of the latter the
 * parts without file name, up to 1 MB each). WAITS for the whole body at the first call. Returns as
 * kiln_query_get and kiln_query_at; on a failure NULL or 0 with kiln_last_result() set. */
KILN_API const char *kiln_form_get(kiln_context *ctx, const char *name);
KILN_API int kiln_form_at(kiln_context *ctx, size_t index, const char **name, const char **value, size_t *length);

/* The body as JSON. WAITS for the whole body. The tree belongs to the request: never cJSON_Delete
 * it. NULL with KILN_INVALID when it is not valid JSON. */
KILN_API struct cJSON *kiln_json(kiln_context *ctx);

/* ---- multipart/form-data, whole: in memory or, past BodyMemoryLimit, in a temporary file that
 * vanishes with the request. WAITS for the whole body at the first call. */

/* First part of that name, or NULL. */
KILN_API kiln_part *kiln_part_get(kiln_context *ctx, const char *name);
/* Part number `index` from 0, or NULL past the end. */
KILN_API kiln_part *kiln_part_at(kiln_context *ctx, size_t index);
/* Name of the form field; "" when it has none. */
KILN_API const char *kiln_part_name(const kiln_part *part);
/* File name as the client claims it, reduced to what follows the last slash or backslash, without
 * control characters; "" for a file field that was left empty, NULL when the part is not a file. Still
 * never use it as a path unseen. */
KILN_API const char *kiln_part_filename(const kiln_part *part);
/* Content-Type of the part; "text/plain" when it has none. */
KILN_API const char *kiln_part_content_type(const kiln_part *part);
/* Any header of the part, NULL when absent. */
KILN_API const char *kiln_part_header(const kiln_part *part, const char *name);
/* Bytes of content; of a streamed part those read so far. */
KILN_API uint64_t kiln_part_size(const kiln_part *part);
/* The content, with a NUL behind it (which overwrites the delimiter that kiln_body shows there). *length
 * (may be NULL) is its size. NULL with KILN_LATE for a streamed part. */
KILN_API const char *kiln_part_data(kiln_context *ctx, kiln_part *part, size_t *length);
/* Writes the content to a file: to a temporary name beside it, then renamed, so that nobody ever
 * sees half of it; mode 0640. A relative path starts at kiln_directory(). Runs on the pool: WAITS.
 * KILN_FAILED with errno set when the file cannot be written. */
KILN_API int kiln_part_save(kiln_context *ctx, kiln_part *part, const char *path);

/* ---- multipart/form-data, streamed: parts pass by in order, nothing is kept. */

/* Goes to the next part, skipping what is left of the running one. WAITS. Returns 1 with *part set
 * (valid until the next call), 0 after the last, or a negative kiln_result as for kiln_body. */
KILN_API int kiln_upload_next(kiln_context *ctx, kiln_part **part);
/* Content of the running part: as kiln_body_read, 0 at the end of the part. */
KILN_API ssize_t kiln_upload_read(kiln_context *ctx, void *buffer, size_t size);

/* ==== response ======================================================================================
 * What you write is gathered, and leaves with its Content-Length when kiln_run returns; you may
 * change status and headers until then. Once 64 KB have gathered, or at kiln_flush(), the response
 * streams: the head leaves (chunked unless kiln_content_length was called), and status and headers
 * give KILN_LATE. Back-pressure: while more than 256 KB wait for a slow client, writing WAITS. For a
 * HEAD request write as for GET: the bytes are counted and dropped. */

/* 200 unless set. 200 to 599, others are KILN_INVALID. */
KILN_API int kiln_status(kiln_context *ctx, int status);
/* Replaces or adds a header. KILN_INVALID for names or values that may not stand in a head (line
 * breaks!) and for those that the server sets itself: Content-Length (see kiln_content_length),
 * Transfer-Encoding, Connection, Keep-Alive, Date, Upgrade, Trailer. */
KILN_API int kiln_header_set(kiln_context *ctx, const char *name, const char *value);
KILN_API int kiln_header_add(kiln_context *ctx, const char *name, const char *value);
KILN_API int kiln_header_remove(kiln_context *ctx, const char *name);
/* Adds a field that follows the body, such as a checksum of it; also after the head has left, until kiln_run
 * returns. The body goes in chunks then. HTTP/1.0, HEAD, statuses without a body, kiln_send_file and errors have
 * no trailers: they are dropped. KILN_INVALID as for headers, for names that must stand in the head
 * (Content-Type, Set-Cookie, ...), and with kiln_content_length, which refuses likewise. KILN_LATE after the
 * response was finished. */
KILN_API int kiln_trailer_add(kiln_context *ctx, const char *name, const char *value);
/* What was set so far, NULL when absent. */
KILN_API const char *kiln_header_sent(const kiln_context *ctx, const char *name);
/* "text/html; charset=utf-8" when never set and something is written. */
KILN_API int kiln_content_type(kiln_context *ctx, const char *type);
/* Exactly this many bytes will be written: then also a streamed response has a Content-Length. More
 * are refused with KILN_TOO_LARGE; fewer give a 500 or, when the head is sent, cut the connection. */
KILN_API int kiln_content_length(kiln_context *ctx, uint64_t length);

enum kiln_same_site { KILN_SAME_SITE_LAX = 0, KILN_SAME_SITE_STRICT = 1, KILN_SAME_SITE_NONE = 2 };

/* Zero is the safe default of every member. */
typedef struct kiln_cookie_options {
    const char *path; /* NULL: "/" */
    const char *domain; /* NULL: this host only */
    int64_t max_age; /* seconds; 0: until the browser closes; negative: delete the cookie */
    int same_site; /* enum kiln_same_site; NONE implies Secure */
    int secure; /* 0: Secure when the connection is; 1: always; -1: never */
    int visible_to_script; /* 0: HttpOnly */
    int reserved[4]; /* 0 */
} kiln_cookie_options;

/* Sets a cookie; options may be NULL. Several cookies may be set; the same name replaces. The value
 * may hold the characters that RFC 6265 allows: encode others with kiln_url_encode. KILN_INVALID
 * otherwise. */
KILN_API int kiln_cookie_set(kiln_context *ctx, const char *name, const char *value,
                             const kiln_cookie_options *options);

/* Write body bytes. KILN_OK, KILN_GONE, KILN_NO_MEMORY, KILN_INVALID for a negative length (the -1 of a
 * read that failed), or KILN_LATE after the response was finished (kiln_send_file, kiln_error). May
 * WAIT. */
KILN_API int kiln_write(kiln_context *ctx, const void *data, size_t length);
KILN_API int kiln_puts(kiln_context *ctx, const char *text); /* no newline is added */
KILN_API int kiln_printf(kiln_context *ctx, const char *format, ...) KILN_PRINTF(2, 3);
KILN_API int kiln_vprintf(kiln_context *ctx, const char *format, va_list args) KILN_PRINTF(2, 0);
/* Text with & < > " ' made safe for HTML. */
KILN_API int kiln_puts_html(kiln_context *ctx, const char *text);
/* Sends head and body so far, and starts streaming. May WAIT. */
KILN_API int kiln_flush(kiln_context *ctx);
/* Body bytes written so far. */
KILN_API uint64_t kiln_written(const kiln_context *ctx);

typedef struct kiln_file_options {
    const char *content_type; /* NULL: by the name, as for static files */
    const char *download_as; /* NULL: shown; else the file name for "Save as" (UTF-8 is fine) */
    int reserved[4]; /* 0 */
} kiln_file_options;

/* Answers with a file, without copying it through memory; conditional requests and one byte range are
 * answered. A relative path starts at kiln_directory(). Takes any file the endpoint can read: check
 * names that come from a client. options may be NULL. The response is finished then; nothing may have
 * been written before. KILN_NOT_FOUND (nothing was sent: you may still answer), KILN_LATE, KILN_FAILED. */
KILN_API int kiln_send_file(kiln_context *ctx, const char *path, const kiln_file_options *options);

/* Sets status (301, 302, 303, 307 or 308) and Location. You may still write a body. */
KILN_API int kiln_redirect(kiln_context *ctx, int status, const char *location);
/* Writes the tree as compact JSON with Content-Type application/json. The tree stays yours. */
KILN_API int kiln_json_send(kiln_context *ctx, const struct cJSON *json);
/* Drops what was gathered and answers with the site's error page; `detail` (may be NULL) is shown
 * to the client. The response is finished then. */
KILN_API int kiln_error(kiln_context *ctx, int status, const char *detail);

/* ---- server-sent events */

/* Sends the head of an event stream (text/event-stream, not cached). */
KILN_API int kiln_sse_begin(kiln_context *ctx);
/* One event, sent at once; `event` and `id` may be NULL; `data` may have several lines. KILN_INVALID
 * for a line break in event or id. May WAIT. */
KILN_API int kiln_sse_send(kiln_context *ctx, const char *event, const char *id, const char *data);
/* A comment that keeps proxies from closing an idle stream; every 15 seconds is a good pace. */
KILN_API int kiln_sse_ping(kiln_context *ctx);
/* Tells the browser how long to wait before it connects again, in milliseconds. */
KILN_API int kiln_sse_retry(kiln_context *ctx, unsigned milliseconds);
/* The id of the last event that this client has seen before it lost the connection, or NULL. */
KILN_API const char *kiln_sse_last_id(const kiln_context *ctx);

/* 1 when the client has left, or has closed its sending side, which nearly always means the same: long
 * work may stop. Calls that WAIT for something else than the client then return KILN_GONE. */
KILN_API int kiln_is_gone(const kiln_context *ctx);

/* ==== memory of the request ========================================================================== */

/* 16-byte aligned, freed with the request; NULL past RequestMemoryLimit. */
KILN_API void *kiln_alloc(kiln_context *ctx, size_t size);
KILN_API void *kiln_zalloc(kiln_context *ctx, size_t size); /* zeroed */
KILN_API char *kiln_strdup(kiln_context *ctx, const char *text);
KILN_API char *kiln_strndup(kiln_context *ctx, const char *text, size_t length); /* adds the NUL */
KILN_API char *kiln_sprintf(kiln_context *ctx, const char *format, ...) KILN_PRINTF(2, 3);
KILN_API char *kiln_vsprintf(kiln_context *ctx, const char *format, va_list args) KILN_PRINTF(2, 0);
/* Calls fn(arg) after kiln_run has returned and the request has ended, however it ended (client gone,
 * crash of the endpoint); the newest first. fn must not wait and has no context. KILN_NO_MEMORY,
 * KILN_INVALID (fn is NULL), KILN_LATE (kiln_run has returned): fn will not be called. */
KILN_API int kiln_defer(kiln_context *ctx, void (*fn)(void *), void *arg);

/* ==== log ============================================================================================ */

enum kiln_log_level { KILN_LOG_DEBUG, KILN_LOG_INFO, KILN_LOG_NOTICE, KILN_LOG_WARNING, KILN_LOG_ERROR };

/* One line in the server's error log, with the endpoint's URL before it. ctx may be NULL (kiln_load).
 * Never blocks. Never log secrets. */
KILN_API void kiln_log(kiln_context *ctx, int level, const char *format, ...) KILN_PRINTF(3, 4);
KILN_API void kiln_vlog(kiln_context *ctx, int level, const char *format, va_list args) KILN_PRINTF(3, 0);

/* ==== waiting ======================================================================================== */

/* WAITS. KILN_OK after the time, KILN_GONE as soon as the client has left. */
KILN_API int kiln_sleep(kiln_context *ctx, unsigned milliseconds);

enum kiln_events { KILN_READ = 1, KILN_WRITE = 2, KILN_HANGUP = 4 /* only reported */ };

/* WAITS until the descriptor is ready for one of `events` and returns those that are (above 0);
 * KILN_TIMEOUT after timeout_ms (negative: never), KILN_GONE, KILN_INVALID for a descriptor that
 * cannot be waited for. One wait per descriptor at a time. So asynchronous clients (libpq, hiredis,
 * c-ares) run inside an endpoint without blocking anybody. */
KILN_API int kiln_wait_fd(kiln_context *ctx, int fd, int events, int timeout_ms);

/* Runs fn(arg) on a pool thread and WAITS for its end, also when the client leaves meanwhile. In fn
 * you may block, and use ctx. KILN_OK, or KILN_NO_MEMORY when no thread is to be had (fn has not run).
 * Already on the pool, it is an ordinary call. */
KILN_API int kiln_offload(kiln_context *ctx, void (*fn)(void *), void *arg);

/* ==== sessions =======================================================================================
 * Values under keys, kept by the server for one browser, which knows only a random id in a cookie
 * (SessionCookieName). A session begins with the first value that is set, and ends SessionTimeout after
 * its last use. Each call is atomic in itself: parallel requests of one session lose nothing. These
 * functions may WAIT. Errors: KILN_NOT_FOUND, KILN_TOO_LARGE (SessionMaxValue, SessionMaxSize),
 * KILN_NO_MEMORY (store full), KILN_FAILED; KILN_LATE when a session would have to begin (a cookie be
 * set) but the head is sent. A key is 1 to 200 bytes. */

/* The text of a value; numbers, true and false as text; NULL when absent or not a simple value. */
KILN_API const char *kiln_session_get(kiln_context *ctx, const char *key);
/* A number, `fallback` when absent or not an integer. */
KILN_API int64_t kiln_session_get_int(kiln_context *ctx, const char *key, int64_t fallback);
/* Any value; the tree belongs to the request. */
KILN_API struct cJSON *kiln_session_get_json(kiln_context *ctx, const char *key);
/* All values as one object; belongs to the request; NULL without a session. */
KILN_API struct cJSON *kiln_session_get_all(kiln_context *ctx);
KILN_API int kiln_session_set(kiln_context *ctx, const char *key, const char *text);
KILN_API int kiln_session_set_int(kiln_context *ctx, const char *key, int64_t value);
KILN_API int kiln_session_set_json(kiln_context *ctx, const char *key, const struct cJSON *value);
/* KILN_OK also when it was not there. */
KILN_API int kiln_session_remove(kiln_context *ctx, const char *key);
/* Adds atomically, an absent value counts as 0; *result (may be NULL) is the sum. KILN_INVALID when
 * the value is not an integer or the sum would overflow. */
KILN_API int kiln_session_increment(kiln_context *ctx, const char *key, int64_t by, int64_t *result);
/* The id, NULL when no session has begun. Treat it as a password. */
KILN_API const char *kiln_session_id(kiln_context *ctx);
/* A new id for the same values: call it whenever rights change (login), so that an id planted in a
 * victim's browser before is worth nothing. Begins a session when there is none. */
KILN_API int kiln_session_renew(kiln_context *ctx);
/* Forgets all values and deletes the cookie (logout). */
KILN_API int kiln_session_destroy(kiln_context *ctx);

/* ==== WebSockets =====================================================================================
 * An endpoint with a kiln_socket takes WebSockets at its own URL; kiln_run is not needed beside it.
 *
 *     void kiln_socket(kiln_ws *ws, const char *path)
 *     {
 *         kiln_ws_message m;
 *         while (kiln_ws_recv(ws, &m) > 0) {
 *             kiln_ws_send(ws, m.type, m.data, m.length);
 *         }
 *     }
 *
 * THE HANDSHAKE. kiln_socket is called before it is answered: kiln_ws_context() gives the request, with
 * headers, cookies and session. kiln_ws_refuse() answers with an HTTP status; kiln_ws_accept(), or the
 * first call that sends or receives, accepts. Whether the client came over HTTP/1.1 or HTTP/2 (RFC 8441), with
 * TLS or without, makes no difference. The server has checked before that it is a
 * handshake, that a browser's page is of the same host (WebSocketOrigins names others), and that
 * there are not too many sockets.
 *
 * THE BLOCKING FORM. kiln_socket runs as a coroutine, one for each socket, as long as the socket is
 * wanted; when it returns, the socket is closed with 1000. Calls marked WAITS suspend it. What
 * came before the client's close is received before kiln_ws_recv returns 0. Pings are answered, and
 * silent clients pinged (WebSocketEndpointTimeout), by the server. WebSocketTimeout closes sockets without
 * messages.
 *
 * THE CALLBACK FORM is for very many idle sockets: kiln_socket calls kiln_ws_handle() and returns.
 * Then no stack and no context is held. Callbacks run on the socket's own thread, one at a time for
 * one socket; nothing in them may WAIT, so what blocks does not belong there.
 *
 * A kiln_ws is valid until kiln_socket returns or, with callbacks, until `close` has returned. It
 * belongs to its thread: do not use it from other sockets, requests or threads (but from the function
 * that a blocking kiln_socket gives to kiln_offload). To send to others, use rooms.
 *
 * When the endpoint's file changes, open sockets go on with the old code until they end
 * (WebSocketCloseOnChange: they are closed with 1012). When the server stops or a worker is replaced,
 * they have ShutdownTimeout to end and are then closed with 1001 or 1012.
 *
 * Functions that return int return a kiln_result unless they say otherwise: KILN_GONE when the socket is
 * closed, KILN_INVALID for arguments that cannot be (text that is not UTF-8), KILN_NO_MEMORY,
 * KILN_LATE when it is too late or not the time for it. */

enum kiln_ws_type { KILN_WS_TEXT = 1, KILN_WS_BINARY = 2 };

typedef struct kiln_ws_message {
    int type; /* enum kiln_ws_type */
    int reserved;
    const char *data; /* in the blocking form a NUL follows; valid until the next receiving call or, in
                         callbacks, until the callback returns */
    size_t length;
} kiln_ws_message;

/* ---- the handshake */

/* The request that asks for the socket. In the blocking form it stays valid, for reading, as long as
 * kiln_socket runs; its waiting calls (kiln_sleep, kiln_wait_fd, kiln_offload, sessions) work and return
 * KILN_GONE once the socket is closed. In callbacks NULL. */
KILN_API kiln_context *kiln_ws_context(kiln_ws *ws);
/* 1 when the client offers this subprotocol. */
KILN_API int kiln_ws_offers(kiln_ws *ws, const char *protocol);
/* Answers the handshake: cookies and headers set so far go along. `protocol` (may be NULL) must have been
 * offered: KILN_INVALID. */
KILN_API int kiln_ws_accept(kiln_ws *ws, const char *protocol);
/* Answers with an HTTP error instead, when kiln_socket returns; `detail` (may be NULL) is shown to the
 * client. 400 to 599. KILN_LATE once it is accepted. */
KILN_API int kiln_ws_refuse(kiln_ws *ws, int status, const char *detail);

/* ---- receiving (blocking form) */

/* WAITS for a whole message. 1 with *message set; 0 when the socket is closed, see kiln_ws_close_code. */
KILN_API int kiln_ws_recv(kiln_ws *ws, kiln_ws_message *message);
/* The same, KILN_TIMEOUT when none has come in that time; 0 ms looks without waiting. */
KILN_API int kiln_ws_recv_timeout(kiln_ws *ws, kiln_ws_message *message, unsigned milliseconds);
/* The messages' contents as one stream of bytes: WAITS for at least one and copies up to `size`. Returns
 * how many, 0 when the socket is closed, or a negative kiln_result. */
KILN_API ssize_t kiln_ws_read(kiln_ws *ws, void *buffer, size_t size);
/* From now on every wait of this socket ends with KILN_TIMEOUT once this time has passed; negative: none. */
KILN_API int kiln_ws_deadline(kiln_ws *ws, int64_t milliseconds);

/* ---- sending */

/* One message. In the blocking form it WAITS while more than 256 KB are unsent. In callbacks it never
 * waits: KILN_TOO_LARGE, and nothing is sent, when WebSocketSendQueue bytes wait already; `drain` tells
 * when there is room again. */
KILN_API int kiln_ws_send(kiln_ws *ws, int type, const void *data, size_t length);
KILN_API int kiln_ws_send_text(kiln_ws *ws, const char *text);
KILN_API int kiln_ws_printf(kiln_ws *ws, const char *format, ...) KILN_PRINTF(2, 3);
/* A message in parts, each sent at once as a fragment; `final` ends it. Meanwhile kiln_ws_send gives
 * KILN_LATE. Text may be cut anywhere. */
KILN_API int kiln_ws_send_part(kiln_ws *ws, int type, const void *data, size_t length, int final);
/* Bytes of a stream, as a binary message: the other end of kiln_ws_read. */
KILN_API int kiln_ws_write(kiln_ws *ws, const void *data, size_t length);
/* A ping of up to 125 bytes, beside those that the server sends. */
KILN_API int kiln_ws_ping(kiln_ws *ws, const void *data, size_t length);
/* Bytes that wait for the client. */
KILN_API size_t kiln_ws_pending(const kiln_ws *ws);

/* ---- closing */

/* Closes with a code (1000 to 1003, 1007 to 1014, 3000 to 4999) and a reason of up to 123 bytes (may be
 * NULL). What was sent before still arrives; nothing is received any more. */
KILN_API int kiln_ws_close(kiln_ws *ws, int code, const char *reason);
/* 0 while it is open; the code that the client sent; 1005: it sent none; 1006: the connection broke. */
KILN_API int kiln_ws_close_code(const kiln_ws *ws);
/* The client's reason, "" when it gave none. */
KILN_API const char *kiln_ws_close_reason(const kiln_ws *ws);

/* ---- the callback form */

typedef struct kiln_ws_handler {
    void (*open)(kiln_ws *ws, void *user); /* kiln_socket has returned */
    void (*message)(kiln_ws *ws, const kiln_ws_message *message, void *user);
    void (*drain)(kiln_ws *ws, void *user); /* all was sent, after a send that gave KILN_TOO_LARGE */
    void (*close)(kiln_ws *ws, int code, const char *reason, void *user); /* the last, always; free user here */
    void *reserved[4]; /* NULL */
} kiln_ws_handler;

/* In kiln_socket: from its return on, these are called; each may be NULL. Accepts the handshake.
 * `handler` is not copied: make it static. After a crash in a callback the socket is closed with
 * 1011 and none of them is called any more. */
KILN_API int kiln_ws_handle(kiln_ws *ws, const kiln_ws_handler *handler, void *user);

/* ---- connecting to a WebSocket elsewhere
 *
 *     kiln_ws *ws = kiln_ws_connect("wss://example.com/feed", NULL);
 *     while (ws != NULL && kiln_ws_recv(ws, &m) > 0) { ... }
 *     kiln_ws_free(ws);
 *
 * In kiln_run, in the blocking form of kiln_socket, and in what they give to kiln_offload. The functions above that
 * receive, send and close work on it; those of the server's side (accept, handle, rooms) give KILN_LATE. It
 * belongs to the request: what is not freed when that ends is cut off. The same functions, and more, are those
 * of kiln_ws.h for programs without the server. */

/* What kiln_ws_options.deflate says. */
enum kiln_ws_deflate {
    KILN_WS_DEFLATE = 1, /* offer permessage-deflate */
    KILN_WS_DEFLATE_FORGET = 2 /* offer it without history from message to message: less memory, larger messages */
};

/* How to connect. Every member may be 0. */
typedef struct kiln_ws_options {
    const char *const *protocols; /* subprotocols offered, the liked ones first; ends with NULL */
    const char *const *headers; /* further headers, each "Name: value"; ends with NULL */
    const char *origin; /* Origin header */
    const char *proxy; /* "http://user:password@host:port" (CONNECT), "socks5://..." or "socks5h://..." (both send
                          the name and not an address); NULL: none; "" is one too */
    const char *ca_file; /* PEM file or directory of the authorities that are trusted, instead of the system's */
    const char *cert_file; /* client certificate and its chain, PEM */
    const char *key_file; /* its key; NULL: in cert_file */
    const char *server_name; /* the name that the certificate must have, and that is asked for; NULL: the URL's host */
    int insecure; /* 1: any certificate is accepted. Whoever sits between reads and writes everything. */
    int deflate; /* enum kiln_ws_deflate; 0: none */
    int deflate_bits; /* 8 to 15: window of both sides; 0: 15 */
    int deflate_min; /* shorter messages are sent as they are; 0: 64 */
    int64_t max_message; /* largest message received; 0: 64 MiB; negative: no limit. Larger: closed with 1009 */
    int64_t send_queue; /* bytes that may wait where a send does not; 0: 16 MiB */
    int connect_timeout; /* name, TCP, proxy, TLS and handshake together; 0: 30000; negative: none */
    int close_timeout; /* for the peer's part of the closing; 0: 5000 */
    int ping_interval; /* silence after which a ping goes out; 0: none. Without an answer in as long again
                          the connection ends with 1006 */
    int reconnect; /* after the connection breaks (not after an orderly close with 1000, nor a refusal with 4xx): how
                      often in a row it is tried to connect again; 0: not at all; negative: for ever */
    int reconnect_min; /* first pause; it doubles, with a random part; 0: 500 */
    int reconnect_max; /* longest pause; 0: 30000 */
    void (*connected)(kiln_ws *ws, void *user); /* after each handshake, the first included: subscribe here again.
                                                   It may send, not receive. May be NULL */
    void *user; /* for `connected` */
    char *error; /* why it failed, as a sentence with a NUL, when the call returns NULL */
    size_t error_size; /* room at `error` */
    void *reserved[8]; /* NULL */
} kiln_ws_options;

/* Connects and WAITS until the handshake is done; names are looked up, and authorities read, on the pool. `options`
 * may be NULL. NULL: see options->error. */
KILN_API kiln_ws *kiln_ws_connect(const char *url, const kiln_ws_options *options);
/* Closes with 1000 what is still open, WAITS until what was sent has arrived and the peer has closed (close_timeout at
 * most), and frees it. NULL, and sockets that kiln_socket was given, are left alone. */
KILN_API void kiln_ws_free(kiln_ws *ws);
/* Why it ended, as a sentence; "" when all is well. */
KILN_API const char *kiln_ws_error(const kiln_ws *ws);
/* The subprotocol that was agreed on, NULL for none. */
KILN_API const char *kiln_ws_protocol(const kiln_ws *ws);

/* ---- rooms: names (1 to 200 bytes) that sockets subscribe to, of the whole server process. */

KILN_API int kiln_ws_subscribe(kiln_ws *ws, const char *room);
/* KILN_NOT_FOUND when it was not subscribed. Closing ends all subscriptions. */
KILN_API int kiln_ws_unsubscribe(kiln_ws *ws, const char *room);
/* Sends to all sockets of the room but this one. */
KILN_API int kiln_ws_publish(kiln_ws *ws, const char *room, int type, const void *data, size_t length);
/* Sends to all sockets of the room; from anywhere: requests, sockets, threads of your own. Never
 * waits. Each message is made once, however many receive it; the messages of one thread arrive in
 * their order. A subscriber for which WebSocketSendQueue bytes wait is closed with 1013.
 * Not from an isolated endpoint (option Isolate), where rooms cannot be reached: KILN_FAILED, and the
 * log says why; an isolated endpoint with kiln_socket is not loaded. */
KILN_API int kiln_publish(const char *room, int type, const void *data, size_t length);

/* ==== helpers ======================================================================================== */

/* Copies with & < > " ' made safe for HTML text and attributes; NULL past RequestMemoryLimit. */
KILN_API char *kiln_html_escape(kiln_context *ctx, const char *text);
/* Percent-encodes everything but letters, digits and - . _ ~ */
KILN_API char *kiln_url_encode(kiln_context *ctx, const char *text);
/* Decodes %XX ('+' stays); *length (may be NULL) counts the bytes, which may include NUL. NULL with
 * KILN_INVALID for a broken escape. */
KILN_API char *kiln_url_decode(kiln_context *ctx, const char *text, size_t *length);
/* Random bytes from the kernel, fit for keys and tokens. KILN_OK or KILN_FAILED. */
KILN_API int kiln_random(void *buffer, size_t size);
/* Random text of `length` characters of the option Rand_Alphabet. */
KILN_API char *kiln_random_text(kiln_context *ctx, size_t length);

/* ---- atomic operations, also for compilers without <stdatomic.h>; all sequentially consistent. The
 * object must be naturally aligned. They return the value after (add) or before (exchange). */
KILN_API int64_t kiln_atomic_load(const int64_t *object);
KILN_API void kiln_atomic_store(int64_t *object, int64_t value);
KILN_API int64_t kiln_atomic_add(int64_t *object, int64_t by);
KILN_API int64_t kiln_atomic_exchange(int64_t *object, int64_t value);
/* 1 and the value stored when *object was `expected`; else 0. */
KILN_API int kiln_atomic_compare_exchange(int64_t *object, int64_t expected, int64_t value);
KILN_API int kiln_atomic_add_int(int *object, int by);
KILN_API int kiln_atomic_load_int(const int *object);
KILN_API void kiln_atomic_store_int(int *object, int value);
KILN_API void *kiln_atomic_load_pointer(void *const *object);
KILN_API void kiln_atomic_store_pointer(void **object, void *value);
KILN_API int kiln_atomic_compare_exchange_pointer(void **object, void *expected, void *value);

/* ---- one value per thread, also for compilers without _Thread_local. Create in kiln_load, delete in
 * kiln_unload. destroy (may be NULL) runs for each value that is not NULL when its thread ends or when
 * the variable is deleted. Not to be trusted across calls that WAIT (other requests run on the same
 * thread), which is what makes it fit for scratch buffers and connections that are used between waits. */
KILN_API kiln_local *kiln_local_create(void (*destroy)(void *)); /* NULL: no memory */
KILN_API void kiln_local_delete(kiln_local *local);
/* NULL until set on this thread. */
KILN_API void *kiln_local_get(kiln_local *local);
/* Replaces without running destroy. KILN_OK or KILN_NO_MEMORY. */
KILN_API int kiln_local_set(kiln_local *local, void *value);

#ifdef __cplusplus
}
#endif

#endif
