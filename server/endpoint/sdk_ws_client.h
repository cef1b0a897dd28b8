/* A kiln_ws that kiln_ws_connect made, seen from sdk_ws.c, whose functions ask for it first. */
#ifndef KILN_ENDPOINT_SDK_WS_CLIENT_H
#define KILN_ENDPOINT_SDK_WS_CLIENT_H

#include "endpoint/sdk.h"

enum { WS_CLIENT_MAGIC = 0x4b575343 };

struct ws_client;

/* NULL: it is a socket of the server. */
static inline struct ws_client *ws_client_of(const kiln_ws *ws)
{
    return *(const uint32_t *)ws == WS_CLIENT_MAGIC ? (struct ws_client *)(uintptr_t)ws : NULL;
}

kiln_context *ws_client_context(struct ws_client *client);
int ws_client_receive(struct ws_client *client, kiln_ws_message *message, int64_t timeout_ms);
ssize_t ws_client_read(struct ws_client *client, void *buffer, size_t size);
int ws_client_deadline(struct ws_client *client, int64_t milliseconds);
int ws_client_send(struct ws_client *client, int type, const void *data, size_t len);
int ws_client_send_part(struct ws_client *client, int type, const void *data, size_t len, bool final);
int ws_client_ping(struct ws_client *client, const void *data, size_t len);
size_t ws_client_pending(const struct ws_client *client);
int ws_client_close(struct ws_client *client, int code, const char *reason);
int ws_client_close_code(const struct ws_client *client);
const char *ws_client_close_reason(const struct ws_client *client);

#endif
