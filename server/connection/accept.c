#include "connection/accept.h"

#include "config/config.h"
#include "connection/tls.h"
#include "loop/config_hold.h"
#include "observe/log.h"
#include "observe/metrics.h"
#include "protocol/http1.h"
#include "wsio/pacing.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum { ACCEPTS_PER_EVENT = 16, PAUSE_MS = 50, LOG_EVERY_MS = 5000, LAST_BATCHES = 64 };

struct acceptor {
    struct watch watch;
    struct timer resume;
    struct loop *loop;
    const struct listener *listener;
    struct list node;
    int reserve_fd;
    bool paced; /* what it accepts: pacing.h */
    uint64_t logged_ms;
};

static struct list *acceptors_of(struct loop *loop)
{
    struct list *list = loop_slot(loop, LOOP_SLOT_ACCEPT);
    if (list == NULL) {
        list = malloc(sizeof *list);
        CHECK(list != NULL);
        list_init(list);
        loop_slot_set(loop, LOOP_SLOT_ACCEPT, list);
    }
    return list;
}

static void pause_accepting(struct acceptor *acceptor)
{
    loop_watch_remove(acceptor->loop, &acceptor->watch);
    timer_start(acceptor->loop, &acceptor->resume, PAUSE_MS);
}

static void on_resume(struct timer *timer)
{
    struct acceptor *acceptor = CONTAINER_OF(timer, struct acceptor, resume);
    if (acceptor->reserve_fd < 0) {
        acceptor->reserve_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
    if (!loop_watch_add(acceptor->loop, &acceptor->watch)) {
        timer_start(acceptor->loop, &acceptor->resume, PAUSE_MS);
    }
}

static void out_of_descriptors(struct acceptor *acceptor, int error)
{
    metric_add(METRIC_ACCEPT_ERRORS, 1);
    uint64_t now = loop_now_ms(acceptor->loop);
    if (acceptor->logged_ms == 0 || now - acceptor->logged_ms > LOG_EVERY_MS) {
        acceptor->logged_ms = now;
        log_error("cannot accept a connection: %s; raise the limit on open files (ulimit -n, LimitNOFILE) "
                  "or set MaxConcurrentConnections",
                  strerror(error));
    }
    if (acceptor->reserve_fd >= 0) {
        close(acceptor->reserve_fd);
        int fd = accept4(acceptor->watch.fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0) {
            close(fd);
        }
        acceptor->reserve_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
    pause_accepting(acceptor);
}

static bool over_limit(const struct acceptor *acceptor)
{
    int64_t limit = config_hold_current(acceptor->loop)->max_concurrent_connections;
    return limit > 0 && conn_count_all() >= (uint64_t)limit;
}

static void refuse(int fd, bool secure)
{
    static const char answer[] = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
                                 "Connection: close\r\n\r\n";
    if (!secure) {
        send(fd, answer, sizeof answer - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    /* Bytes that lie unread would make a reset of our close, and lose the client the answer. */
    char unread[4096];
    shutdown(fd, SHUT_WR);
    for (int i = 0; i < 4 && recv(fd, unread, sizeof unread, MSG_DONTWAIT) > 0; i++) {
    }
    close(fd);
    metric_add(METRIC_CONNECTIONS_REFUSED, 1);
}

/* True when more connections may be waiting. */
static bool accept_some(struct acceptor *acceptor)
{
    for (int i = 0; i < ACCEPTS_PER_EVENT; i++) {
        struct sockaddr_storage peer;
        socklen_t len = sizeof peer;
        int fd = accept4(acceptor->watch.fd, (struct sockaddr *)&peer, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
                out_of_descriptors(acceptor, errno);
                return false;
            }
            if (errno == EAGAIN || errno == EWOULDBLOCK) {
                return false;
            }
            continue; /* the connection went away while it waited */
        }
        metric_add(METRIC_CONNECTIONS_ACCEPTED, 1);
        if (over_limit(acceptor)) {
            refuse(fd, acceptor->listener->kind == LISTENER_TLS);
            continue;
        }
        if (len == 0) {
            peer.ss_family = AF_UNIX;
        }
        if (acceptor->paced && pacing_is_needless((struct sockaddr *)&peer)) {
            pacing_end(fd);
        }
        if (acceptor->listener->kind == LISTENER_TLS) {
            conn_open(acceptor->loop, fd, acceptor->listener, &transport_tls, &protocol_tls, &peer);
        } else {
            conn_open(acceptor->loop, fd, acceptor->listener, &transport_plain, &protocol_http1, &peer);
        }
    }
    return true;
}

static void on_acceptable(struct watch *watch, uint32_t ready)
{
    (void)ready;
    accept_some(CONTAINER_OF(watch, struct acceptor, watch));
}

bool accept_start(struct loop *loop, const struct listener *listener)
{
    struct acceptor *acceptor = calloc(1, sizeof *acceptor);
    if (acceptor == NULL) {
        return false;
    }
    acceptor->watch =
        (struct watch){.fd = listener->fd, .wanted = LOOP_READ | LOOP_EXCLUSIVE, .on_ready = on_acceptable};
    acceptor->resume.fire = on_resume;
    acceptor->loop = loop;
    acceptor->listener = listener;
    acceptor->reserve_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    /* Accepted sockets inherit it: answers leave whole, without waiting for more. */
    int on = 1;
    setsockopt(listener->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct sockaddr_storage bound;
    socklen_t len = sizeof bound;
    if (getsockname(listener->fd, (struct sockaddr *)&bound, &len) == 0) {
        pacing_suit(listener->fd, (struct sockaddr *)&bound);
    }
    acceptor->paced = pacing_is_on(listener->fd);
    if (!loop_watch_add(loop, &acceptor->watch)) {
        close(acceptor->reserve_fd);
        free(acceptor);
        return false;
    }
    list_append(acceptors_of(loop), &acceptor->node);
    return true;
}

static void stop(struct acceptor *acceptor)
{
    /* A wake-up that this loop was given alone (LOOP_EXCLUSIVE) would be lost with its watch, and
     * the connections behind it would wait until another one comes. */
    for (int i = 0; i < LAST_BATCHES && !timer_is_running(&acceptor->resume) && accept_some(acceptor); i++) {
    }
    if (timer_is_running(&acceptor->resume)) {
        timer_stop(acceptor->loop, &acceptor->resume);
    } else {
        loop_watch_remove(acceptor->loop, &acceptor->watch);
    }
    list_remove(&acceptor->node);
    close(acceptor->reserve_fd);
    free(acceptor);
}

void accept_stop(struct loop *loop, const struct listener *listener)
{
    struct list *acceptors = acceptors_of(loop);
    LIST_EACH(node, acceptors) {
        struct acceptor *acceptor = LIST_ENTRY(node, struct acceptor, node);
        if (acceptor->listener == listener) {
            stop(acceptor);
            return;
        }
    }
}

void accept_stop_all(struct loop *loop)
{
    struct list *acceptors = acceptors_of(loop);
    LIST_EACH(node, acceptors) {
        stop(LIST_ENTRY(node, struct acceptor, node));
    }
    free(acceptors);
    loop_slot_set(loop, LOOP_SLOT_ACCEPT, NULL);
}
