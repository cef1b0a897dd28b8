/* A listener of the stand-alone library; shared by server.c and loop.c. */
#ifndef KILN_KILNWS_SERVER_H
#define KILN_KILNWS_SERVER_H

#include "kilnws/socket.h"

enum { LISTENER_LIST_MAX = 64 }; /* subprotocols, and origins */

struct kiln_ws_listener {
    int fd;
    int stop_fd;
    atomic_bool closed;
    atomic_int users;
    kiln_ws_options options;
    struct wslink_manners manners;
    const char *protocols[LISTENER_LIST_MAX];
    size_t protocol_count;
    const char *origins[LISTENER_LIST_MAX];
    void (*handshake)(kiln_ws *ws, void *user);
    int connections;
    pthread_mutex_t lock; /* of visits */
    pthread_cond_t changed;
    int visits; /* threads that serve */
};

/* The next connection, not waiting; NULL: none, with errno. */
kiln_ws *listener_take(kiln_ws_listener *listener, struct ws_pool *pool);
/* What listener_take() left in errno: nobody waits, or whoever did has gone; no want of descriptors or memory. */
bool listener_is_empty(int error);
void listener_release(kiln_ws_listener *listener);

#endif
