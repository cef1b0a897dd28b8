/* DESIGN: what costs the client little and the server something has a budget a connection: resets
 * (RST_STREAM, and streams that nghttp2 resets for an error of the client: both start work and
 * throw it away), and frames that carry no request and no data (PING, SETTINGS, PRIORITY, empty
 * DATA, WINDOW_UPDATE, unknown ones). A budget refills with time; that of frames also with each
 * request and each DATA frame sent, so that one who downloads may send as many WINDOW_UPDATEs as the
 * download asks for. Past it the connection ends with GOAWAY, ENHANCE_YOUR_CALM. */
#include "config/config.h"
#include "loop/config_hold.h"
#include "protocol/http2_private.h"

static bool spend(struct http2_budget *budget, uint64_t now, int64_t most, int64_t each_second)
{
    if (budget->left > 0) {
        budget->left--;
        return true;
    }
    uint64_t earned = (now - budget->filled_ms) * (uint64_t)each_second / 1000;
    if (earned == 0) {
        return false;
    }
    budget->filled_ms = now;
    budget->left = (uint32_t)(earned < (uint64_t)most ? earned : (uint64_t)most) - 1;
    return true;
}

void http2_limits_start(struct http2 *h)
{
    const struct config *config = config_hold_current(h->conn->loop);
    uint64_t now = loop_now_ms(h->conn->loop);
    h->resets = (struct http2_budget){(uint32_t)config->http2_reset_burst, now};
    h->frames = (struct http2_budget){(uint32_t)config->http2_frame_burst, now};
}

bool http2_count_reset(struct http2 *h)
{
    const struct config *config = config_hold_current(h->conn->loop);
    return spend(&h->resets, loop_now_ms(h->conn->loop), config->http2_reset_burst, config->http2_resets_per_second);
}

bool http2_count_frame(struct http2 *h)
{
    const struct config *config = config_hold_current(h->conn->loop);
    return spend(&h->frames, loop_now_ms(h->conn->loop), config->http2_frame_burst, config->http2_frames_per_second);
}

void http2_earn_frames(struct http2 *h, unsigned frames)
{
    uint32_t most = (uint32_t)config_hold_current(h->conn->loop)->http2_frame_burst;
    h->frames.left = h->frames.left + frames < most ? h->frames.left + frames : most;
}
