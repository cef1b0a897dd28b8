/* Shared by websocket.c (one socket) and websocket_loop.c (all of a loop). */
#ifndef KILN_PROTOCOL_WEBSOCKET_PRIVATE_H
#define KILN_PROTOCOL_WEBSOCKET_PRIVATE_H

#include "protocol/websocket.h"

static inline uint32_t websocket_now_s(const struct kiln_ws *ws)
{
    return (uint32_t)(loop_now_ms(ws->loop) / 1000);
}

/* websocket.c: into the output. */
void websocket_put(struct kiln_ws *ws, const struct ws_frame *frame);

/* websocket_loop.c */
/* At the end of the loop's list: a byte came just now. */
void websocket_watch(struct kiln_ws *ws);
/* The limits that hold now. */
const struct ws_settings *websocket_settings(struct loop *loop, bool own_messages);
/* WebSocketTimeout: it lives, but no message has passed for that long. */
void websocket_end_if_idle(struct kiln_ws *ws);
/* The server stops, and there is no time to wait for the socket. */
void websocket_drain_if_due(struct kiln_ws *ws);

#endif
