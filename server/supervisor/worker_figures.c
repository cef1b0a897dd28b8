#include "supervisor/worker_figures.h"

#include "endpoint/loader.h"
#include "loop/pool.h"
#include "supervisor/clock.h"
#include "supervisor/control.h"
#include "supervisor/ledger.h"
#include "supervisor/worker_limits.h"
#include "supervisor/worker_loops.h"

#include <linux/sockios.h>
#include <stdatomic.h>
#include <sys/ioctl.h>

enum {
    TELL_MS = 1000,
    UNREAD_MOST = 65536, /* bytes on the control socket, past which figures wait */
    CHUNK = 100, /* endpoints in a message */
    CHUNK_BYTES = 16384, /* of their names, past which it is full too: CONTROL_BODY_MAX */
};

/* ---- loops -------------------------------------------------------------------------------------- */

static struct probe {
    struct task task;
    uint64_t posted_us;
    _Atomic uint64_t lag_us; /* of the last that was run */
    _Atomic bool waits;
} probes[METRICS_LOOPS];

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static void probe_run(struct task *task)
{
    struct probe *probe = CONTAINER_OF(task, struct probe, task);
    atomic_store_explicit(&probe->lag_us, now_us() - probe->posted_us, memory_order_relaxed);
    atomic_store_explicit(&probe->waits, false, memory_order_release); /* the first thread may use it again */
}

static void probe_loops(void)
{
    for (unsigned i = 0; i < worker_loops_count(); i++) {
        struct probe *probe = &probes[i];
        if (!atomic_load_explicit(&probe->waits, memory_order_acquire)) {
            probe->task.run = probe_run;
            probe->posted_us = now_us();
            atomic_store_explicit(&probe->waits, true, memory_order_relaxed);
            worker_loops_post(i, &probe->task);
        }
    }
}

static cJSON *print_loop(unsigned i)
{
    struct probe *probe = &probes[i];
    cJSON *object = cJSON_CreateObject();
    const int64_t figures[LOOP_FIGURES] = {
        [LOOP_FIGURE_LAG] = (int64_t)atomic_load_explicit(&probe->lag_us, memory_order_relaxed),
        [LOOP_FIGURE_CONNECTIONS] = metric_of_loop(METRIC_CONNECTIONS_OPEN, i),
        [LOOP_FIGURE_REQUESTS] = metric_of_loop(METRIC_REQUESTS, i),
    };
    for (int k = 0; k < LOOP_FIGURES; k++) {
        cJSON_AddNumberToObject(object, loop_infos[k].key, (double)figures[k]);
    }
    if (atomic_load_explicit(&probe->waits, memory_order_acquire)) {
        cJSON_AddNumberToObject(object, "waiting", (double)(now_us() - probe->posted_us));
    }
    return object;
}

/* ---- the worker ------------------------------------------------------------------------------------ */

static bool send_figures(void)
{
    int64_t metrics[METRIC_COUNT];
    for (int i = 0; i < METRIC_COUNT; i++) {
        metrics[i] = metric_sum((enum metric)i);
    }
    unsigned threads = 0;
    unsigned waiting = 0;
    pool_counts(&threads, &waiting);
    cJSON *body = cJSON_CreateObject();
    cJSON_AddItemToObject(body, "metrics", ledger_print_metrics(metrics));
    cJSON *worker = cJSON_AddObjectToObject(body, "worker");
    cJSON_AddNumberToObject(worker, worker_infos[WORKER_FIGURE_MEMORY].key, (double)worker_resident_bytes());
    cJSON_AddNumberToObject(worker, worker_infos[WORKER_FIGURE_POOL_THREADS].key, threads);
    cJSON_AddNumberToObject(worker, worker_infos[WORKER_FIGURE_POOL_WAITING].key, waiting);
    cJSON *loops = cJSON_AddArrayToObject(body, "loops");
    for (unsigned i = 0; i < worker_loops_count(); i++) {
        cJSON_AddItemToArray(loops, print_loop(i));
    }
    bool sent = control_send(CONTROL_FD, CONTROL_FIGURES, body, NULL, 0) == CONTROL_OK;
    cJSON_Delete(body);
    return sent;
}

/* ---- endpoints -------------------------------------------------------------------------------------- */

struct chunk {
    cJSON *list;
    unsigned count;
    size_t bytes;
    bool failed;
};

static bool has_room(void)
{
    int unread = 0;
    return ioctl(CONTROL_FD, SIOCOUTQ, &unread) == 0 && unread <= UNREAD_MOST;
}

static void chunk_send(struct chunk *chunk)
{
    if (chunk->count == 0) {
        return;
    }
    cJSON *body = cJSON_CreateObject();
    cJSON_AddItemToObject(body, "endpoints", chunk->list);
    chunk->failed = !has_room() || control_send(CONTROL_FD, CONTROL_ENDPOINTS, body, NULL, 0) != CONTROL_OK;
    cJSON_Delete(body);
    *chunk = (struct chunk){.failed = chunk->failed};
}

static bool chunk_add(struct str file, const int64_t *figures, void *arg)
{
    struct chunk *chunk = arg;
    if (chunk->count == 0) {
        chunk->list = cJSON_CreateArray();
    }
    cJSON_AddItemToArray(chunk->list, ledger_print_endpoint(file.ptr, figures));
    chunk->bytes += file.len;
    if (++chunk->count == CHUNK || chunk->bytes > CHUNK_BYTES) {
        chunk_send(chunk);
    }
    return !chunk->failed;
}

/* ---- telling ----------------------------------------------------------------------------------------- */

static bool tell_all; /* something was not sent */

static void tell(void)
{
    struct chunk chunk = {0};
    endpoints_tell(tell_all, chunk_add, &chunk);
    chunk_send(&chunk);
    tell_all = !send_figures() || chunk.failed;
}

void worker_figures_look(void)
{
    static uint64_t next_ms;
    uint64_t now = clock_now_ms();
    if (now < next_ms) {
        return;
    }
    next_ms = now + TELL_MS;
    if (has_room()) {
        tell();
    }
    probe_loops();
}

void worker_figures_last(void)
{
    tell();
}
