/* DESIGN: kiln_ws.h: the ready loop. One thread, one epoll descriptor; what is watched begins with a struct watch,
 * whose function is called when it is ready. Output of a round is gathered (link->corked) and sent once at its
 * end, together with every change of what epoll is to tell: sockets that something was done with stand in the list
 * `touched`. Input goes through one buffer of the loop, so an idle connection holds none, and all
 * connections share one pool of compression contexts.
 *
 * Time: sockets that connect, close or have more to read are few; they stand in the list `busy` and are asked for
 * their time in every round. Of open ones only the pings need time; all are looked at once a second.
 *
 * A listener that cannot accept (closed, as many connections as it may have, no descriptor free) is not watched
 * meanwhile, since it would be ready all the time.
 *
 * A socket that has always more to read has TURN reads in a round, and its turn again in the next.
 *
 * What ends within a round is freed at its end, since events of the round may still name it. */
#include "kilnws/server.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { EVENTS = 256, TURN = 16, SWEEP_US = 1000000, STARVED_US = 100000 };

struct watch {
    void (*ready)(struct watch *watch);
};

struct ring {
    struct ring *next;
    struct ring *prev;
};

struct loop_socket {
    struct watch watch;
    kiln_ws_loop *loop;
    kiln_ws *ws;
    const kiln_ws_handler *handler;
    struct ring all;
    struct ring busy;
    struct loop_socket *next_touched;
    struct loop_socket *next_dead;
    int events; /* that epoll was told */
    bool touched;
    bool dead;
    bool wants_drain;
    bool untold; /* it was open when it came: handler->open is to be called */
    struct loop_listener *from;
};

struct loop_listener {
    struct watch watch;
    kiln_ws_loop *loop;
    kiln_ws_listener *listener;
    const kiln_ws_handler *handler;
    void *user;
    int count;
    bool paused;
    uint64_t starved_until_us; /* no descriptor or memory was free; 0: there was */
    struct loop_listener *next;
};

struct post {
    struct post *next;
    void (*fn)(void *arg);
    void *arg;
};

struct kiln_ws_loop {
    struct watch wake;
    int epoll;
    int wake_fd;
    atomic_bool stopped;
    struct ws_pool *pool;
    struct ring all;
    struct ring busy;
    struct loop_socket *touched;
    struct loop_socket *dead;
    struct loop_listener *listeners;
    size_t count;
    bool ending;
    bool worked; /* something was done since the round began */
    uint64_t sweep_at_us;
    uint64_t next_us; /* when a socket of `busy` has something to do */
    pthread_mutex_t lock; /* of posts */
    struct post *posts;
    struct post **last_post;
    uint8_t *space;
};

static void ring_init(struct ring *ring)
{
    ring->next = ring;
    ring->prev = ring;
}

static void ring_add(struct ring *to, struct ring *ring)
{
    ring->next = to;
    ring->prev = to->prev;
    to->prev->next = ring;
    to->prev = ring;
}

static void ring_remove(struct ring *ring)
{
    ring->next->prev = ring->prev;
    ring->prev->next = ring->next;
    ring_init(ring);
}

#define SOCKET_OF(ring, member) ((struct loop_socket *)((char *)(ring)-offsetof(struct loop_socket, member)))

/* ---- what epoll is to tell ------------------------------------------------------------------------------- */

static uint32_t epoll_events(int events)
{
    return (events & KILN_READ ? EPOLLIN : 0U) | (events & KILN_WRITE ? EPOLLOUT : 0U);
}

/* While it connects, descriptors change, and a new one may have the number of the last: so whether it is known is
 * kept where the descriptor is. */
static bool watch_descriptor(struct loop_socket *s)
{
    int *watcher = wslink_watcher(&s->ws->link);
    int fd = wslink_fd(&s->ws->link);
    int events = wslink_wants(&s->ws->link);
    if (fd < 0 || (*watcher != 0 && events == s->events)) {
        return true;
    }
    struct epoll_event event = {.events = epoll_events(events), .data.ptr = &s->watch};
    if (epoll_ctl(s->loop->epoll, *watcher != 0 ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) != 0) {
        return false;
    }
    *watcher = s->loop->epoll + 1;
    s->events = events;
    return true;
}

static void ended(struct loop_socket *s)
{
    kiln_ws_loop *loop = s->loop;
    s->dead = true;
    loop->worked = true;
    ring_remove(&s->all);
    ring_remove(&s->busy);
    loop->count--;
    if (s->from != NULL) {
        s->from->count--;
    }
    s->next_dead = loop->dead;
    loop->dead = s;
    if (s->handler->close != NULL && (s->from == NULL || s->ws->link.connections > 0)) {
        s->handler->close(s->ws, s->ws->link.close_code, s->ws->link.close_reason, s->ws->user);
    }
}

static void set_busy(struct loop_socket *s, bool busy)
{
    if (!busy) {
        ring_remove(&s->busy);
        return;
    }
    if (s->busy.next == &s->busy) {
        ring_add(&s->loop->busy, &s->busy);
    }
    uint64_t until = wslink_until_us(&s->ws->link);
    s->loop->next_us = until < s->loop->next_us ? until : s->loop->next_us;
}

/* After everything that was done with it in this round. */
static void settle(struct loop_socket *s)
{
    struct link *link = &s->ws->link;
    s->touched = false;
    if (s->dead) {
        return;
    }
    if (link->out.len > 0 && (link->state == WSLINK_OPEN || link->state == WSLINK_ENDING)) {
        wslink_flush(link);
    }
    if (s->wants_drain && link->out.len == 0 && link->state == WSLINK_OPEN) {
        s->wants_drain = false;
        if (s->handler->drain != NULL) {
            s->handler->drain(s->ws, s->ws->user);
        }
        if (link->out.len > 0) {
            wslink_flush(link);
        }
    }
    if (link->state == WSLINK_ENDING) {
        wslink_step(link);
    }
    if (link->state != WSLINK_CLOSED && !watch_descriptor(s)) {
        wslink_broken(link, "epoll does not take its descriptor");
    }
    if (link->state == WSLINK_CLOSED) {
        ended(s);
        return;
    }
    set_busy(s, link->state != WSLINK_OPEN || link->core.closing || link->more);
}

void loop_touch(struct loop_socket *s)
{
    if (s->ws->link.out.len > s->ws->link.limits.send_queue) {
        s->wants_drain = true;
    }
    if (!s->touched && !s->dead) {
        s->touched = true;
        s->next_touched = s->loop->touched;
        s->loop->touched = s;
    }
}

/* ---- events ------------------------------------------------------------------------------------------------ */

static void tell_open(struct loop_socket *s)
{
    if (!s->ws->opened && !s->untold) {
        return;
    }
    s->untold = false;
    socket_tell_open(s->ws);
    if (s->handler->open != NULL) {
        s->handler->open(s->ws, s->ws->user);
    }
}

static void work(struct loop_socket *s)
{
    struct link *link = &s->ws->link;
    struct ws_item item;
    s->loop->worked = true;
    link->reads = TURN;
    loop_touch(s);
    wslink_step(link);
    if (link->state == WSLINK_ASKED) {
        socket_answer(s->ws);
    }
    tell_open(s);
    for (;;) {
        enum wslink_event event = wslink_receive(link, &item, s->loop->space);
        tell_open(s); /* frames may have come with the handshake's answer */
        if (event != WSLINK_MESSAGE) {
            return;
        }
        const kiln_ws_message message = {
            .type = item.opcode, .data = item.len > 0 ? (const char *)item.data : "", .length = item.len};
        if (s->handler->message != NULL) {
            s->handler->message(s->ws, &message, s->ws->user);
        }
    }
}

static void socket_ready(struct watch *watch)
{
    struct loop_socket *s = (struct loop_socket *)watch;
    if (!s->dead) {
        work(s);
    }
}

/* ---- sockets -------------------------------------------------------------------------------------------------- */

static struct loop_socket *add(kiln_ws_loop *loop, kiln_ws *ws, const kiln_ws_handler *handler, void *user)
{
    struct loop_socket *s = loop->ending ? NULL : calloc(1, sizeof *s);
    if (s == NULL) {
        return NULL;
    }
    s->watch.ready = socket_ready;
    s->loop = loop;
    s->ws = ws;
    s->handler = handler;
    ring_init(&s->busy);
    ring_add(&loop->all, &s->all);
    loop->count++;
    ws->in_loop = s;
    ws->user = user;
    ws->blocking = false;
    ws->link.corked = true;
    loop_touch(s);
    return s;
}

int kiln_ws_loop_add(kiln_ws_loop *loop, kiln_ws *ws, const kiln_ws_handler *handler, void *user)
{
    if (ws->in_loop != NULL) {
        return KILN_INVALID;
    }
    struct loop_socket *s = add(loop, ws, handler, user);
    if (s == NULL) {
        return loop->ending ? KILN_LATE : KILN_NO_MEMORY;
    }
    s->untold = ws->link.state == WSLINK_OPEN;
    ws->link.more = true; /* what has come already is looked at */
    return KILN_OK;
}

kiln_ws *kiln_ws_loop_connect(kiln_ws_loop *loop, const char *url, const kiln_ws_options *options,
                              const kiln_ws_handler *handler, void *user)
{
    kiln_ws *ws = kiln_ws_open(url, options);
    if (ws != NULL && ws->link.pool == NULL) {
        ws->link.pool = loop->pool;
    }
    if (ws != NULL && add(loop, ws, handler, user) == NULL) {
        error_to_options(options != NULL ? options : &socket_usual_options,
                         loop->ending ? "the loop is being freed" : "no memory");
        socket_destroy(ws);
        return NULL;
    }
    return ws;
}

/* ---- listeners --------------------------------------------------------------------------------------------------- */

static void pause_listener(struct loop_listener *l, bool paused)
{
    if (l->paused == paused) {
        return;
    }
    struct epoll_event event = {.events = paused ? 0 : EPOLLIN, .data.ptr = &l->watch};
    epoll_ctl(l->loop->epoll, EPOLL_CTL_MOD, l->listener->fd, &event);
    l->paused = paused;
}

/* Closed, full or starved: it would be readable all the time, and nobody would accept. */
static bool must_pause(struct loop_listener *l)
{
    if (l->starved_until_us != 0 && clock_us() >= l->starved_until_us) {
        l->starved_until_us = 0;
    }
    return l->starved_until_us != 0 || l->count >= l->listener->connections || atomic_load(&l->listener->closed);
}

static void listener_ready(struct watch *watch)
{
    struct loop_listener *l = (struct loop_listener *)watch;
    while (!must_pause(l)) {
        kiln_ws *ws = listener_take(l->listener, l->loop->pool);
        if (ws == NULL && listener_is_empty(errno)) {
            return;
        }
        struct loop_socket *s = ws != NULL ? add(l->loop, ws, l->handler, l->user) : NULL;
        if (s == NULL) {
            if (ws != NULL) {
                socket_destroy(ws);
            }
            l->starved_until_us = clock_us() + STARVED_US; /* out of descriptors or memory: some may be free then */
            break;
        }
        s->from = l;
        l->count++;
        work(s);
    }
    pause_listener(l, true);
}

int kiln_ws_loop_listen(kiln_ws_loop *loop, kiln_ws_listener *listener, const kiln_ws_handler *handler, void *user)
{
    struct loop_listener *l = calloc(1, sizeof *l);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = l};
    if (l == NULL) {
        return KILN_NO_MEMORY;
    }
    *l = (struct loop_listener){.watch.ready = listener_ready,
                                .loop = loop,
                                .listener = listener,
                                .handler = handler,
                                .user = user,
                                .next = loop->listeners};
    if (epoll_ctl(loop->epoll, EPOLL_CTL_ADD, listener->fd, &event) != 0) {
        free(l);
        return KILN_NO_MEMORY;
    }
    loop->listeners = l;
    return KILN_OK;
}

/* ---- other threads ------------------------------------------------------------------------------------------------- */

static void woken(struct watch *watch)
{
    kiln_ws_loop *loop = (kiln_ws_loop *)watch; /* its first member */
    eventfd_t value;
    eventfd_read(loop->wake_fd, &value);
    pthread_mutex_lock(&loop->lock);
    struct post *post = loop->posts;
    loop->posts = NULL;
    loop->last_post = &loop->posts;
    pthread_mutex_unlock(&loop->lock);
    while (post != NULL) {
        struct post *next = post->next;
        post->fn(post->arg);
        free(post);
        post = next;
    }
}

int kiln_ws_loop_post(kiln_ws_loop *loop, void (*fn)(void *arg), void *arg)
{
    struct post *post = malloc(sizeof *post);
    if (post == NULL) {
        return KILN_NO_MEMORY;
    }
    *post = (struct post){NULL, fn, arg};
    pthread_mutex_lock(&loop->lock);
    *loop->last_post = post;
    loop->last_post = &post->next;
    pthread_mutex_unlock(&loop->lock);
    eventfd_write(loop->wake_fd, 1);
    return KILN_OK;
}

void kiln_ws_loop_stop(kiln_ws_loop *loop)
{
    int before = errno; /* it may be called by a signal handler */
    atomic_store(&loop->stopped, true);
    eventfd_write(loop->wake_fd, 1);
    errno = before;
}

/* ---- rounds --------------------------------------------------------------------------------------------------------- */

/* Does what is due. Afterwards next_us is right but for what was touched: settle() sees to that. */
static void keep_time(kiln_ws_loop *loop)
{
    uint64_t now = clock_us();
    loop->next_us = UINT64_MAX;
    for (struct ring *r = loop->busy.next, *after; r != &loop->busy; r = after) {
        struct loop_socket *s = SOCKET_OF(r, busy);
        after = r->next;
        uint64_t until = wslink_until_us(&s->ws->link);
        if (until <= now) {
            work(s);
        } else if (until < loop->next_us) {
            loop->next_us = until;
        }
    }
    if (now >= loop->sweep_at_us) {
        for (struct ring *r = loop->all.next, *after; r != &loop->all; r = after) {
            struct loop_socket *s = SOCKET_OF(r, all);
            after = r->next;
            if (wslink_until_us(&s->ws->link) <= now) {
                work(s);
            }
        }
        loop->sweep_at_us = now + SWEEP_US;
    }
}

/* Until there is something to do without an event, and `most` at most; -1: for ever. */
static int time_to_wait(const kiln_ws_loop *loop, int most)
{
    uint64_t next = loop->next_us;
    if (loop->count > 0 && loop->sweep_at_us < next) {
        next = loop->sweep_at_us;
    }
    for (const struct loop_listener *l = loop->listeners; l != NULL; l = l->next) {
        if (l->starved_until_us != 0 && l->starved_until_us < next) {
            next = l->starved_until_us;
        }
    }
    if (next == UINT64_MAX) {
        return most < 0 ? -1 : most;
    }
    uint64_t now = clock_us();
    uint64_t ms = next <= now ? 0 : (next - now) / 1000 + 1;
    return most >= 0 && (uint64_t)most < ms ? most : ms > INT_MAX ? INT_MAX : (int)ms;
}

static void settle_all(kiln_ws_loop *loop)
{
    while (loop->touched != NULL) {
        struct loop_socket *s = loop->touched;
        loop->touched = s->next_touched;
        settle(s);
    }
    while (loop->dead != NULL) {
        struct loop_socket *s = loop->dead;
        loop->dead = s->next_dead;
        socket_destroy(s->ws);
        free(s);
    }
    for (struct loop_listener *l = loop->listeners; l != NULL; l = l->next) {
        if (l->paused && !must_pause(l)) {
            pause_listener(l, false);
        }
    }
}

int kiln_ws_loop_run_once(kiln_ws_loop *loop, int milliseconds)
{
    struct epoll_event events[EVENTS];
    loop->worked = false;
    settle_all(loop);
    keep_time(loop);
    settle_all(loop);
    /* Who waits for what was just done is not to wait for more. */
    int n = epoll_wait(loop->epoll, events, EVENTS, loop->worked ? 0 : time_to_wait(loop, milliseconds));
    if (n < 0) {
        return errno == EINTR ? 0 : KILN_FAILED;
    }
    for (int i = 0; i < n; i++) {
        struct watch *watch = events[i].data.ptr;
        watch->ready(watch);
    }
    settle_all(loop);
    return n;
}

int kiln_ws_loop_run(kiln_ws_loop *loop)
{
    while (!atomic_exchange(&loop->stopped, false)) {
        int n = kiln_ws_loop_run_once(loop, -1);
        if (n < 0) {
            return n;
        }
    }
    return KILN_OK;
}

size_t kiln_ws_loop_count(const kiln_ws_loop *loop)
{
    return loop->count;
}

/* ---- life -------------------------------------------------------------------------------------------------------------- */

kiln_ws_loop *kiln_ws_loop_create(void)
{
    kiln_ws_loop *loop = calloc(1, sizeof *loop);
    if (loop == NULL) {
        return NULL;
    }
    loop->wake.ready = woken;
    loop->last_post = &loop->posts;
    ring_init(&loop->all);
    ring_init(&loop->busy);
    pthread_mutex_init(&loop->lock, NULL);
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    loop->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    loop->pool = ws_pool_create(&(struct ws_pool_options){.budget = 64 << 20});
    loop->space = malloc(LINK_INPUT + 1);
    loop->sweep_at_us = clock_us() + SWEEP_US;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &loop->wake};
    if (loop->epoll < 0 || loop->wake_fd < 0 || loop->pool == NULL || loop->space == NULL ||
        epoll_ctl(loop->epoll, EPOLL_CTL_ADD, loop->wake_fd, &event) != 0) {
        kiln_ws_loop_free(loop);
        return NULL;
    }
    return loop;
}

static void cut(struct loop_socket *s)
{
    struct link *link = &s->ws->link;
    link->user_closed = true;
    if (link->state != WSLINK_CLOSED) {
        wslink_broken(link, "the loop has ended");
    }
    loop_touch(s);
}

void kiln_ws_loop_free(kiln_ws_loop *loop)
{
    if (loop == NULL) {
        return;
    }
    loop->ending = true; /* handler->close may not add others */
    for (struct ring *r = loop->all.next; r != &loop->all; r = r->next) {
        cut(SOCKET_OF(r, all));
    }
    settle_all(loop);
    while (loop->listeners != NULL) {
        struct loop_listener *l = loop->listeners;
        loop->listeners = l->next;
        free(l);
    }
    while (loop->posts != NULL) {
        struct post *post = loop->posts;
        loop->posts = post->next;
        free(post);
    }
    ws_pool_free(loop->pool);
    free(loop->space);
    if (loop->epoll >= 0) {
        close(loop->epoll);
    }
    if (loop->wake_fd >= 0) {
        close(loop->wake_fd);
    }
    pthread_mutex_destroy(&loop->lock);
    free(loop);
}
