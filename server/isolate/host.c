#include "isolate/host.h"

#include "base/check.h"
#include "config/config.h"
#include "endpoint/crash.h"
#include "endpoint/endpoint.h"
#include "endpoint/home.h"
#include "endpoint/pace.h"
#include "endpoint/symbol.h"
#include "endpoint/watchdog.h"
#include "isolate/isolate_private.h"
#include "isolate/orders.h"
#include "isolate/sandbox.h"
#include "loop/coroutine.h"
#include "loop/pool.h"
#include "observe/log.h"
#include "observe/metrics.h"
#include "protocol/rooms.h"
#include "supervisor/clock.h"
#include "supervisor/control.h"
#include "supervisor/worker.h"
#include "supervisor/worker_loops.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STOP_MS = 4000, LOOK_MS = 10, CONFIG_MAX = 1 << 24, ARENAS = 4 };

struct host_start {
    char *file;
    char *build;
    cJSON *sources;
    unsigned threads;
    int config;
    int object;
    int begun;
    int channels[ENDPOINT_MAX_LOOPS];
};

struct opening {
    struct host_start *start;
    struct endpoint *endpoint;
    struct begun *begun;
    _Atomic bool failed;
};

/* ---- what it says ------------------------------------------------------------------------------ */

static void send_failed(const char *text, const struct build_result *result)
{
    cJSON *body = cJSON_CreateObject();
    cJSON_AddStringToObject(body, "text", text);
    /* Without a result it is no fault of the file: a change of an option may help. */
    cJSON_AddBoolToObject(body, "transient", result == NULL || result->transient);
    if (result != NULL) {
        cJSON *list = cJSON_AddArrayToObject(body, "diagnostics");
        for (size_t i = 0; i < result->diagnostics.count && i < 20; i++) {
            const struct diagnostic *d = &result->diagnostics.items[i];
            cJSON *item = cJSON_CreateObject();
            cJSON_AddStringToObject(item, "file", d->file);
            cJSON_AddNumberToObject(item, "line", d->line);
            cJSON_AddStringToObject(item, "text", d->message);
            cJSON_AddItemToArray(list, item);
        }
    }
    control_send(CONTROL_FD, CONTROL_FAILED, body, NULL, 0);
    cJSON_Delete(body);
}

/* ---- the start ----------------------------------------------------------------------------------- */

static bool read_orders(struct host_orders *orders)
{
    int type = 0;
    socklen_t len = sizeof type;
    bool ok = getsockopt(CONTROL_FD, SOL_SOCKET, SO_TYPE, &type, &len) == 0 && type == SOCK_SEQPACKET &&
              pread(HOST_ORDERS_FD, orders, sizeof *orders, 0) == (ssize_t)sizeof *orders &&
              orders->magic == HOST_ORDERS_MAGIC;
    if (!ok) {
        fprintf(stderr, "kiln: --host is how the server starts isolated endpoints; run kiln without it\n");
    }
    return ok;
}

static bool take_start(struct control_message *message, struct host_start *start)
{
    const char *file = control_text(message, "file");
    const char *build = control_text(message, "build");
    start->threads = (unsigned)control_number(message, "threads", 0);
    if (message->kind != CONTROL_CONFIG || file == NULL || build == NULL || start->threads == 0 ||
        start->threads > ENDPOINT_MAX_LOOPS || message->fd_count != 3 + start->threads) {
        return false;
    }
    start->file = strdup(file);
    start->build = strdup(build);
    start->sources = cJSON_DetachItemFromObjectCaseSensitive(message->body, "sources");
    start->config = control_take_fd(message);
    start->object = control_take_fd(message);
    start->begun = control_take_fd(message);
    for (unsigned i = 0; i < start->threads; i++) {
        start->channels[i] = control_take_fd(message);
    }
    return start->file != NULL && start->build != NULL;
}

static bool receive_start(struct host_start *start)
{
    for (;;) {
        struct pollfd wait = {.fd = CONTROL_FD, .events = POLLIN};
        poll(&wait, 1, -1);
        struct control_message message;
        struct buffer why = BUFFER_EMPTY;
        enum control_result result = control_receive(CONTROL_FD, &message, &why);
        buffer_free(&why);
        if (result == CONTROL_EMPTY) {
            continue;
        }
        bool ok = result == CONTROL_OK && take_start(&message, start);
        if (result == CONTROL_OK) {
            control_message_free(&message);
        }
        return ok;
    }
}

static struct config *read_config(int fd)
{
    struct stat st;
    struct buffer text = BUFFER_EMPTY;
    struct config_errors errors = {0};
    struct config *config = NULL;
    size_t size = fstat(fd, &st) == 0 && st.st_size > 0 && st.st_size < CONFIG_MAX ? (size_t)st.st_size : 0;
    char *to = size > 0 ? buffer_reserve(&text, size) : NULL;
    if (to != NULL && pread(fd, to, size, 0) == (ssize_t)size) {
        text.len = size;
        config = config_parse(buffer_str(&text), NULL, NULL, &errors);
        if (config == NULL) {
            send_failed(errors.text.data, NULL);
        }
    }
    config_errors_free(&errors);
    buffer_free(&text);
    close(fd);
    return config;
}

static bool start_rooms(struct config *config, unsigned threads)
{
    log_files_use((struct log_files){-1, -1});
    if (!log_start(config)) {
        return false;
    }
    builder_settings(config);
    coroutine_stack_size_set((size_t)config->stack_size);
    pace_start(config->blocking_threshold);
    crash_start();
    links_prepare();
    if (!watchdog_start() || !worker_loops_start(threads, config)) {
        return false;
    }
    pool_start((unsigned)config->pool_threads);
    return true;
}

static void open_link(struct loop *loop, void *arg)
{
    struct opening *opening = arg;
    unsigned i = loop_index(loop);
    if (!link_open(loop, opening->start->channels[i], &opening->begun[i], opening->endpoint)) {
        atomic_store(&opening->failed, true);
    }
}

static struct endpoint *load(const struct host_start *start)
{
    struct build_result result = {.compiler = ""};
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", start->object);
    symbol_memory_file(path);
    struct endpoint *endpoint =
        endpoint_alone(str_of(start->file), path, str_of(start->build), start->sources, start->threads, &result);
    cJSON_Delete(start->sources);
    if (endpoint == NULL) {
        const struct diagnostic *error = diagnostics_first_error(&result.diagnostics);
        send_failed(error != NULL ? error->message : "it cannot be loaded", &result);
    }
    build_result_free(&result);
    return endpoint;
}

static struct begun *map_begun(int fd)
{
    void *map = mmap(NULL, sizeof(struct begun) * ENDPOINT_MAX_LOOPS, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return map != MAP_FAILED ? map : NULL;
}

/* ---- running ----------------------------------------------------------------------------------------- */

/* True when it is to end. */
static bool read_control(void)
{
    struct control_message message;
    struct buffer why = BUFFER_EMPTY;
    enum control_result result = control_receive(CONTROL_FD, &message, &why);
    buffer_free(&why);
    if (result == CONTROL_EMPTY) {
        return false;
    }
    bool stop = result != CONTROL_OK || message.kind == CONTROL_STOP;
    if (result == CONTROL_OK) {
        control_message_free(&message);
    }
    return stop;
}

static void serve(int signals)
{
    for (;;) {
        struct pollfd fds[] = {{.fd = CONTROL_FD, .events = POLLIN},
                               {.fd = signals, .events = POLLIN},
                               {.fd = worker_loops_wake_fd(), .events = POLLIN}};
        poll(fds, ARRAY_LEN(fds), -1);
        worker_loops_collect();
        struct signalfd_siginfo info;
        if (read(signals, &info, sizeof info) == (ssize_t)sizeof info) {
            worker_replace("it has used as much processor time as IsolateCpu says");
        }
        if (read_control()) {
            return;
        }
    }
}

static void wait_for_requests(struct endpoint *endpoint)
{
    uint64_t until = clock_now_ms() + STOP_MS;
    while ((metric_sum(METRIC_REQUESTS_ACTIVE) > 0 || endpoint_alone_is_used(endpoint)) && clock_now_ms() < until) {
        poll(NULL, 0, LOOK_MS);
    }
}

/* SIGXCPU is read by the first thread; a file that is too large is an error of write(). */
static int open_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGXCPU);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* False after FAILED was sent. */
static bool begin(struct host_start *start, struct endpoint **endpoint)
{
    struct config *config = read_config(start->config);
    if (config == NULL) {
        return false;
    }
    config_set_current(config_ref(config));
    struct opening opening = {.start = start, .begun = map_begun(start->begun)};
    if (opening.begun == NULL || !start_rooms(config, start->threads)) {
        send_failed("it has no memory or no threads to start with (options IsolateMemory, IsolateThreads)", NULL);
        return false;
    }
    opening.endpoint = *endpoint = load(start);
    if (*endpoint == NULL) {
        return false;
    }
    worker_loops_broadcast(open_link, NULL, &opening);
    while (!worker_loops_idle()) {
        struct pollfd wait = {.fd = worker_loops_wake_fd(), .events = POLLIN};
        poll(&wait, 1, -1);
        worker_loops_collect();
    }
    if (atomic_load(&opening.failed)) {
        send_failed("it cannot open its sockets", NULL);
        return false;
    }
    return true;
}

int host_run(void)
{
    static struct host_orders orders;
    struct host_start start = {0};
    struct endpoint *endpoint = NULL;
    struct buffer why = BUFFER_EMPTY;
    if (!read_orders(&orders)) {
        return EXIT_FAILURE;
    }
    prctl(PR_SET_NAME, "kiln-isolated", 0, 0, 0);
    close_range(HOST_ORDERS_FD, ~0u, 0);
    fcntl(CONTROL_FD, F_SETFD, FD_CLOEXEC);
    mallopt(M_ARENA_MAX, ARENAS); /* each reserves much of what IsolateMemory allows */
    int signals = open_signals();
    if (!sandbox_enter(&orders, &why)) {
        buffer_append_char(&why, '\0');
        send_failed(why.data, NULL);
        receive_start(&start); /* a process that ends with something unread takes its own last words along */
        _exit(EXIT_FAILURE);
    }
    rooms_are_elsewhere();
    bool ok = receive_start(&start) && begin(&start, &endpoint);
    if (ok) {
        control_send(CONTROL_FD, CONTROL_READY, NULL, NULL, 0);
        serve(signals);
        wait_for_requests(endpoint);
        endpoint_alone_end(endpoint);
    }
    log_stop();
    _exit(ok ? EXIT_SUCCESS : EXIT_FAILURE);
}
