/* DESIGN: the handshake of both sides as functions over texts. The server inside Kiln has parsed its
 * request already and hands over a view of its headers; the stand-alone library parses heads with
 * ws_head_parse. Everything that a client may ask for is answered by one of three: a status (it is
 * no handshake), a decision of the application (origin, subprotocol, refusal), or the extensions.
 *
 * Texts point into the head that they were read from, and live as long as it. */
#ifndef KILN_WS_HANDSHAKE_H
#define KILN_WS_HANDSHAKE_H

#include "ws/deflate.h"
#include "ws/text.h"

enum {
    WS_KEY_LENGTH = 24, /* of Sec-WebSocket-Key */
    WS_ACCEPT_LENGTH = 28, /* of Sec-WebSocket-Accept */
    WS_EXTENSION_MAX = 160, /* of an extension's answer or offer of ours, with its NUL */
    WS_HEADERS_MAX = 100,
};

struct ws_header {
    struct ws_text name;
    struct ws_text value;
};

/* Headers wherever they are: at() gives number `i`, from 0; false past the end. */
struct ws_headers {
    bool (*at)(const void *from, size_t i, struct ws_header *header);
    const void *from;
};

/* First of that name; ptr NULL: absent. `count` (may be NULL): how many there are. */
struct ws_text ws_header_find(struct ws_headers headers, struct ws_text name, size_t *count);
/* Does a comma-separated header, in one line or several, hold this token (case does not matter)? */
bool ws_header_has_token(struct ws_headers headers, struct ws_text name, struct ws_text token);

/* ---- heads as they come from a socket (stand-alone library) ------------------------------------------ */

struct ws_head {
    struct ws_text method; /* of a request */
    struct ws_text target;
    int status; /* of an answer */
    struct ws_text reason;
    unsigned minor; /* HTTP/1.x */
    size_t count;
    struct ws_header headers[WS_HEADERS_MAX];
    size_t size; /* bytes of the head */
};

enum ws_head_result { WS_HEAD_WHOLE, WS_HEAD_MORE, WS_HEAD_BAD };

/* Strict: CR LF ends lines, no folding, no control characters, no blank before the colon. */
enum ws_head_result ws_head_parse(struct ws_head *head, const char *data, size_t len, bool request);
struct ws_headers ws_head_headers(const struct ws_head *head);

/* ---- server -------------------------------------------------------------------------------------------- */

/* Is this GET of HTTP/1.1 a WebSocket handshake? 0, or the status that refuses it: 400, or 426 for another
 * version (with the header `Sec-WebSocket-Version: 13`). `key` is set. */
int ws_server_check(struct ws_headers headers, struct ws_text *key);
/* The same for an extended CONNECT of HTTP/2 (RFC 8441), which has no key and no Upgrade. */
int ws_server_check_http2(struct ws_headers headers);
/* Does it ask for an upgrade to WebSocket at all? Cheap, for every request with a Connection header. */
bool ws_server_is_upgrade(struct ws_headers headers);

/* Writes the 28 characters and a NUL. */
void ws_accept_key(struct ws_text key, char out[WS_ACCEPT_LENGTH + 1]);

/* Did the client offer this subprotocol? Names are compared with their case. */
bool ws_protocol_is_offered(struct ws_headers headers, struct ws_text name);
/* The first of `supported`, in the server's order, that the client offered; NULL: none. */
const char *ws_protocol_choose(struct ws_headers headers, const char *const *supported, size_t count);
/* False: an offer that is no list of tokens, or names one twice. */
bool ws_protocols_are_valid(struct ws_headers headers);

/* May a page of `origin` connect? Without an Origin header (no browser) always. Otherwise when it is of the
 * same host and port as `host` (and not less secure), or matches one of `allowed`: "*",
 * "https://example.com", "https://example.com:8443", or with a star for what comes before ".example.com". */
bool ws_origin_is_allowed(struct ws_text origin, struct ws_text host, bool secure, const char *const *allowed,
                          size_t count);

/* What a server grants of compression. */
struct ws_deflate_policy {
    bool on;
    bool server_takeover; /* keep our own history from message to message, where the client lets us */
    bool client_takeover; /* let the client keep its history: costs a window each */
    uint8_t server_bits; /* most window of ours; 0: 15 */
    uint8_t client_bits; /* most of the client's, where it can be told; 0: 15 */
};

/* The first offer of permessage-deflate that can be met; others are passed over as the RFC has it. True
 * when one was: *agreed is set and `answer` holds the value of Sec-WebSocket-Extensions. */
bool ws_deflate_accept(struct ws_headers headers, const struct ws_deflate_policy *policy, struct ws_deflate *agreed,
                       char answer[WS_EXTENSION_MAX]);

/* A whole answer that accepts, for HTTP/1.1. `protocol` may be NULL, `extension` "" or NULL; `more` are
 * further headers. False: a header that may not stand there. */
bool ws_server_accept(struct ws_buffer *out, struct ws_text key, const char *protocol, const char *extension,
                      const struct ws_header *more, size_t more_count);
/* One that refuses, with a text body and `Connection: close`. */
bool ws_server_refuse(struct ws_buffer *out, int status, const char *reason, const char *body,
                      const struct ws_header *more, size_t more_count);

/* ---- client ---------------------------------------------------------------------------------------------- */

/* What a client offers of compression. */
struct ws_deflate_offer {
    bool on;
    bool server_no_takeover; /* asks the server to forget after each message */
    bool client_no_takeover; /* says that we shall */
    uint8_t server_bits; /* asks for a smaller window; 0 or 15: no wish */
    uint8_t client_bits; /* most window of ours; 0: 15 */
};

struct ws_client_request {
    struct ws_text host; /* "example.com" or "example.com:8080" */
    struct ws_text target; /* "/chat?x=1" */
    const char *const *protocols;
    size_t protocol_count;
    const char *origin; /* NULL: none */
    struct ws_deflate_offer deflate;
    const struct ws_header *more;
    size_t more_count;
};

/* Writes the request and sets `key`. False: a name or value that may not stand in a head. */
bool ws_client_write(struct ws_buffer *out, const struct ws_client_request *request, char key[WS_KEY_LENGTH + 1]);

enum ws_answer {
    WS_ANSWER_ACCEPTED,
    WS_ANSWER_REFUSED, /* a proper HTTP answer of another status: head->status, with a body behind it */
    WS_ANSWER_BAD_UPGRADE, /* 101 without the right Upgrade or Connection */
    WS_ANSWER_BAD_KEY,
    WS_ANSWER_BAD_PROTOCOL, /* a subprotocol that was not offered */
    WS_ANSWER_BAD_EXTENSION, /* one that was not offered, or parameters that do not fit */
};

/* `protocol` becomes the chosen one, ptr NULL for none. */
enum ws_answer ws_client_check(const struct ws_head *head, const struct ws_client_request *request, const char *key,
                               struct ws_text *protocol, struct ws_deflate *agreed);
/* For messages: "the server's Sec-WebSocket-Accept is wrong". */
const char *ws_answer_text(enum ws_answer answer);

/* The offer as it stands in a request. */
void ws_deflate_describe_offer(const struct ws_deflate_offer *offer, char out[WS_EXTENSION_MAX]);
/* What the server's answer agrees to. False: it does not fit the offer. */
bool ws_deflate_agree(struct ws_headers headers, const struct ws_deflate_offer *offer, struct ws_deflate *agreed);

#endif
