/* DESIGN: edge-triggered epoll for connections: the kernel need not ask every socket once more, with
 * each wait, whether it is still ready. A connection reads until a short read, so one recv per
 * request is enough: what arrives after it is an edge of its own. The one thing that a short read
 * does not tell is an end that came with the data, so that is reported (LOOP_HANGUP). Listeners
 * and what endpoints wait for are level-triggered: several loops or strangers share them.
 * Ready events are gathered first and delivered by the loop, so that removing a watch in mid-batch
 * can blank its entry. */
#include "loop/backend.h"
#include "loop/loop_private.h"
#include "observe/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint32_t to_epoll(uint32_t wanted)
{
    uint32_t events = 0;
    if ((wanted & LOOP_READ) != 0) {
        events |= EPOLLIN;
    }
    if ((wanted & LOOP_WRITE) != 0) {
        events |= EPOLLOUT;
    }
    if ((wanted & LOOP_EXCLUSIVE) != 0) {
        events |= EPOLLEXCLUSIVE;
    }
    if ((wanted & LOOP_EDGE) != 0) {
        events |= EPOLLET | EPOLLRDHUP;
    }
    return events;
}

bool backend_open(struct loop *loop)
{
    loop->poll_fd = epoll_create1(EPOLL_CLOEXEC);
    return loop->poll_fd >= 0;
}

void backend_close(struct loop *loop)
{
    close(loop->poll_fd);
}

bool loop_watch_add(struct loop *loop, struct watch *watch)
{
    struct epoll_event event = {.events = to_epoll(watch->wanted), .data.ptr = watch};
    return epoll_ctl(loop->poll_fd, EPOLL_CTL_ADD, watch->fd, &event) == 0;
}

bool loop_watch_change(struct loop *loop, struct watch *watch, uint32_t wanted)
{
    if (watch->wanted == wanted) {
        return true;
    }
    watch->wanted = wanted;
    return loop_watch_again(loop, watch);
}

bool loop_watch_again(struct loop *loop, struct watch *watch)
{
    struct epoll_event event = {.events = to_epoll(watch->wanted), .data.ptr = watch};
    return epoll_ctl(loop->poll_fd, EPOLL_CTL_MOD, watch->fd, &event) == 0;
}

void loop_watch_remove(struct loop *loop, struct watch *watch)
{
    epoll_ctl(loop->poll_fd, EPOLL_CTL_DEL, watch->fd, NULL);
    for (int i = loop->ready_next; i < loop->ready_count; i++) {
        if (loop->ready[i] == watch) {
            loop->ready[i] = NULL;
        }
    }
}

void backend_wait(struct loop *loop, int timeout_ms)
{
    struct epoll_event events[LOOP_EVENTS];
    /* Not epoll_wait(): a cancellation point, see plain.c. */
    int n = (int)syscall(SYS_epoll_pwait, loop->poll_fd, events, LOOP_EVENTS, timeout_ms, NULL, 8);
    if (n < 0 && errno != EINTR) {
        /* A worker that is deaf must not look as if it served. */
        log_error("loop %u cannot wait any more: %s; an endpoint has closed descriptors that are not its own",
                  loop_index(loop) + 1, strerror(errno));
        log_stop(); /* it writes behind */
        abort();
    }
    loop->ready_next = 0;
    loop->ready_count = n > 0 ? n : 0;
    for (int i = 0; i < n; i++) {
        uint32_t bits = events[i].events;
        uint32_t ready = 0;
        if ((bits & EPOLLIN) != 0) {
            ready |= LOOP_READ;
        }
        if ((bits & EPOLLOUT) != 0) {
            ready |= LOOP_WRITE;
        }
        if ((bits & (EPOLLERR | EPOLLHUP)) != 0) {
            ready |= LOOP_ERROR;
        }
        if ((bits & EPOLLRDHUP) != 0) {
            ready |= LOOP_HANGUP;
        }
        loop->ready[i] = events[i].data.ptr;
        loop->ready_events[i] = ready;
    }
}
