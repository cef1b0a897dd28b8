/* kiln_ws.h: what can be asked of a socket, and the answer of a server's side to its handshake. What another thread
 * may be changing is read with the lock held; texts are written once, before the code that says so. */
#include "kilnws/socket.h"

#include <stdlib.h>
#include <string.h>

int kiln_ws_offers(kiln_ws *ws, const char *protocol)
{
    struct ws_head head;
    return ws->link.head_is_request && protocol != NULL &&
           ws_protocol_is_offered(wslink_headers(&ws->link, &head), ws_text(protocol));
}

int kiln_ws_accept(kiln_ws *ws, const char *protocol)
{
    int result = kiln_ws_handshake(ws);
    if (result != KILN_OK) {
        return result;
    }
    pthread_mutex_lock(&ws->lock);
    result = wslink_accept(&ws->link, protocol);
    pthread_mutex_unlock(&ws->lock);
    return result;
}

int kiln_ws_refuse(kiln_ws *ws, int status, const char *detail)
{
    int result = kiln_ws_handshake(ws);
    if (result != KILN_OK) {
        return result;
    }
    pthread_mutex_lock(&ws->lock);
    result = wslink_refuse(&ws->link, status, detail);
    pthread_mutex_unlock(&ws->lock);
    return result;
}

int kiln_ws_close_code(const kiln_ws *ws)
{
    socket_lock(ws);
    int code = ws->link.close_code;
    socket_unlock(ws);
    return code;
}

const char *kiln_ws_close_reason(const kiln_ws *ws)
{
    return ws->link.close_reason;
}

const char *kiln_ws_error(const kiln_ws *ws)
{
    return ws->link.error;
}

const char *kiln_ws_protocol(const kiln_ws *ws)
{
    return ws->link.protocol;
}

int kiln_ws_is_compressed(const kiln_ws *ws)
{
    socket_lock(ws);
    int compressed = ws->link.core.pool != NULL;
    socket_unlock(ws);
    return compressed;
}

const char *kiln_ws_header(const kiln_ws *ws, const char *name)
{
    struct ws_head head;
    kiln_ws *changes = (kiln_ws *)(uintptr_t)ws; /* keeps the copy */
    struct ws_text value = ws_header_find(wslink_headers(&ws->link, &head), ws_text(name), NULL);
    free(changes->header);
    changes->header = value.ptr != NULL ? strndup(value.ptr, value.len) : NULL;
    return changes->header;
}

int kiln_ws_status(const kiln_ws *ws)
{
    socket_lock(ws);
    int status = ws->link.status;
    socket_unlock(ws);
    return status;
}

const char *kiln_ws_target(const kiln_ws *ws)
{
    struct ws_head head;
    kiln_ws *changes = (kiln_ws *)(uintptr_t)ws;
    if (ws->link.plan != NULL) {
        return ws->link.plan->url.target;
    }
    wslink_headers(&ws->link, &head);
    if (ws->target == NULL && head.target.ptr != NULL) {
        changes->target = strndup(head.target.ptr, head.target.len);
    }
    return ws->target != NULL ? ws->target : "";
}

const char *kiln_ws_peer(const kiln_ws *ws)
{
    return ws->link.peer;
}

const char *kiln_ws_tls(const kiln_ws *ws)
{
    kiln_ws *changes = (kiln_ws *)(uintptr_t)ws;
    return carrier_describe(&ws->link.transport, changes->text, sizeof changes->text) ? ws->text : NULL;
}

uint64_t kiln_ws_pongs(const kiln_ws *ws, int64_t *microseconds)
{
    socket_lock(ws);
    uint64_t pongs = ws->link.pongs;
    int64_t took_us = ws->link.ping_took_us;
    socket_unlock(ws);
    if (microseconds != NULL) {
        *microseconds = took_us;
    }
    return pongs;
}

unsigned kiln_ws_connections(const kiln_ws *ws)
{
    socket_lock(ws);
    unsigned connections = ws->link.connections;
    socket_unlock(ws);
    return connections;
}

void kiln_ws_timing(const kiln_ws *ws, kiln_ws_times *times)
{
    *times = ws->link.times;
}

void kiln_ws_set_user(kiln_ws *ws, void *user)
{
    ws->user = user;
}

void *kiln_ws_user(const kiln_ws *ws)
{
    return ws->user;
}
