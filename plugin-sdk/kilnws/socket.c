/* kiln_ws.h: one socket. */
#include "kilnws/server.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

const kiln_ws_options socket_usual_options;

enum { LOOK_AGAIN_MS = 1000 }; /* another thread may have begun to close meanwhile */

const char *kiln_ws_version(void)
{
    return "1.0.0";
}

/* ---- life ------------------------------------------------------------------------------------------- */

void error_to_options(const kiln_ws_options *options, const char *text)
{
    if (options->error != NULL && options->error_size > 0) {
        snprintf(options->error, options->error_size, "%s", text);
    }
}

static void was_opened(struct link *link)
{
    kiln_ws *ws = (kiln_ws *)link; /* its first member */
    ws->opened = true;
    if (link->connections > 1) { /* the first may be opened by a sender, while another thread reads */
        ws->data_len = 0; /* the bytes of the last are gone */
    }
}

kiln_ws *socket_create(const kiln_ws_options *options, struct ws_pool *pool)
{
    kiln_ws *ws = calloc(1, sizeof *ws);
    if (ws == NULL) {
        error_to_options(options, "no memory");
        return NULL;
    }
    wslink_init(&ws->link, options, pool);
    ws->link.on_open = was_opened;
    pthread_mutex_init(&ws->lock, NULL);
    pthread_mutex_init(&ws->sending, NULL);
    pthread_cond_init(&ws->settled, NULL);
    atomic_init(&ws->deadline_us, UINT64_MAX);
    ws->connected = options->connected;
    ws->connected_user = options->user;
    ws->data = "";
    return ws;
}

void socket_destroy(kiln_ws *ws)
{
    wslink_free(&ws->link);
    pthread_mutex_destroy(&ws->lock);
    pthread_mutex_destroy(&ws->sending);
    pthread_cond_destroy(&ws->settled);
    free(ws->header);
    free(ws->target);
    listener_release(ws->listener);
    free(ws);
}

void socket_tell_open(kiln_ws *ws)
{
    if (!ws->opened) {
        return;
    }
    ws->opened = false;
    if (ws->connected != NULL) {
        ws->connected(ws, ws->connected_user);
    }
}

void socket_answer(kiln_ws *ws)
{
    struct ws_head head;
    pthread_mutex_lock(&ws->lock);
    if (ws->link.state == WSLINK_ASKED && ws->handshake != NULL && !ws->asked) {
        ws->asked = true; /* the function may send, and comes here again */
        pthread_mutex_unlock(&ws->lock);
        ws->handshake(ws, ws->user);
        pthread_mutex_lock(&ws->lock);
    }
    if (ws->link.state == WSLINK_ASKED) {
        wslink_accept(&ws->link,
                      ws_protocol_choose(wslink_headers(&ws->link, &head), ws->protocols, ws->protocol_count));
    }
    pthread_mutex_unlock(&ws->lock);
}

int socket_state(const kiln_ws *ws)
{
    switch (ws->link.state) {
    case WSLINK_OPEN: return ws->link.core.closing ? KILN_WS_CLOSING : KILN_WS_OPEN;
    case WSLINK_ENDING: return KILN_WS_CLOSING;
    case WSLINK_CLOSED: return KILN_WS_CLOSED;
    case WSLINK_DIALING:
    case WSLINK_PAUSED:
    case WSLINK_GREETING:
    case WSLINK_ASKED: break;
    }
    return KILN_WS_CONNECTING;
}

/* ---- waiting --------------------------------------------------------------------------------------------- */

static int until_ms(uint64_t until_us)
{
    uint64_t now = clock_us();
    if (until_us <= now) {
        return 0;
    }
    uint64_t ms = (until_us - now) / 1000 + 1;
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

/* With the lock held, which is let go meanwhile. KILN_OK: look again. */
static int wait_without_deadline(kiln_ws *ws, int events, uint64_t until_us)
{
    if (clock_us() >= until_us) {
        return KILN_TIMEOUT;
    }
    /* What is left to be received is no reason for a sender to look again at once. */
    bool sends = (events & KILN_READ) == 0;
    uint64_t link_until = sends && ws->link.more ? UINT64_MAX : wslink_until_us(&ws->link);
    int ms = until_ms(link_until < until_us ? link_until : until_us);
    struct pollfd poll_fd = {.fd = wslink_fd(&ws->link),
                             .events =
                                 (short)((events & KILN_READ ? POLLIN : 0) | (events & KILN_WRITE ? POLLOUT : 0))};
    pthread_mutex_unlock(&ws->lock);
    int n = poll(&poll_fd, 1, ms < LOOK_AGAIN_MS ? ms : LOOK_AGAIN_MS);
    pthread_mutex_lock(&ws->lock);
    return n < 0 && errno != EINTR ? KILN_NO_MEMORY : KILN_OK;
}

/* The same; the deadline may be set by another thread while this one waits. */
static int wait_for(kiln_ws *ws, int events, uint64_t until_us)
{
    uint64_t deadline = atomic_load(&ws->deadline_us);
    return wait_without_deadline(ws, events, until_us < deadline ? until_us : deadline);
}

/* Negative, and longer than anybody lives: never. */
static uint64_t in_ms(int64_t ms)
{
    return ms < 0 || ms > INT64_MAX / 2000 ? UINT64_MAX : clock_us() + (uint64_t)ms * 1000;
}

int kiln_ws_deadline(kiln_ws *ws, int64_t milliseconds)
{
    atomic_store(&ws->deadline_us, in_ms(milliseconds));
    return KILN_OK;
}

void kiln_ws_set_blocking(kiln_ws *ws, int on)
{
    ws->blocking = on != 0;
}

/* ---- connecting ----------------------------------------------------------------------------------------------- */

kiln_ws *kiln_ws_open(const char *url, const kiln_ws_options *options)
{
    char error[URL_ERROR_MAX] = "";
    options = options != NULL ? options : &socket_usual_options;
    struct plan *plan = plan_create(url, options, error);
    if (plan == NULL) {
        error_to_options(options, error);
        return NULL;
    }
    kiln_ws *ws = socket_create(options, NULL);
    if (ws == NULL) {
        plan_release(plan);
        return NULL;
    }
    wslink_dial(&ws->link, plan);
    wslink_step(&ws->link);
    return ws;
}

kiln_ws *kiln_ws_connect(const char *url, const kiln_ws_options *options)
{
    options = options != NULL ? options : &socket_usual_options;
    kiln_ws *ws = kiln_ws_open(url, options);
    if (ws == NULL) {
        return NULL;
    }
    ws->blocking = true;
    pthread_mutex_lock(&ws->lock);
    while (socket_state(ws) == KILN_WS_CONNECTING) {
        wait_without_deadline(ws, wslink_wants(&ws->link), UINT64_MAX);
        wslink_step(&ws->link);
    }
    bool ok = ws->link.connections > 0;
    pthread_mutex_unlock(&ws->lock);
    if (!ok) {
        error_to_options(options, ws->link.error);
        socket_destroy(ws);
        return NULL;
    }
    socket_tell_open(ws);
    return ws;
}

kiln_ws *kiln_ws_adopt(int fd, int role, const kiln_ws_options *options)
{
    options = options != NULL ? options : &socket_usual_options;
    kiln_ws *ws = socket_create(options, NULL);
    if (ws == NULL) {
        close(fd);
        return NULL;
    }
    ws->blocking = true;
    wslink_open(&ws->link, fd, role == KILN_WS_ROLE_CLIENT ? WS_CLIENT : WS_SERVER);
    socket_tell_open(ws);
    return ws;
}

int kiln_ws_pair(kiln_ws *ends[2], const kiln_ws_options *options)
{
    int fds[2];
    ends[0] = NULL;
    ends[1] = NULL;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
        return KILN_NO_MEMORY;
    }
    ends[0] = kiln_ws_adopt(fds[0], KILN_WS_ROLE_SERVER, options);
    ends[1] = kiln_ws_adopt(fds[1], KILN_WS_ROLE_CLIENT, options);
    if (ends[0] != NULL && ends[1] != NULL) {
        return KILN_OK;
    }
    kiln_ws_free(ends[0]);
    kiln_ws_free(ends[1]);
    ends[0] = NULL;
    ends[1] = NULL;
    return KILN_NO_MEMORY;
}

int kiln_ws_handshake(kiln_ws *ws)
{
    pthread_mutex_lock(&ws->lock);
    wslink_step(&ws->link);
    while (ws->link.state == WSLINK_GREETING && ws->blocking &&
           wait_for(ws, wslink_wants(&ws->link), UINT64_MAX) == KILN_OK) { /* the link has a limit of its own */
        wslink_step(&ws->link);
    }
    enum wslink_state state = ws->link.state;
    pthread_mutex_unlock(&ws->lock);
    if (state == WSLINK_GREETING || state == WSLINK_DIALING || state == WSLINK_PAUSED) {
        return KILN_TIMEOUT;
    }
    return state == WSLINK_ASKED || state == WSLINK_OPEN ? KILN_OK : KILN_GONE;
}

/* The handshake of a server's side, and its answer. */
static int open_now(kiln_ws *ws)
{
    int result = kiln_ws_handshake(ws);
    if (result == KILN_OK) {
        socket_answer(ws);
    }
    return result;
}

/* Before anything is sent or received. Of two threads one sees to the handshake; the other would wait for bytes that the
 * first has taken. */
static int be_open(kiln_ws *ws)
{
    if (ws->link.manners == NULL) {
        return KILN_OK; /* no server's side */
    }
    pthread_mutex_lock(&ws->lock);
    while (ws->opening && !pthread_equal(ws->opener, pthread_self())) {
        pthread_cond_wait(&ws->settled, &ws->lock);
    }
    int result = KILN_OK;
    if (ws->link.state == WSLINK_GREETING && !ws->blocking) {
        result = KILN_LATE; /* that is kiln_ws_step's, which tells of it */
    } else if (ws->link.state == WSLINK_GREETING || ws->link.state == WSLINK_ASKED) {
        bool within = ws->opening; /* options->handshake sends */
        ws->opening = true;
        ws->opener = pthread_self();
        pthread_mutex_unlock(&ws->lock);
        result = open_now(ws);
        pthread_mutex_lock(&ws->lock);
        ws->opening = within;
        pthread_cond_broadcast(&ws->settled);
    }
    pthread_mutex_unlock(&ws->lock);
    return result;
}

/* ---- receiving ---------------------------------------------------------------------------------------------------- */

static int receive(kiln_ws *ws, kiln_ws_message *message, uint64_t until)
{
    struct ws_item item;
    *message = (kiln_ws_message){.data = ""};
    int result = be_open(ws);
    if (result != KILN_OK) {
        return result == KILN_GONE ? 0 : result == KILN_LATE ? KILN_TIMEOUT : result;
    }
    pthread_mutex_lock(&ws->lock);
    for (;;) {
        if (ws->blocking && (ws->link.state == WSLINK_DIALING || ws->link.state == WSLINK_PAUSED)) {
            wslink_step(&ws->link); /* connects again; for others that is kiln_ws_step's, which tells of it */
        }
        enum wslink_event event = wslink_receive(&ws->link, &item, NULL);
        if (ws->opened) {
            pthread_mutex_unlock(&ws->lock);
            socket_tell_open(ws);
            pthread_mutex_lock(&ws->lock);
        }
        if (event == WSLINK_MESSAGE) {
            *message = (kiln_ws_message){
                .type = item.opcode, .data = item.len > 0 ? (const char *)item.data : "", .length = item.len};
            result = 1;
            break;
        }
        result = event == WSLINK_OVER ? 0 : !ws->blocking ? KILN_TIMEOUT : wait_for(ws, wslink_wants(&ws->link), until);
        if (event == WSLINK_OVER || result != KILN_OK) {
            break;
        }
    }
    pthread_mutex_unlock(&ws->lock);
    return result;
}

int kiln_ws_recv(kiln_ws *ws, kiln_ws_message *message)
{
    return receive(ws, message, UINT64_MAX);
}

int kiln_ws_recv_timeout(kiln_ws *ws, kiln_ws_message *message, unsigned milliseconds)
{
    return receive(ws, message, in_ms(milliseconds));
}

ssize_t kiln_ws_read(kiln_ws *ws, void *buffer, size_t size)
{
    if (size == 0) {
        return KILN_INVALID;
    }
    while (ws->data_len == 0) { /* empty messages are no end */
        kiln_ws_message message;
        int result = kiln_ws_recv(ws, &message);
        if (result <= 0) {
            return result;
        }
        ws->data = message.data;
        ws->data_len = message.length;
    }
    size_t n = ws->data_len < size ? ws->data_len : size;
    memcpy(buffer, ws->data, n);
    ws->data += n;
    ws->data_len -= n;
    return (ssize_t)n;
}

/* ---- sending -------------------------------------------------------------------------------------------------------- */

_Thread_local bool socket_only_queues;

/* Waits until the kernel has taken all but `most` bytes, if the socket blocks. */
static int make_way(kiln_ws *ws, uint64_t most)
{
    unsigned losses = ws->link.losses;
    int result = KILN_OK;
    while (ws->blocking && result == KILN_OK && ws->link.out.len > most) {
        result = wait_for(ws, KILN_WRITE, UINT64_MAX);
        if (result == KILN_OK && ws->link.losses == losses) {
            wslink_step(&ws->link); /* its times hold for a peer that takes nothing, too */
        }
        if (ws->link.losses != losses) { /* whichever thread has found it broken */
            result = KILN_GONE;
        }
    }
    return result;
}

/* Before something is sent. */
static int way_is_free(kiln_ws *ws)
{
    return make_way(ws, ws->link.limits.send_queue);
}

/* After something was sent: a blocking socket waits for the kernel, a loop's is looked at. */
static int sent(kiln_ws *ws, int result)
{
    if (result == KILN_OK && !socket_only_queues) {
        result = make_way(ws, 0);
    }
    if (ws->in_loop != NULL) {
        loop_touch(ws->in_loop);
    }
    return result;
}

int socket_flush(kiln_ws *ws)
{
    pthread_mutex_lock(&ws->sending);
    pthread_mutex_lock(&ws->lock);
    int result = sent(ws, KILN_OK);
    pthread_mutex_unlock(&ws->lock);
    pthread_mutex_unlock(&ws->sending);
    return result;
}

int kiln_ws_send(kiln_ws *ws, int type, const void *data, size_t length)
{
    int result = be_open(ws);
    if (result != KILN_OK) {
        return result;
    }
    pthread_mutex_lock(&ws->sending);
    pthread_mutex_lock(&ws->lock);
    result = way_is_free(ws);
    if (result == KILN_OK) {
        result = wslink_send(&ws->link, type, data, length);
    }
    result = sent(ws, result);
    pthread_mutex_unlock(&ws->lock);
    pthread_mutex_unlock(&ws->sending);
    return result;
}

int kiln_ws_send_part(kiln_ws *ws, int type, const void *data, size_t length, int final)
{
    int result = be_open(ws);
    if (result != KILN_OK) {
        return result;
    }
    pthread_mutex_lock(&ws->sending);
    pthread_mutex_lock(&ws->lock);
    result = way_is_free(ws);
    if (result == KILN_OK) {
        result = wslink_send_part(&ws->link, type, data, length, final != 0);
    }
    result = sent(ws, result);
    pthread_mutex_unlock(&ws->lock);
    pthread_mutex_unlock(&ws->sending);
    return result;
}

int kiln_ws_send_text(kiln_ws *ws, const char *text)
{
    return kiln_ws_send(ws, KILN_WS_TEXT, text, strlen(text));
}

int kiln_ws_write(kiln_ws *ws, const void *data, size_t length)
{
    return kiln_ws_send(ws, KILN_WS_BINARY, data, length);
}

int kiln_ws_printf(kiln_ws *ws, const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int len = vasprintf(&text, format, args);
    va_end(args);
    if (len < 0) {
        return KILN_NO_MEMORY;
    }
    int result = kiln_ws_send(ws, KILN_WS_TEXT, text, (size_t)len);
    free(text);
    return result;
}

int kiln_ws_ping(kiln_ws *ws, const void *data, size_t length)
{
    int result = be_open(ws);
    if (result != KILN_OK) {
        return result;
    }
    pthread_mutex_lock(&ws->lock);
    result = sent(ws, wslink_ping(&ws->link, data, length));
    pthread_mutex_unlock(&ws->lock);
    return result;
}

size_t kiln_ws_pending(const kiln_ws *ws)
{
    socket_lock(ws);
    size_t pending = wslink_pending(&ws->link);
    socket_unlock(ws);
    return pending;
}

/* ---- closing -------------------------------------------------------------------------------------------------------- */

int kiln_ws_close(kiln_ws *ws, int code, const char *reason)
{
    int result = be_open(ws);
    if (result != KILN_OK) {
        return result;
    }
    pthread_mutex_lock(&ws->sending);
    pthread_mutex_lock(&ws->lock);
    result = sent(ws, wslink_close(&ws->link, code, reason));
    pthread_mutex_unlock(&ws->lock);
    pthread_mutex_unlock(&ws->sending);
    return result;
}

/* Until both sides have closed and the peer has taken all: link.h. */
static void see_it_end(kiln_ws *ws)
{
    if (ws->link.state == WSLINK_GREETING || ws->link.state == WSLINK_ASKED) {
        return;
    }
    wslink_close(&ws->link, WS_CLOSE_NORMAL, NULL);
    struct ws_item item;
    while (ws->link.state == WSLINK_OPEN || ws->link.state == WSLINK_ENDING) {
        wslink_receive(&ws->link, &item, NULL);
        if ((ws->link.state == WSLINK_OPEN || ws->link.state == WSLINK_ENDING) &&
            wait_without_deadline(ws, wslink_wants(&ws->link), UINT64_MAX) != KILN_OK) {
            return;
        }
    }
}

/* The loop frees it. */
static void close_in_loop(kiln_ws *ws)
{
    if (kiln_ws_close(ws, WS_CLOSE_NORMAL, NULL) == KILN_LATE) {
        pthread_mutex_lock(&ws->lock);
        wslink_broken(&ws->link, "freed before its handshake");
        pthread_mutex_unlock(&ws->lock);
        loop_touch(ws->in_loop);
    }
}

void kiln_ws_free(kiln_ws *ws)
{
    if (ws == NULL) {
        return;
    }
    if (ws->in_loop != NULL) {
        close_in_loop(ws);
        return;
    }
    if (ws->blocking) {
        socket_answer(ws);
        pthread_mutex_lock(&ws->lock);
        see_it_end(ws);
        pthread_mutex_unlock(&ws->lock);
    }
    if (!ws->served) {
        socket_destroy(ws);
    }
}

/* ---- the caller's own loop -------------------------------------------------------------------------------------------- */

int kiln_ws_fd(const kiln_ws *ws)
{
    return wslink_fd(&ws->link);
}

int kiln_ws_wanted(const kiln_ws *ws)
{
    return wslink_wants(&ws->link);
}

int kiln_ws_timeout(const kiln_ws *ws)
{
    const struct link *link = &ws->link;
    if (link->state == WSLINK_OPEN && (link->input.len > 0 || link->core.inflate_more || link->transport.more)) {
        return 0; /* somebody receives one message at a time: no descriptor tells of those that are here already */
    }
    if (link->state == WSLINK_CLOSED) {
        return 0; /* receiving may have closed it: the next step is to tell */
    }
    uint64_t until = wslink_until_us(&ws->link);
    return until == UINT64_MAX ? -1 : until_ms(until);
}

int kiln_ws_step(kiln_ws *ws)
{
    pthread_mutex_lock(&ws->lock);
    wslink_step(&ws->link);
    pthread_mutex_unlock(&ws->lock);
    if (ws->link.state == WSLINK_ASKED) {
        socket_answer(ws);
    }
    socket_tell_open(ws);
    return socket_state(ws);
}

int kiln_ws_state(const kiln_ws *ws)
{
    socket_lock(ws);
    int state = socket_state(ws);
    socket_unlock(ws);
    return state;
}
