#include "connection/conn.h"

#include "config/config.h"
#include "connection/conn_private.h"
#include "connection/output.h"
#include "loop/config_hold.h"
#include "observe/metrics.h"

#include <errno.h>
#include <stdatomic.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Input arrives in one buffer a loop; nothing of it is kept by the connection itself. One event reads so often that a
 * message of 1 MB is whole afterwards: those that were left in the middle, one of each connection, would be in memory
 * all at once, and long out of the cache when their rest comes and they are looked at again. */
enum { RECEIVE_BYTES = 65536, READS_PER_EVENT = 8, FREE_KEEP = 256 };

struct loop_conns {
    struct list open;
    unsigned count;
    struct conn *free;
    unsigned free_count;
    uint8_t *receive_buffer;
    bool shutting_down;
};

static _Atomic unsigned open_everywhere;

static struct loop_conns *conns_of(struct loop *loop)
{
    struct loop_conns *conns = loop_slot(loop, LOOP_SLOT_CONNECTIONS);
    if (conns == NULL) {
        conns = calloc(1, sizeof *conns);
        CHECK(conns != NULL);
        list_init(&conns->open);
        conns->receive_buffer = malloc(RECEIVE_BYTES);
        CHECK(conns->receive_buffer != NULL);
        loop_slot_set(loop, LOOP_SLOT_CONNECTIONS, conns);
    }
    return conns;
}

unsigned conn_count(const struct loop *loop)
{
    const struct loop_conns *conns = loop_slot(loop, LOOP_SLOT_CONNECTIONS);
    return conns != NULL ? conns->count : 0;
}

unsigned conn_count_all(void)
{
    return atomic_load_explicit(&open_everywhere, memory_order_relaxed);
}

static void count(const struct conn *conn, int by)
{
    conns_of(conn->loop)->count += (unsigned)by;
    metric_add(METRIC_CONNECTIONS_OPEN, by);
    atomic_fetch_add_explicit(&open_everywhere, (unsigned)by, memory_order_relaxed);
}

/* ---- closing ----------------------------------------------------------------------------- */

static void free_conn(struct task *task)
{
    struct conn *conn = CONTAINER_OF(task, struct conn, end_task);
    struct loop_conns *conns = conns_of(conn->loop);
    if (conns->free_count >= FREE_KEEP) {
        free(conn);
        return;
    }
    conn->proto = conns->free;
    conns->free = conn;
    conns->free_count++;
}

static void queue_free(struct task *task)
{
    /* One round later: a flush that was queued before the close has run by then. */
    struct conn *conn = CONTAINER_OF(task, struct conn, end_task);
    conn->end_task.run = free_conn;
    loop_defer(conn->loop, &conn->end_task);
}

void conn_close(struct conn *conn, enum conn_close_reason reason)
{
    if (conn->closed) {
        return;
    }
    conn->closed = true;
    timer_stop(conn->loop, &conn->timer);
    bool counted = conn_has_socket(conn);
    if (counted) {
        loop_watch_remove(conn->loop, &conn->watch);
    }
    conn->transport->close(conn);
    if (counted) {
        close(conn->watch.fd);
        conn->watch.fd = -1;
    }
    if (conn->out != NULL && !conn->in_flush) {
        struct output *out = conn->out;
        conn->out = NULL;
        output_give_back(conn->loop, out);
    }
    conn->protocol->on_close(conn, reason);
    list_remove(&conn->node);
    if (counted) {
        count(conn, -1);
    }
    conn->end_task.run = queue_free;
    loop_defer(conn->loop, &conn->end_task);
}

void conn_reset(struct conn *conn)
{
    if (!conn->closed) {
        const struct linger none = {.l_onoff = 1, .l_linger = 0};
        setsockopt(conn->watch.fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
        conn_close(conn, CONN_CLOSE_ERROR);
    }
}

/* False: it is closed, nobody is there. */
static bool half_close(struct conn *conn)
{
    if (conn->eof_seen || (conn_has_socket(conn) && shutdown(conn->watch.fd, SHUT_WR) != 0)) {
        conn_close(conn, (enum conn_close_reason)(conn->finishing - 1));
        return false;
    }
    return true;
}

static void begin_linger(struct conn *conn)
{
    conn->transport->shutdown(conn);
    /* Its last words may have to wait for room in the socket: on_ready() goes on then. */
    if (!conn->transport_waits && !half_close(conn)) {
        return;
    }
    /* Unread input would turn our close into a reset that destroys the answer on its way:
     * read and drop until the peer has closed too, for a bounded time. */
    conn->lingering = true;
    conn_resume_read(conn);
    const struct config *config = config_hold_current(conn->loop);
    conn->deadline_ms = 0;
    conn_deadline_set(conn, loop_now_ms(conn->loop) + (uint64_t)(config->linger_timeout * 1000));
}

void conn_finish(struct conn *conn, enum conn_close_reason reason)
{
    if (conn->closed || conn->finishing != 0) {
        return;
    }
    conn->finishing = (uint8_t)(reason + 1);
    if (conn->out == NULL) {
        begin_linger(conn);
    } else if (!conn->in_event) {
        conn_flush(conn);
    }
}

bool conn_finish_idle(struct conn *conn, enum conn_close_reason reason)
{
    int unread = 0;
    int unsent = 0;
    if (conn->closed || conn->finishing != 0) {
        return true;
    }
    if (ioctl(conn->watch.fd, FIONREAD, &unread) == 0 && unread > 0) {
        return false;
    }
    if (conn->out != NULL || ioctl(conn->watch.fd, SIOCOUTQ, &unsent) != 0 || unsent > 0) {
        conn_finish(conn, reason);
        return true;
    }
    /* The peer has every byte, and sends none: there is nothing that a reset could destroy. */
    conn->finishing = (uint8_t)(reason + 1);
    conn->transport->shutdown(conn);
    conn_close(conn, reason);
    return true;
}

/* ---- output ---------------------------------------------------------------------------------- */

static void arm_timer(struct conn *conn, uint64_t due_ms)
{
    uint64_t now = loop_now_ms(conn->loop);
    if (timer_is_running(&conn->timer) && conn->timer.due_ms <= due_ms) {
        return; /* lazy: it fires early, sees that it is too soon and starts again */
    }
    timer_start(conn->loop, &conn->timer, due_ms > now ? due_ms - now : 0);
}

/* When a peer that takes our output too slowly is given up. */
static uint64_t output_deadline(const struct conn *conn)
{
    const struct config *config = config_hold_current(conn->loop);
    if (conn->out == NULL || output_blocked_since(conn->out) == 0 || config->response_timeout <= 0) {
        return 0;
    }
    double seconds = config->response_timeout;
    if (config->bytes_per_second > 0) {
        seconds += (double)output_sent_since(conn->out) / config->bytes_per_second;
    }
    return output_blocked_since(conn->out) + (uint64_t)(seconds * 1000);
}

static void output_empty(struct conn *conn)
{
    struct output *out = conn->out;
    conn->out = NULL;
    output_give_back(conn->loop, out);
    if (conn->finishing != 0) {
        begin_linger(conn);
    } else if (conn->want_drained) {
        conn->want_drained = false;
        conn->protocol->on_drained(conn);
    }
}

static void wait_for_peer(struct conn *conn, bool yielded)
{
    output_mark_blocked(conn->out, loop_now_ms(conn->loop));
    if (!conn_has_socket(conn)) {
        /* Its transport tells. */
    } else if ((conn->watch.wanted & LOOP_WRITE) == 0) {
        /* From now on for good: a peer that was slow once will be again. */
        loop_watch_change(conn->loop, &conn->watch, conn->watch.wanted | LOOP_WRITE);
    } else if (yielded) {
        loop_watch_again(conn->loop, &conn->watch);
    }
    uint64_t due = output_deadline(conn);
    if (due != 0) {
        arm_timer(conn, due);
    }
}

void conn_flush(struct conn *conn)
{
    if (conn->closed || conn->in_flush) {
        return;
    }
    if (conn->write_failed) {
        conn_close(conn, CONN_CLOSE_ERROR);
        return;
    }
    if (conn->out == NULL) {
        return;
    }
    conn->in_flush = true;
    enum output_result result = output_send(conn->out, conn);
    conn->in_flush = false;
    if (conn->closed) {
        struct output *out = conn->out;
        conn->out = NULL;
        output_give_back(conn->loop, out);
        return;
    }
    switch (conn->write_failed ? OUTPUT_FAILED : result) {
    case OUTPUT_SENT: output_empty(conn); break;
    case OUTPUT_BLOCKED: wait_for_peer(conn, false); break;
    case OUTPUT_YIELDED: wait_for_peer(conn, true); break;
    case OUTPUT_FAILED: conn_close(conn, CONN_CLOSE_ERROR); break;
    }
}

static void receive_and_flush(struct conn *conn, bool ended);

static void flush_later(struct task *task)
{
    struct conn *conn = CONTAINER_OF(task, struct conn, flush_task);
    conn->flush_queued = false;
    if (conn->input_held && !conn->closed && !conn->read_paused && !conn->eof_seen) {
        receive_and_flush(conn, false);
    } else {
        conn_flush(conn);
    }
}

void conn_queue_flush(struct conn *conn)
{
    if (!conn->flush_queued) {
        conn->flush_queued = true;
        loop_defer(conn->loop, &conn->flush_task);
    }
}

void conn_transport_waits(struct conn *conn, bool waits)
{
    conn->transport_waits = waits;
    if (waits && (conn->watch.wanted & LOOP_WRITE) == 0) {
        loop_watch_change(conn->loop, &conn->watch, conn->watch.wanted | LOOP_WRITE);
    }
}

/* ---- input ------------------------------------------------------------------------------------ */

void conn_pause_read(struct conn *conn)
{
    conn->read_paused = true;
}

void conn_resume_read(struct conn *conn)
{
    if (!conn->read_paused || conn->closed) {
        return;
    }
    conn->read_paused = false;
    if (conn->input_held) {
        conn_queue_flush(conn);
    }
    if (conn->read_missed) {
        conn->read_missed = false;
        loop_watch_again(conn->loop, &conn->watch);
    }
}

static void on_peer_eof(struct conn *conn)
{
    conn->eof_seen = true;
    if (conn->lingering) {
        conn_close(conn, (enum conn_close_reason)(conn->finishing - 1));
        return;
    }
    if (conn->finishing == 0) {
        conn->protocol->on_eof(conn);
    }
}

/* Where the next bytes go. */
static uint8_t *receive_room(struct conn *conn, size_t *cap)
{
    if (conn->protocol->room != NULL && !conn->transport->secure && conn->finishing == 0) {
        uint8_t *room = conn->protocol->room(conn, cap);
        if (room != NULL) {
            return room;
        }
    }
    *cap = RECEIVE_BYTES;
    return conns_of(conn->loop)->receive_buffer;
}

/* `ended`: an end or an error waits behind the bytes, which no other event will tell of. */
static void receive(struct conn *conn, bool ended)
{
    for (int i = 0; i < READS_PER_EVENT; i++) {
        size_t cap;
        uint8_t *buffer = receive_room(conn, &cap);
        ssize_t n = conn->transport->receive(conn, buffer, cap);
        if (n > 0) {
            metric_add(METRIC_BYTES_RECEIVED, n);
            if (conn->finishing == 0) {
                conn->protocol->on_data(conn, buffer, (size_t)n);
            }
            if (conn->closed || ((size_t)n < cap && !ended && !conn->input_held)) {
                return;
            }
            if (conn->read_paused) {
                conn->read_missed = true;
                return;
            }
            continue;
        }
        if (n == 0) {
            on_peer_eof(conn);
            return;
        }
        if (errno == EINTR) {
            continue;
        }
        if (errno != EAGAIN && errno != EWOULDBLOCK) {
            conn_close(conn, CONN_CLOSE_ERROR);
        }
        return;
    }
    if (conn->input_held) {
        conn_queue_flush(conn);
    }
    loop_watch_again(conn->loop, &conn->watch);
}

void conn_feed(struct conn *conn, const uint8_t *data, size_t len)
{
    if (conn->closed || conn->finishing != 0) {
        return;
    }
    conn->in_event = true;
    conn->protocol->on_data(conn, data, len);
    conn->in_event = false;
    if (conn->read_paused) {
        conn->input_held = true;
    }
    conn_flush(conn);
}

void conn_feed_end(struct conn *conn)
{
    if (!conn->closed) {
        on_peer_eof(conn);
    }
}

static void receive_and_flush(struct conn *conn, bool ended)
{
    conn->in_event = true;
    receive(conn, ended);
    conn->in_event = false;
    conn_flush(conn);
}

static void on_ready(struct watch *watch, uint32_t ready)
{
    struct conn *conn = CONTAINER_OF(watch, struct conn, watch);
    if ((ready & LOOP_WRITE) != 0) {
        bool waits = conn->transport_waits;
        if (waits && !conn->transport->resume(conn)) {
            conn_close(conn, CONN_CLOSE_ERROR);
            return;
        }
        if (waits && conn->lingering && !conn->transport_waits && !half_close(conn)) {
            return;
        }
        conn_flush(conn);
        if (conn->closed) {
            return;
        }
    }
    if ((ready & LOOP_READ) != 0 && !conn->read_paused && !conn->eof_seen) {
        receive_and_flush(conn, (ready & (LOOP_HANGUP | LOOP_ERROR)) != 0);
        return;
    }
    /* Both directions are dead, or there is an error that reading will not report. */
    if ((ready & LOOP_ERROR) != 0) {
        conn_close(conn, CONN_CLOSE_ERROR);
        return;
    }
    conn->read_missed = conn->read_missed || (ready & LOOP_READ) != 0;
}

/* ---- deadlines ---------------------------------------------------------------------------------- */

void conn_deadline_set(struct conn *conn, uint64_t due_ms)
{
    conn->deadline_ms = due_ms;
    if (due_ms != 0) {
        arm_timer(conn, due_ms);
    }
}

static void on_timer(struct timer *timer)
{
    struct conn *conn = CONTAINER_OF(timer, struct conn, timer);
    uint64_t now = loop_now_ms(conn->loop);
    uint64_t output_due = output_deadline(conn);
    if (output_due != 0 && output_due <= now) {
        conn_close(conn, CONN_CLOSE_TIMEOUT);
        return;
    }
    if (conn->deadline_ms != 0 && conn->deadline_ms <= now) {
        conn->deadline_ms = 0;
        if (conn->lingering) {
            conn_close(conn, (enum conn_close_reason)(conn->finishing - 1));
            return;
        }
        conn->protocol->on_deadline(conn);
        if (conn->closed) {
            return;
        }
        output_due = output_deadline(conn);
    }
    uint64_t due = conn->deadline_ms;
    if (output_due != 0 && (due == 0 || output_due < due)) {
        due = output_due;
    }
    if (due != 0) {
        arm_timer(conn, due);
    }
}

/* ---- opening ------------------------------------------------------------------------------------- */

static struct conn *make(struct loop *loop, int fd, const struct transport *transport, const struct protocol *protocol)
{
    struct loop_conns *conns = conns_of(loop);
    struct conn *conn = conns->free;
    if (conn != NULL) {
        conns->free = conn->proto;
        conns->free_count--;
    } else {
        conn = malloc(sizeof *conn);
    }
    if (conn != NULL) {
        *conn = (struct conn){
            .watch = {.fd = fd, .wanted = LOOP_READ | LOOP_EDGE, .on_ready = on_ready},
            .transport = transport,
            .protocol = protocol,
            .loop = loop,
            .timer = {.fire = on_timer},
            .flush_task = {.run = flush_later},
        };
    }
    return conn;
}

struct conn *conn_open(struct loop *loop, int fd, const struct listener *listener, const struct transport *transport,
                       const struct protocol *protocol, const struct sockaddr_storage *peer)
{
    struct loop_conns *conns = conns_of(loop);
    struct conn *conn = make(loop, fd, transport, protocol);
    if (conn == NULL) {
        close(fd);
        return NULL;
    }
    conn->listener = listener;
    address_from_sockaddr(&conn->peer, peer);
    if (!protocol->on_open(conn)) {
        close(fd);
        free(conn);
        return NULL;
    }
    list_append(&conns->open, &conn->node);
    count(conn, 1);
    if (!loop_watch_add(loop, &conn->watch)) {
        conn_close(conn, CONN_CLOSE_ERROR);
        return NULL;
    }
    return conn;
}

struct conn *conn_open_tunnel(struct conn *through, const struct transport *transport, void *transport_state)
{
    struct conn *conn = make(through->loop, -1, transport, NULL);
    if (conn != NULL) {
        conn->listener = through->listener;
        conn->peer = through->peer;
        conn->transport_state = transport_state;
        list_append(&conns_of(conn->loop)->open, &conn->node);
    }
    return conn;
}

void conn_shutdown_all(struct loop *loop)
{
    struct loop_conns *conns = conns_of(loop);
    conns->shutting_down = true;
    LIST_EACH(node, &conns->open) {
        struct conn *conn = LIST_ENTRY(node, struct conn, node);
        if (!conn->closed && conn->finishing == 0) {
            conn->protocol->on_shutdown(conn);
        }
    }
}

bool conn_loop_is_shutting_down(struct loop *loop)
{
    return conns_of(loop)->shutting_down;
}

void conn_close_all(struct loop *loop)
{
    struct loop_conns *conns = conns_of(loop);
    while (!list_is_empty(&conns->open)) { /* one takes its tunnels with it */
        conn_close(LIST_ENTRY(conns->open.next, struct conn, node), CONN_CLOSE_SHUTDOWN);
    }
}

void conn_lose_all(struct loop *loop)
{
    struct loop_conns *conns = conns_of(loop);
    LIST_EACH(node, &conns->open) {
        shutdown(LIST_ENTRY(node, struct conn, node)->watch.fd, SHUT_RDWR);
    }
    metric_add(METRIC_CONNECTIONS_OPEN, -(int64_t)conns->count);
    atomic_fetch_sub_explicit(&open_everywhere, conns->count, memory_order_relaxed);
}

void conn_loop_free(struct loop *loop)
{
    struct loop_conns *conns = conns_of(loop);
    while (conns->free != NULL) {
        struct conn *conn = conns->free;
        conns->free = conn->proto;
        free(conn);
    }
    free(conns->receive_buffer);
    free(conns);
    loop_slot_set(loop, LOOP_SLOT_CONNECTIONS, NULL);
    output_pool_free(loop);
}
