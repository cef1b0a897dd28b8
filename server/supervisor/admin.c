#include "supervisor/admin.h"

#include "config/admin_address.h"
#include "config/config.h"
#include "supervisor/clock.h"
#include "supervisor/status.h"
#include "supervisor/supervisor_private.h"

#include <microhttpd.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/socket.h>

enum {
    CONNECTION_MEMORY = 16384, /* request head and answer head */
    FIGURES_MS = 2000, /* for the elder to tell its figures */
};

struct admin_connection {
    struct list node;
    int fd; /* the library's */
    uint64_t until_ms;
};

/* ---- pages ---------------------------------------------------------------------------------------- */

/* Writes the page; the HTTP status. */
typedef unsigned admin_page(const struct supervisor *s, struct buffer *out);

static unsigned page_health(const struct supervisor *s, struct buffer *out)
{
    (void)s; /* it answers */
    buffer_append_z(out, "{\"healthy\": true}\n");
    return MHD_HTTP_OK;
}

static unsigned page_ready(const struct supervisor *s, struct buffer *out)
{
    const char *why = supervisor_unready(s);
    if (why == NULL) {
        buffer_append_z(out, "{\"ready\": true}\n");
        return MHD_HTTP_OK;
    }
    buffer_printf(out, "{\"ready\": false, \"why\": \"%s\"}\n", why);
    return MHD_HTTP_SERVICE_UNAVAILABLE;
}

static unsigned page_of_status(const struct supervisor *s, struct buffer *out,
                               void (*print)(const struct status *, struct buffer *))
{
    struct status status;
    if (!supervisor_status(s, &status)) {
        return MHD_HTTP_INTERNAL_SERVER_ERROR;
    }
    print(&status, out);
    supervisor_status_free(&status);
    return out->failed ? MHD_HTTP_INTERNAL_SERVER_ERROR : MHD_HTTP_OK;
}

static unsigned page_status(const struct supervisor *s, struct buffer *out)
{
    return page_of_status(s, out, status_print_json);
}

static unsigned page_metrics(const struct supervisor *s, struct buffer *out)
{
    return page_of_status(s, out, status_print_prometheus);
}

static admin_page page_list;

static const struct {
    const char *path;
    const char *type;
    admin_page *print;
    const char *help;
} pages[] = {
    {"/", "text/plain; charset=utf-8", page_list, "this list"},
    {"/health", "application/json", page_health, "200: the supervisor runs"},
    {"/ready", "application/json", page_ready, "200 while requests are served, 503 while the server starts or ends"},
    {"/status", "application/json", page_status, "workers, loops and endpoints, as JSON"},
    {"/metrics", "text/plain; version=0.0.4; charset=utf-8", page_metrics, "the same for Prometheus"},
};

static unsigned page_list(const struct supervisor *s, struct buffer *out)
{
    (void)s;
    buffer_append_z(out, "kiln " KILN_VERSION "\n\n");
    for (size_t i = 0; i < ARRAY_LEN(pages); i++) {
        buffer_printf(out, "%-9s %s\n", pages[i].path, pages[i].help);
    }
    return MHD_HTTP_OK;
}

/* ---- answers --------------------------------------------------------------------------------------- */

static enum MHD_Result respond(struct MHD_Connection *connection, unsigned status, const char *type,
                               struct buffer *body)
{
    if (body->failed) {
        buffer_free(body);
        return MHD_NO;
    }
    struct MHD_Response *response = MHD_create_response_from_buffer(body->len, body->data, MHD_RESPMEM_MUST_FREE);
    if (response == NULL) {
        buffer_free(body);
        return MHD_NO;
    }
    MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "Cache-Control", "no-store");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, "Connection", "close");
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED) {
        MHD_add_response_header(response, "Allow", "GET, HEAD");
    }
    enum MHD_Result queued = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return queued;
}

static enum MHD_Result refuse(struct MHD_Connection *connection, unsigned status, const char *text)
{
    struct buffer body = BUFFER_EMPTY;
    buffer_printf(&body, "%u: %s\n", status, text);
    return respond(connection, status, "text/plain; charset=utf-8", &body);
}

struct hosts {
    struct str first;
    unsigned count;
};

static enum MHD_Result gather_host(void *cls, enum MHD_ValueKind kind, const char *name, const char *value)
{
    struct hosts *hosts = cls;
    (void)kind;
    if (strcasecmp(name, "Host") == 0) {
        hosts->first = hosts->count++ == 0 ? str_of(value != NULL ? value : "") : hosts->first;
    }
    return MHD_YES;
}

static bool is_admin_host(const struct config *config, struct str host)
{
    if (admin_host_is_local(host, config->admin_allow_remote)) {
        return true;
    }
    struct str name = admin_host_name(host);
    for (size_t i = 0; i < config->admin_hosts.count; i++) {
        if (str_eq_nocase(name, config->admin_hosts.items[i])) {
            return true;
        }
    }
    return false;
}

/* The HTTP status of a refusal; 0: it is good. No browser opens a socket file, or speaks HTTP/1.0. */
static unsigned judge_host(const struct supervisor *s, struct MHD_Connection *connection, const char *version)
{
    struct hosts hosts = {0};
    MHD_get_connection_values(connection, MHD_HEADER_KIND, gather_host, &hosts);
    if (hosts.count == 0) {
        return strcmp(version, "HTTP/1.0") == 0 ? 0 : MHD_HTTP_BAD_REQUEST;
    }
    if (hosts.count > 1) {
        return MHD_HTTP_BAD_REQUEST;
    }
    bool good = str_starts(str_of(s->admin.socket.text), STR("unix:")) || is_admin_host(s->config, hosts.first);
    return good ? 0 : MHD_HTTP_FORBIDDEN;
}

static bool has_body(struct MHD_Connection *connection)
{
    const char *length = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Content-Length");
    return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Transfer-Encoding") != NULL ||
           (length != NULL && strcmp(length, "0") != 0);
}

/* When the head has come; what is answered then ends the request. */
static enum MHD_Result answer(void *cls, struct MHD_Connection *connection, const char *url, const char *method,
                              const char *version, const char *upload, size_t *upload_size, void **state)
{
    const struct supervisor *s = cls;
    (void)upload;
    (void)state;
    *upload_size = 0;
    bool head_only = strcmp(method, "GET") != 0;
    bool allowed = !head_only || strcmp(method, "HEAD") == 0;
    bool early = strcmp(method, "POST") == 0 || strcmp(method, "PUT") == 0; /* whose bodies the library lets be */
    if (!early && has_body(connection)) {
        return MHD_NO; /* the connection ends */
    }
    unsigned refusal = judge_host(s, connection, version);
    if (refusal != 0) {
        return refuse(connection, refusal,
                      refusal == MHD_HTTP_FORBIDDEN
                          ? "Host names another machine than this one; the option AdminHosts allows it"
                          : "not one Host");
    }
    if (!allowed) {
        return refuse(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD");
    }
    for (size_t i = 0; i < ARRAY_LEN(pages); i++) {
        if (strcmp(url, pages[i].path) == 0) {
            struct buffer body = BUFFER_EMPTY;
            unsigned status = pages[i].print(s, &body);
            return respond(connection, status, pages[i].type, &body);
        }
    }
    return refuse(connection, MHD_HTTP_NOT_FOUND, "there is no such page; / lists those that are");
}

/* ---- connections -------------------------------------------------------------------------------------- */

static void note_connection(void *cls, struct MHD_Connection *connection, void **context,
                            enum MHD_ConnectionNotificationCode code)
{
    struct supervisor *s = cls;
    struct admin_connection *noted = *context;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (noted != NULL) {
            list_remove(&noted->node);
            free(noted);
        }
        return;
    }
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    noted = info != NULL ? calloc(1, sizeof *noted) : NULL;
    if (noted == NULL) {
        return; /* the library's own timeout holds */
    }
    noted->fd = info->connect_fd;
    noted->until_ms = clock_now_ms() + (uint64_t)(s->config->admin_timeout * 1000);
    list_append(&s->admin.connections, &noted->node);
    *context = noted;
}

/* The library sees the end of the connection, and closes it. */
static void end_overdue(struct admin *admin)
{
    uint64_t now = clock_now_ms();
    LIST_EACH(node, &admin->connections) {
        struct admin_connection *connection = LIST_ENTRY(node, struct admin_connection, node);
        if (connection->until_ms <= now) {
            shutdown(connection->fd, SHUT_RDWR);
            connection->until_ms = UINT64_MAX;
        }
    }
}

/* ---- life ------------------------------------------------------------------------------------------------ */

static void log_library(void *cls, const char *format, va_list args) __attribute__((format(printf, 2, 0)));

static void log_library(void *cls, const char *format, va_list args)
{
    (void)cls;
    struct buffer text = BUFFER_EMPTY;
    buffer_vprintf(&text, format, args);
    log_debug("admin listener: %.*s",
              STR_ARG(str_trim(str_first(buffer_str(&text), str_find(buffer_str(&text), '\n')))));
    buffer_free(&text);
}

static struct MHD_Daemon *start_daemon(struct supervisor *s, int fd)
{
    unsigned seconds = (unsigned)s->config->admin_timeout;
    return MHD_start_daemon(
        MHD_USE_EPOLL | MHD_USE_ERROR_LOG, 0, NULL, NULL, answer, s, /* first, so that all is logged by it: */
        MHD_OPTION_EXTERNAL_LOGGER, log_library, NULL, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)s->config->admin_connections, MHD_OPTION_CONNECTION_TIMEOUT, seconds,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY, MHD_OPTION_NOTIFY_CONNECTION, note_connection, s,
        MHD_OPTION_END);
}

static void stop(struct MHD_Daemon **daemon)
{
    if (*daemon != NULL) {
        MHD_stop_daemon(*daemon);
        *daemon = NULL;
    }
}

/* It finishes what it has begun; the socket stays open. */
static void let_go(struct admin *admin)
{
    if (admin->daemon == NULL) {
        return;
    }
    stop(&admin->leaving);
    MHD_quiesce_daemon(admin->daemon);
    admin->leaving = admin->daemon;
    admin->daemon = NULL;
}

void admin_init(struct admin *admin)
{
    *admin = (struct admin){.socket = ADMIN_SOCKET_NONE};
    list_init(&admin->connections);
}

void admin_start(struct supervisor *s)
{
    struct admin *admin = &s->admin;
    admin->start_at_ms = 0;
    if (admin->daemon != NULL || admin->socket.fd < 0 || s->upgrade.handed_over) {
        return;
    }
    admin->daemon = start_daemon(s, admin->socket.fd);
    if (admin->daemon == NULL) {
        log_error("the admin listener on %s cannot be started: out of memory or descriptors", admin->socket.text);
    }
}

bool admin_use(struct supervisor *s, const struct admin_socket *fresh)
{
    struct admin *admin = &s->admin;
    let_go(admin); /* also for the same socket: its limits may be others now */
    if (!fresh->kept) {
        admin_socket_close(&admin->socket, false);
    }
    bool is_new = fresh->fd >= 0 && !fresh->kept;
    admin->socket = *fresh;
    admin->socket.kept = false;
    admin_start(s);
    if (is_new && admin->daemon != NULL) {
        struct buffer url = BUFFER_EMPTY;
        admin_socket_print_url(fresh, &url);
        log_notice("admin listener on %.*s", STR_ARG(buffer_str(&url)));
        buffer_free(&url);
    }
    return fresh->fd < 0 || admin->daemon != NULL;
}

bool admin_prepare(struct supervisor *s, struct buffer *why)
{
    struct admin *admin = &s->admin;
    struct admin_socket wanted;
    if (!admin_socket_open(s->config, &admin->socket, &wanted, why)) {
        return false;
    }
    if (!wanted.kept) {
        admin_socket_close(&admin->socket, true); /* what was inherited is the elder's */
    }
    if (upgrade_is_heir(s)) {
        admin->socket = wanted;
        return true;
    }
    if (!admin_use(s, &wanted)) {
        buffer_append_z(why, "the admin listener cannot be started");
        return false;
    }
    return true;
}

void admin_take_over(struct supervisor *s)
{
    s->admin.socket.kept = false;
    s->admin.start_at_ms = clock_now_ms() + FIGURES_MS;
}

void admin_hand_over(struct supervisor *s)
{
    let_go(&s->admin);
    admin_socket_close(&s->admin.socket, true);
}

void admin_end(struct supervisor *s)
{
    let_go(&s->admin);
    stop(&s->admin.leaving);
    admin_socket_close(&s->admin.socket, s->admin.socket.kept); /* the elder's, of an heir that never took over */
}

/* ---- the supervisor's loop ----------------------------------------------------------------------------------- */

static int epoll_of(struct MHD_Daemon *daemon)
{
    const union MHD_DaemonInfo *info = daemon != NULL ? MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_EPOLL_FD) : NULL;
    return info != NULL ? info->epoll_fd : -1;
}

void admin_poll(const struct admin *admin, struct pollfd *fds)
{
    fds[0] = (struct pollfd){.fd = epoll_of(admin->daemon), .events = POLLIN};
    fds[1] = (struct pollfd){.fd = epoll_of(admin->leaving), .events = POLLIN};
}

static uint64_t daemon_due(struct MHD_Daemon *daemon)
{
    MHD_UNSIGNED_LONG_LONG wait;
    return daemon != NULL && MHD_get_timeout(daemon, &wait) == MHD_YES ? clock_now_ms() + wait : UINT64_MAX;
}

uint64_t admin_due_ms(const struct supervisor *s)
{
    const struct admin *admin = &s->admin;
    uint64_t due = daemon_due(admin->daemon);
    uint64_t other = daemon_due(admin->leaving);
    due = other < due ? other : due;
    due = admin->start_at_ms != 0 && admin->start_at_ms < due ? admin->start_at_ms : due;
    LIST_EACH(node, &admin->connections) {
        uint64_t until = LIST_ENTRY(node, struct admin_connection, node)->until_ms;
        due = until < due ? until : due;
    }
    return due;
}

static bool has_connections(struct MHD_Daemon *daemon)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
    return info != NULL && info->num_connections > 0;
}

void admin_run(struct supervisor *s)
{
    struct admin *admin = &s->admin;
    if (admin->start_at_ms != 0 && admin->start_at_ms <= clock_now_ms()) {
        admin_start(s);
    }
    end_overdue(admin);
    if (admin->daemon != NULL) {
        MHD_run(admin->daemon);
    }
    if (admin->leaving != NULL) {
        MHD_run(admin->leaving);
        if (!has_connections(admin->leaving)) {
            stop(&admin->leaving);
        }
    }
}
