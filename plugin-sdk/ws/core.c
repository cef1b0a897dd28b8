/* Life of a connection's state, and what receiving and sending share. */
#include "ws/ws.h"

#include <stdlib.h>
#include <string.h>

void ws_init(struct ws *ws, enum ws_role role, const struct ws_settings *settings)
{
    *ws = (struct ws){.settings = settings, .client = role == WS_CLIENT};
}

void ws_use_deflate(struct ws *ws, struct ws_pool *pool, const struct ws_deflate *agreed)
{
    if (!agreed->on) {
        return;
    }
    ws->pool = pool;
    ws->bits_in = ws->client ? agreed->server_bits : agreed->client_bits;
    ws->bits_out = ws->client ? agreed->client_bits : agreed->server_bits;
    ws->keep_in = ws->client ? !agreed->server_no_takeover : !agreed->client_no_takeover;
    ws->keep_out = ws->client ? !agreed->client_no_takeover : !agreed->server_no_takeover;
    if (ws->keep_in) {
        ws_pool_promise(pool, ws->bits_in, true);
    }
}

static void drop_message(struct ws *ws)
{
    if (ws->message != NULL) {
        free(ws->message);
        ws->message = NULL;
    }
    ws->message_cap = 0;
    ws->message_len = 0;
}

void ws_free(struct ws *ws)
{
    drop_message(ws);
    free(ws->control);
    ws->control = NULL;
    if (ws->inflater != NULL) {
        ws_context_give(ws->inflater);
        ws->inflater = NULL;
    }
    if (ws->deflater != NULL) {
        ws_context_give(ws->deflater);
        ws->deflater = NULL;
    }
    if (ws->pool != NULL && ws->keep_in) {
        ws_pool_promise(ws->pool, ws->bits_in, false);
    }
    ws->pool = NULL;
    ws->ended = true;
    ws->closing = true;
}

void ws_trim(struct ws *ws)
{
    if (ws->message_opcode == 0 || ws->delivered) {
        drop_message(ws);
        ws->delivered = false;
    }
    if (ws->control != NULL && (!ws->in_frame || ws->opcode < WS_CLOSE)) {
        free(ws->control);
        ws->control = NULL;
        ws->control_len = 0;
    }
}

bool ws_in_message(const struct ws *ws)
{
    return ws->in_frame || ws->head_len > 0 || ws->message_opcode != 0;
}

bool ws_close_code_is_valid(unsigned code)
{
    return (code >= 1000 && code <= 1003) || (code >= 1007 && code <= 1014) || (code >= 3000 && code <= 4999);
}
