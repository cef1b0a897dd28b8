/* DESIGN: kiln_ws.h: listeners, and serving with a thread for each WebSocket. A listener counts who uses it: the
 * program, and every socket it accepted, which goes on using its options (subprotocols, origins, page). So it
 * may be freed while sockets are still open. kiln_ws_listener_close() is an eventfd that everybody
 * who waits sees. */
#include "kilnws/server.h"

#include "wsio/pacing.h"

#include <errno.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

static kiln_ws_listener *fail(kiln_ws_listener *listener, const kiln_ws_listen_options *options, const char *what,
                              const char *why)
{
    char text[URL_ERROR_MAX];
    snprintf(text, sizeof text, "%.120s%s%.120s", what, why[0] != '\0' ? ": " : "", why);
    error_to_options(&options->ws, text);
    kiln_ws_listener_free(listener);
    return NULL;
}

/* ---- options ------------------------------------------------------------------------------------------- */

/* NULL, or what is wrong. */
static const char *copy_list(const char *const *from, const char **to, size_t *count)
{
    for (size_t n = 0; from != NULL && from[n] != NULL; n++) {
        if (n == LISTENER_LIST_MAX) {
            return "more than 64 subprotocols or origins";
        }
        to[n] = strdup(from[n]);
        if (to[n] == NULL) {
            return "no memory";
        }
        *count = n + 1;
    }
    return NULL;
}

/* NULL, or what is wrong. */
static const char *copy_texts(kiln_ws_listener *l, const kiln_ws_listen_options *options)
{
    const char *fault = copy_list(options->protocols, l->protocols, &l->protocol_count);
    if (fault == NULL) {
        fault = copy_list(options->origins, l->origins, &l->manners.origin_count);
    }
    for (size_t i = 0; fault == NULL && i < l->protocol_count; i++) {
        if (!ws_text_is_token(ws_text(l->protocols[i]))) {
            fault = "a subprotocol is a word without blanks, commas or quotes";
        }
    }
    l->manners.page = options->page != NULL ? strdup(options->page) : NULL;
    if (fault == NULL && options->page != NULL && l->manners.page == NULL) {
        fault = "no memory";
    }
    int bits = options->ws.deflate_bits;
    return fault == NULL && bits != 0 && (bits < 8 || bits > 15) ? "deflate_bits is from 8 to 15" : fault;
}

static bool take_options(kiln_ws_listener *l, const kiln_ws_listen_options *options, char error[URL_ERROR_MAX])
{
    const char *fault = copy_texts(l, options);
    l->options = options->ws;
    l->options.error = NULL;
    l->handshake = options->handshake;
    l->connections = options->connections > 0 ? options->connections : 1000;
    l->manners.origins = l->origins;
    l->manners.timeout_ms = options->handshake_timeout > 0 ? options->handshake_timeout : 10000;
    bool forget = (options->ws.deflate & KILN_WS_DEFLATE_FORGET) != 0;
    uint8_t bits = (uint8_t)options->ws.deflate_bits;
    l->manners.deflate = (struct ws_deflate_policy){.on = options->ws.deflate != 0,
                                                    .server_takeover = !forget,
                                                    .client_takeover = !forget,
                                                    .server_bits = bits,
                                                    .client_bits = bits};
    if (fault != NULL) {
        snprintf(error, URL_ERROR_MAX, "%s", fault);
        return false;
    }
    if (options->cert_file == NULL) {
        return true;
    }
    const struct tls_files files = {options->client_ca_file, options->cert_file, options->key_file, false};
    l->manners.context = tls_server_context(&files, error);
    return l->manners.context != NULL;
}

/* ---- binding --------------------------------------------------------------------------------------------- */

static int bind_one(const struct addrinfo *a, int backlog, bool shared)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int on = 1;
    int off = 0;
    if (fd < 0) {
        return -1;
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (shared) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    }
    if (a->ai_family == AF_INET6) {
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    }
    pacing_suit(fd, a->ai_addr);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, backlog) == 0) {
        return fd;
    }
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static int bind_any(const struct addrinfo *list, int family, int backlog, bool shared)
{
    int fd = -1;
    for (const struct addrinfo *a = list; a != NULL && fd < 0; a = a->ai_next) {
        if (family == AF_UNSPEC || a->ai_family == family) {
            fd = bind_one(a, backlog, shared);
        }
    }
    return fd;
}

static bool listen_at(kiln_ws_listener *l, const kiln_ws_listen_options *options, const char **why)
{
    char port[8];
    snprintf(port, sizeof port, "%d", options->port);
    struct addrinfo wanted = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list;
    int result = getaddrinfo(options->address, port, &wanted, &list);
    if (result != 0) {
        *why = gai_strerror(result);
        return false;
    }
    int backlog = options->backlog > 0 ? options->backlog : 511;
    /* The wildcard of IPv6 takes IPv4 as well. */
    errno = EAFNOSUPPORT;
    bool shared = options->reuse_port == 1;
    l->fd = options->address == NULL ? bind_any(list, AF_INET6, backlog, shared) : -1;
    if (l->fd < 0) {
        l->fd = bind_any(list, AF_UNSPEC, backlog, shared);
    }
    *why = strerror(errno);
    freeaddrinfo(list);
    return l->fd >= 0;
}

kiln_ws_listener *kiln_ws_listen(const kiln_ws_listen_options *options)
{
    char error[URL_ERROR_MAX] = "";
    kiln_ws_listener *l = calloc(1, sizeof *l);
    if (l == NULL) {
        return fail(NULL, options, "no memory", "");
    }
    l->fd = -1;
    l->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    atomic_init(&l->users, 1);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    if (options->port < 0 || options->port > 65535) {
        return fail(l, options, "the port is a number from 0 to 65535", "");
    }
    if (l->stop_fd < 0) {
        return fail(l, options, "no descriptor is free", "");
    }
    if (!take_options(l, options, error)) {
        return fail(l, options, error, "");
    }
    const char *why;
    if (!listen_at(l, options, &why)) {
        snprintf(error, sizeof error, "cannot listen at %.80s port %d",
                 options->address != NULL ? options->address : "*", options->port);
        return fail(l, options, error, why);
    }
    return l;
}

int kiln_ws_listener_port(const kiln_ws_listener *l)
{
    struct sockaddr_storage address;
    socklen_t len = sizeof address;
    char port[8] = "0";
    if (getsockname(l->fd, (struct sockaddr *)&address, &len) == 0) {
        getnameinfo((struct sockaddr *)&address, len, NULL, 0, port, sizeof port, NI_NUMERICSERV);
    }
    return atoi(port);
}

int kiln_ws_listener_fd(const kiln_ws_listener *l)
{
    return l->fd;
}

void kiln_ws_listener_close(kiln_ws_listener *l)
{
    int before = errno; /* it may be called by a signal handler */
    atomic_store(&l->closed, true);
    eventfd_write(l->stop_fd, 1);
    errno = before;
}

void listener_release(kiln_ws_listener *l)
{
    if (l == NULL || atomic_fetch_sub(&l->users, 1) > 1) {
        return;
    }
    for (size_t i = 0; i < l->protocol_count; i++) {
        free((void *)(uintptr_t)l->protocols[i]);
    }
    for (size_t i = 0; i < l->manners.origin_count; i++) {
        free((void *)(uintptr_t)l->origins[i]);
    }
    free((void *)(uintptr_t)l->manners.page);
    SSL_CTX_free(l->manners.context);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->changed);
    if (l->stop_fd >= 0) {
        close(l->stop_fd);
    }
    free(l);
}

void kiln_ws_listener_free(kiln_ws_listener *l)
{
    if (l != NULL) {
        if (l->fd >= 0) {
            close(l->fd);
        }
        l->fd = -1;
        listener_release(l);
    }
}

/* ---- accepting --------------------------------------------------------------------------------------------- */

kiln_ws *listener_take(kiln_ws_listener *l, struct ws_pool *pool)
{
    struct sockaddr_storage peer = {0};
    socklen_t len = sizeof peer;
    int fd = accept4(l->fd, (struct sockaddr *)&peer, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        return NULL;
    }
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    pacing_suit(fd, (struct sockaddr *)&peer);
    kiln_ws *ws = socket_create(&l->options, pool);
    if (ws == NULL) {
        close(fd);
        errno = ENOMEM;
        return NULL;
    }
    atomic_fetch_add(&l->users, 1);
    ws->listener = l;
    ws->handshake = l->handshake;
    ws->protocols = l->protocols;
    ws->protocol_count = l->protocol_count;
    if (!wslink_greet(&ws->link, fd, &l->manners)) {
        socket_destroy(ws);
        errno = ENOMEM;
        return NULL;
    }
    return ws;
}

bool listener_is_empty(int error)
{
    switch (error) {
    case EAGAIN:
    case EINTR:
    case ECONNABORTED:
    /* Linux hands the errors of a connection that waits to whoever accepts it: accept(2). */
    case EPROTO:
    case ENOPROTOOPT:
    case ENETDOWN:
    case ENETUNREACH:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ENONET:
    case EOPNOTSUPP:
    case EPERM: return true;
    default: return false;
    }
}

kiln_ws *kiln_ws_listener_accept(kiln_ws_listener *l, int milliseconds)
{
    uint64_t until = milliseconds < 0 ? UINT64_MAX : clock_us() + (uint64_t)milliseconds * 1000;
    while (!atomic_load(&l->closed)) {
        kiln_ws *ws = listener_take(l, NULL);
        if (ws != NULL) {
            ws->blocking = true;
            return ws;
        }
        bool empty = listener_is_empty(errno);
        uint64_t now = clock_us();
        if (!empty || now >= until) {
            return NULL;
        }
        uint64_t ms = until == UINT64_MAX ? UINT64_MAX : (until - now) / 1000 + 1;
        struct pollfd fds[2] = {{.fd = l->fd, .events = POLLIN}, {.fd = l->stop_fd, .events = POLLIN}};
        poll(fds, 2, ms > INT_MAX ? -1 : (int)ms);
    }
    return NULL;
}

/* ---- a thread each -------------------------------------------------------------------------------------------- */

struct visit {
    kiln_ws *ws;
    kiln_ws_listener *listener;
    void (*fn)(kiln_ws *ws, void *user);
    void *user;
};

static void leave(kiln_ws_listener *l)
{
    pthread_mutex_lock(&l->lock);
    l->visits--;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

static void *visit_run(void *arg)
{
    struct visit visit = *(struct visit *)arg;
    free(arg);
    visit.ws->user = visit.user;
    visit.ws->served = true;
    if (kiln_ws_handshake(visit.ws) == KILN_OK) {
        socket_answer(visit.ws);
        if (visit.ws->link.state == WSLINK_OPEN) {
            socket_tell_open(visit.ws);
            visit.fn(visit.ws, visit.user);
        }
    }
    visit.ws->served = false;
    kiln_ws_free(visit.ws);
    OPENSSL_thread_stop();
    leave(visit.listener);
    return NULL;
}

static bool visit_begin(kiln_ws_listener *l, kiln_ws *ws, void (*fn)(kiln_ws *ws, void *user), void *user)
{
    struct visit *visit = malloc(sizeof *visit);
    if (visit == NULL) {
        return false;
    }
    *visit = (struct visit){ws, l, fn, user};
    pthread_t thread;
    pthread_mutex_lock(&l->lock);
    l->visits++;
    pthread_mutex_unlock(&l->lock);
    if (pthread_create(&thread, NULL, visit_run, visit) != 0) {
        free(visit);
        leave(l);
        return false;
    }
    pthread_detach(thread);
    return true;
}

/* With the lock held: until a visit ends, or a second has passed, so that closing is seen. */
static void wait_a_moment(kiln_ws_listener *l)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    pthread_cond_timedwait(&l->changed, &l->lock, &until);
}

/* At most `most` visits; or closing, with `until_closed`. */
static void wait_for_visits(kiln_ws_listener *l, int most, bool until_closed)
{
    pthread_mutex_lock(&l->lock);
    while (l->visits > most && !(until_closed && atomic_load(&l->closed))) {
        wait_a_moment(l);
    }
    pthread_mutex_unlock(&l->lock);
}

int kiln_ws_listener_serve(kiln_ws_listener *l, void (*fn)(kiln_ws *ws, void *user), void *user)
{
    while (!atomic_load(&l->closed)) {
        kiln_ws *ws = kiln_ws_listener_accept(l, -1);
        if (ws == NULL) {
            if (!atomic_load(&l->closed)) { /* out of descriptors: until one may have come back */
                pthread_mutex_lock(&l->lock);
                wait_a_moment(l);
                pthread_mutex_unlock(&l->lock);
            }
            continue;
        }
        if (!visit_begin(l, ws, fn, user)) {
            socket_destroy(ws);
        }
        wait_for_visits(l, l->connections - 1, true);
    }
    wait_for_visits(l, 0, false);
    return KILN_OK;
}

int kiln_ws_serve(const kiln_ws_listen_options *options, void (*fn)(kiln_ws *ws, void *user), void *user)
{
    kiln_ws_listener *l = kiln_ws_listen(options);
    if (l == NULL) {
        return KILN_FAILED;
    }
    int result = kiln_ws_listener_serve(l, fn, user);
    kiln_ws_listener_free(l);
    return result;
}
