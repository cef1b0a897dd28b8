/* DESIGN: an endpoint is a file that runs. `struct endpoint` is its identity for as long as
 * the file is in the site index; `struct module` is one loaded build of it. Requests hold
 * modules, so that old code stays mapped until its last request ends; then kiln_unload
 * runs and the module is unmapped. One vtable per kind (loader) says how a source becomes a
 * shared object; nothing else in the server asks which kind an endpoint is.
 *
 * Life of a module: built (helper process) -> loaded under a unique path (dlopen,
 * symbols and ABI checked, kiln_load called) on the builder thread -> current -> retired by a
 * newer one -> drained (no request on any loop) -> kiln_unload -> dlclose, file removed. */
#ifndef KILN_ENDPOINT_LOADER_H
#define KILN_ENDPOINT_LOADER_H

#include "base/buffer.h"
#include "base/str.h"
#include "loop/loop.h"

#include <stdatomic.h>
#include <stdbool.h>

struct config;
struct endpoint;
struct module;
struct kiln_context;
struct kiln_ws;
struct home;

enum { ENDPOINT_MAX_LOOPS = 64 };

/* What a loaded module offers; set once before the module becomes current. */
struct module_entry {
    int (*run)(struct kiln_context *ctx, const char *path); /* NULL: WebSockets only */
    void (*socket)(struct kiln_ws *ws, const char *path); /* NULL: no WebSockets */
    uint32_t flags; /* KILN_MODULE_OFFLOAD...: what the source asked for */
    const struct home *home; /* who runs it (home.h) */
};

/* What kiln_load and kiln_unload are given. */
struct kiln_module {
    const char *file; /* absolute */
    const char *directory; /* without a slash at the end */
};

/* ---- registry ------------------------------------------------------------------------------- */
/* Once per worker: opens the cache directory, starts the builder threads. False with a log
 * line when the cache directory cannot be used. */
bool endpoints_start(const struct config *config, unsigned loops);
/* A new config is current: new builds go by it. CacheDir stays as it was at the start. */
void endpoints_config_changed(const struct config *config);
/* No new builds; waits for running helpers; unloads everything. */
void endpoints_stop(void);

/* True for names that some loader takes: "x.so", "x._c". */
bool endpoint_name_matches(struct str file_name);
/* `file` is an absolute path. Returned with a reference of the caller (the site index);
 * the same file gives the same endpoint. Does not build. */
struct endpoint *endpoint_open(struct str file);
/* The file is gone from the index. */
void endpoint_close(struct endpoint *endpoint);
/* A request that waits for a build keeps the endpoint; a loaded module keeps its own. */
void endpoint_ref(struct endpoint *endpoint);
void endpoint_unref(struct endpoint *endpoint);
struct endpoint *module_endpoint(const struct module *module);
/* The file itself was written, replaced or touched: build the new version in the background
 * (if it was ever built); the last good one serves meanwhile. */
void endpoint_file_changed(struct endpoint *endpoint);
/* Some file below the web root changed that may be an include of endpoints. */
void endpoints_include_changed(struct str file);
/* Builds it in the background if it has not been built (ahead of time). */
void endpoint_prepare(struct endpoint *endpoint);

/* ---- by a request, on its loop --------------------------------------------------------------- */
enum endpoint_status { ENDPOINT_READY, ENDPOINT_BUILDING, ENDPOINT_FAILED };

/* Lives in the request; posted to the loop when the build it waits for has ended, one
 * way or the other. Cancel before freeing it. */
struct endpoint_waiter {
    struct task task;
    struct loop *loop;
    struct list node;
    bool queued;
    bool posted;
};

/* READY: *module is held for this loop until module_release. BUILDING: a build runs or was
 * started and the waiter is queued once. FAILED: endpoint_error_* describe why. */
enum endpoint_status endpoint_acquire(struct endpoint *endpoint, unsigned loop_index, struct module **module,
                                      struct endpoint_waiter *waiter);
/* The waiter will not be posted any more. When it was posted already (task pending in the
 * mailbox), returns false and the task still runs once. */
bool endpoint_wait_cancel(struct endpoint *endpoint, struct endpoint_waiter *waiter);
void module_release(struct module *module, unsigned loop_index);
/* A build of other content has taken its place. */
bool module_is_replaced(const struct module *module);
/* A request holds it. False: what requests wrote is seen by this thread. */
bool module_is_used(const struct module *module);
const struct module_entry *module_entry(const struct module *module);
struct crash_text;
const struct crash_text *module_text(const struct module *module);
/* The private copy that is mapped. */
const char *module_path(const struct module *module);
/* Its code crashed: it is never run again at its end nor unmapped, the crash is counted, and the
 * worker, whose memory may be damaged, asks for a successor. Any thread. */
void module_crashed(struct module *module);
/* The same where that memory is not this worker's: the crash is counted, nothing else. */
void module_crashed_elsewhere(struct module *module);

/* True when its last build or load failed. */
bool endpoint_has_failed(struct endpoint *endpoint);
/* The last failed build or load: one line of text ("hello._c:12: error: ...") and, for
 * DebugPages, a complete HTML page with the source around the line. */
void endpoint_error_text(struct endpoint *endpoint, struct buffer *out);
void endpoint_error_page(struct endpoint *endpoint, struct buffer *html);

/* ---- quarantine ------------------------------------------------------------------------------- */
/* By the supervisor: this build (a hash in hexadecimal) of the file is not to be run until then
 * (supervisor/clock.h). */
void endpoint_quarantine(struct str file, struct str build, uint64_t until_ms);
/* 0: it may run, which is one relaxed load away. Else the seconds after which to ask again. */
unsigned endpoint_quarantined(struct endpoint *endpoint);
/* Crashes of it in this worker. */
unsigned endpoint_crashes(const struct endpoint *endpoint);

/* ---- how it runs ------------------------------------------------------------------------------ */
/* Set by the watchdog when the endpoint blocked a loop, or by its own flags or options:
 * from then on its requests run on the pool. */
bool endpoint_is_offloaded(const struct endpoint *endpoint);
/* The next request runs on the pool: offloaded, or on trial. */
bool endpoint_wants_pool(const struct endpoint *endpoint);
bool endpoint_is_on_trial(const struct endpoint *endpoint);
/* It has shown that it is quick: from now on it runs on the loops. */
void endpoint_trial_passed(struct endpoint *endpoint);
/* RequestTimeout in milliseconds; 0: none. */
uint64_t endpoint_timeout_ms(const struct endpoint *endpoint);
void endpoint_set_offloaded(struct endpoint *endpoint, const char *why);
struct str endpoint_file(const struct endpoint *endpoint);

/* How often it held a loop thread too long; kept in the endpoint, used by pace.c. */
struct endpoint_pace {
    _Atomic unsigned slow_slices;
    _Atomic unsigned quick_slices; /* on trial */
    _Atomic uint64_t window_start_ms;
};
struct endpoint_pace *endpoint_pace(struct endpoint *endpoint);

/* ---- figures (figures.c) ---------------------------------------------------------------------- */
/* A request did not end within RequestTimeout; one was refused because of quarantine. */
void endpoint_timed_out(struct endpoint *endpoint);
void endpoint_refused(struct endpoint *endpoint);

/* `figures` are enum endpoint_figure of observe/metrics.h, of this process so far. False: no more. */
typedef bool endpoint_teller(struct str file, const int64_t *figures, void *arg);
/* Tells those whose figures are others than when they were told last, or all. Not on a loop. */
void endpoints_tell(bool all, endpoint_teller *tell, void *arg);

/* ---- loaders ------------------------------------------------------------------------------------ */
struct build_result;
struct build_job;
struct loader {
    const char *suffix; /* "._c" */
    const char *source_label; /* for people: "C source" */
    /* Makes job->output (a private, unique .so file) from job->source, on a builder thread.
     * May take seconds; runs helpers as limited child processes. */
    bool (*build)(struct build_job *job, struct build_result *result);
};
extern const struct loader loader_so; /* load_so.c */
extern const struct loader loader_c; /* load_c.c */

#endif
