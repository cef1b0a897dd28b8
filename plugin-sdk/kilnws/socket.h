/* What a kiln_ws of the stand-alone library is: a link, and how the program waits for it. Shared by socket.c,
 * loop.c, server.c and halves.c. `lock` guards the link; it is never held while waiting or while a
 * function of the program runs. `sending` is held by one sender through a whole message. */
#ifndef KILN_KILNWS_SOCKET_H
#define KILN_KILNWS_SOCKET_H

#include "wsio/link.h"

#include <pthread.h>

struct loop_socket;

struct kiln_ws {
    struct link link;
    pthread_mutex_t lock;
    pthread_mutex_t sending;
    bool blocking;
    bool served; /* kiln_ws_listener_serve frees it */
    bool opened; /* since `connected` was called last */
    bool asked; /* `handshake` was called */
    bool opening; /* the thread `opener` sees to the handshake; others wait for `settled` */
    pthread_t opener;
    pthread_cond_t settled;
    _Atomic uint64_t deadline_us; /* UINT64_MAX: none */
    const char *data; /* of the message that is read as a stream */
    size_t data_len;
    void *user;
    void (*connected)(kiln_ws *ws, void *user);
    void *connected_user;
    void (*handshake)(kiln_ws *ws, void *user);
    const char *const *protocols; /* a server's */
    size_t protocol_count;
    kiln_ws_listener *listener; /* whose options it uses; NULL: a client */
    struct loop_socket *in_loop; /* NULL: none */
    char text[256]; /* what kiln_ws_tls returns */
    char *header; /* what kiln_ws_header returned last */
    char *target;
    atomic_int halves;
};

/* Without a link that does anything yet. NULL: no memory. */
kiln_ws *socket_create(const kiln_ws_options *options, struct ws_pool *pool);
/* Without any ceremony. */
void socket_destroy(kiln_ws *ws);
/* Accepts or refuses for whoever asks and was not answered. The lock is not held. */
void socket_answer(kiln_ws *ws);
/* Calls `connected` if it is due. The lock is not held. */
void socket_tell_open(kiln_ws *ws);
/* loop.c: something may wait to be sent, or has to be looked at. */
void loop_touch(struct loop_socket *in_loop);
/* While it is true, this thread's sends do not wait: what the kernel does not take at once goes out while somebody
 * receives, or by the next send that waits. More than send_queue bytes are waited for all the same. */
extern _Thread_local bool socket_only_queues;
/* Waits until the kernel has taken all. */
int socket_flush(kiln_ws *ws);
/* The lock is held, or there is one thread. */
int socket_state(const kiln_ws *ws);
/* For functions that only look. */
static inline void socket_lock(const kiln_ws *ws)
{
    pthread_mutex_lock((pthread_mutex_t *)(uintptr_t)&ws->lock);
}
static inline void socket_unlock(const kiln_ws *ws)
{
    pthread_mutex_unlock((pthread_mutex_t *)(uintptr_t)&ws->lock);
}
/* Where an error belongs that has no object. */
void error_to_options(const kiln_ws_options *options, const char *text);

extern const kiln_ws_options socket_usual_options;

#endif
