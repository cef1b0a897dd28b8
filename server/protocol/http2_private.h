/* Shared by the files of HTTP/2: http2.c (the connection), http2_session.c (nghttp2's callbacks),
 * http2_head.c, http2_body.c (a request on its way in), http2_response.c (its answer), http2_tunnel.c (a WebSocket),
 * http2_limits.c. */
#ifndef KILN_PROTOCOL_HTTP2_PRIVATE_H
#define KILN_PROTOCOL_HTTP2_PRIVATE_H

#include "protocol/http2.h"
#include "request/body_rate.h"

#include <nghttp2/nghttp2.h>

enum {
    HTTP2_MAGIC = 0x48545432,
    HTTP2_STREAM_MAGIC = 0x53545232,
    HTTP2_OUTPUT_HIGH = 131072, /* unsent bytes above which no stream is asked for more */
    HTTP2_UPGRADED_FIRST = 16384, /* bytes of a body right behind a 101: some clients have no room for more */
    HTTP2_FIRST_WINDOW = 65535, /* of a stream whose body nobody has asked for */
};

/* What may happen so often, refilled as time passes and as the client does real work. */
struct http2_budget {
    uint32_t left;
    uint64_t filled_ms;
};

enum { HTTP2_FRAME_WINDOW = 256 };

/* The walk over the client's frames; http2_frames.c. */
struct http2_frames {
    uint64_t used[HTTP2_FRAME_WINDOW / 64]; /* of the last streams: the client has opened it */
    uint64_t ended[HTTP2_FRAME_WINDOW / 64]; /* ... and ended or reset it */
    uint32_t top; /* the highest that it opened */
    uint32_t skip; /* bytes of the running frame that are still to come */
    bool in_block; /* CONTINUATION must come */
    uint8_t have; /* bytes of a frame's header that have come */
    uint8_t head[9];
};

/* Requests whose memory is held, also by endpoints whose stream is gone. Outlives the connection. */
struct http2_load {
    uint32_t running;
    bool closed;
};

enum http2_drain { HTTP2_OPEN, HTTP2_NOTICE /* first GOAWAY is out */, HTTP2_LAST /* the second too */ };

struct http2_stream;

/* One connection. Small: it is what an idle connection costs beside struct conn and the session. */
struct http2 {
    uint32_t magic;
    uint8_t drain; /* enum http2_drain */
    bool in_session : 1; /* nghttp2 is up the stack */
    bool receiving : 1; /* ... with input */
    bool told : 1; /* our SETTINGS are out */
    bool working : 1; /* http2_work is up the stack */
    bool work_wanted : 1;
    bool task_queued : 1;
    bool dead : 1;
    bool wait_drained : 1; /* the output is high */
    bool greeted : 1; /* the client's SETTINGS came */
    bool eof : 1;
    bool ticking : 1; /* the deadline is that of http2_tick */
    bool had_streams : 1; /* since idle_until_ms was set */
    bool over : 1; /* conn_finish was called */
    bool upgraded : 1; /* from HTTP/1.1 */
    bool pinged : 1; /* behind the first GOAWAY */
    struct conn *conn;
    nghttp2_session *session;
    struct http2_load *load;
    struct list streams;
    struct list attention; /* streams to look at in http2_work */
    struct http2_stream *gathering; /* whose header block is coming in */
    uint64_t gathering_since_ms;
    uint64_t notice_ms; /* when the first GOAWAY went out */
    uint64_t idle_until_ms;
    int32_t updated[4]; /* the last streams that a PRIORITY_UPDATE came for before they were opened */
    uint32_t stream_count;
    uint32_t most_streams; /* as the client was told, whatever the config says by now */
    size_t queued_before; /* frames in nghttp2 when the one began that is being received */
    uint32_t stop_error; /* a callback ends the connection with it; 0: none does */
    uint32_t continuations; /* of the running header block */
    uint64_t queued; /* bytes of answers that wait in the streams */
    uint64_t grown; /* windows of streams beyond HTTP2_FIRST_WINDOW */
    struct http2_budget resets;
    struct http2_budget frames;
    struct http2_frames frames_seen;
    struct task task; /* http2_work, or frees this when dead */
};

/* A piece of an answer that waits for its turn. */
struct http2_segment {
    struct http2_segment *next;
    const char *data; /* NULL: of the file */
    uint64_t len;
    off_t offset;
    int fd;
    uint32_t room; /* bytes that may still be added behind data; 0: it is not ours */
    bool lent; /* the output queue refers to it */
    void (*release)(void *);
    void *arg;
};

/* Bytes of a body that wait for the sink. */
struct http2_chunk {
    struct http2_chunk *next;
    uint32_t len;
    uint32_t cap;
    uint8_t bytes[];
};

/* The parts of a head as they come in. */
struct http2_head {
    struct header *items;
    uint16_t cap;
    uint16_t status; /* to refuse it with; 0: none */
    uint32_t size; /* as SETTINGS_MAX_HEADER_LIST_SIZE counts */
    uint32_t cookies;
    bool http; /* the scheme is http or https */
    struct str authority;
    struct str protocol; /* of an extended CONNECT */
};

struct http2_stream {
    uint32_t magic;
    int32_t id;
    struct http2 *h;
    struct request *req;
    struct list node; /* h->streams */
    struct list attention; /* h->attention, or empty */
    struct http2_head head;
    uint8_t seen; /* fields of which there may be one; http2_fields.c */
    uint8_t urgency; /* RFC 9218 */
    bool incremental : 1;
    bool has_priority : 1;
    bool bad_priority : 1; /* one that cannot be read */
    bool malformed : 1; /* and therefore reset */
    bool started : 1; /* its head made a request */
    bool trailers : 1;
    bool remote_done : 1; /* END_STREAM came */
    bool head_out : 1; /* the final HEADERS were handed to nghttp2 */
    bool no_data : 1; /* they end the stream */
    bool finished : 1; /* nothing will be added to the answer */
    bool idle : 1; /* nghttp2 was told that there is no data now */
    bool aborted : 1; /* reset by us */
    bool cut : 1; /* before its answer was complete */
    bool closed : 1; /* nghttp2 has forgotten it, the answer is not finished */
    bool want_drained : 1;
    bool flowing : 1; /* the sink wants bytes */
    bool big_window : 1;
    struct conn *tunnel; /* what the stream has become; NULL: an exchange as usual */
    /* Out. */
    struct http2_segment *first;
    struct http2_segment *last;
    struct http2_segment own; /* the first one costs no malloc */
    bool own_used;
    uint64_t queued;
    uint64_t blocked_since_ms; /* something waits since; 0: nothing does */
    uint64_t sent_since;
    char length_text[20];
    char status_text[4];
    /* In. */
    uint64_t announced; /* by Content-Length; RESPONSE_LENGTH_UNKNOWN: there was none */
    uint64_t came;
    struct http2_chunk *chunks;
    struct http2_chunk *last_chunk;
    struct body_rate rate;
};

/* http2.c */
/* Sends what the streams have and looks at those that asked for it; at the end of the event. */
void http2_work(struct http2 *h);
void http2_work_later(struct http2 *h);
/* Puts the stream on the list and has http2_work called. */
void http2_attend(struct http2_stream *s);
/* Looks at the times of streams in a moment. */
void http2_tick(struct http2 *h);
/* The second GOAWAY: by now the client knows that it may begin no more streams. */
void http2_drain_last(struct http2 *h);
struct http2 *http2_create(struct conn *conn);
void http2_destroy(struct http2 *h);

/* http2_session.c */
nghttp2_session *http2_session_create(struct http2 *h);
void http2_session_delete(nghttp2_session *session); /* NULL: there is none */
/* Settings, the connection's window: the server's first words. */
bool http2_session_greet(struct http2 *h);
/* The first frame on its way to the client, which is changed. */
void http2_settings_sent(struct http2 *h, uint8_t *frame, size_t len);

/* http2_memory.c */
/* A session of this thread begins; what it takes its memory from. NULL: from malloc. */
nghttp2_mem *http2_memory_enter(void);
void http2_memory_leave(void);
size_t http2_memory_kept(void); /* bytes, of this thread */

/* http2_pages.c: for http2_memory.c */
enum { HTTP2_PAGES_SIZE = 20480 };
/* HTTP2_PAGES_SIZE bytes that are untouched, or nearly. NULL: there are none, malloc may have some. */
void *http2_pages_take(void);
bool http2_pages_are(const void *block); /* from there */
void http2_pages_give_back(void *block);
/* The thread's last session has gone: nothing of it is used. */
void http2_pages_leave(void);

/* http2_frames.c */
void http2_frames_start(struct http2_frames *f);
/* How many of the bytes nghttp2 may have; then *error is what the next frame is an error of. */
size_t http2_frames_check(struct http2 *h, const uint8_t *data, size_t len, uint32_t *error);

/* http2_stream.c */
struct http2_stream *http2_stream_create(struct http2 *h, int32_t id);
/* An existing request becomes the stream's. NULL when out of memory. */
struct http2_stream *http2_stream_adopt(struct http2 *h, int32_t id, struct request *req);
/* Ends the request and frees the stream. `gone`: the answer is not complete. */
void http2_stream_end(struct http2_stream *s, bool gone);
void http2_stream_attend(struct http2_stream *s);
/* Is one of the stream's deadlines over? Then it is reset or answered 408. True: look again later. */
bool http2_stream_check_time(struct http2_stream *s, uint64_t now);

/* http2_fields.c */
/* As nghttp2 has it; static: for ever, out of HPACK's table. */
struct http2_field {
    struct str name;
    struct str value;
    bool static_name;
    bool static_value;
};
/* False: it makes the request malformed. *known is what the name is, or HEADER_KNOWN_COUNT. */
bool http2_field_check(struct http2_stream *s, const struct http2_field *field, unsigned *known);
/* May these bytes stand in :authority, in :path? What Kiln does not take of them is told apart by it. */
bool http2_field_is_authority(struct str value);
bool http2_field_is_target(struct str value);
/* Does Kiln take them? No path is empty. */
bool http2_field_is_path(struct str value);
/* Method, target and scheme are set: may they stand together? */
bool http2_fields_are_whole(struct http2_stream *s, bool end_stream);
/* Bytes of the body, and its end: are there as many as were announced? */
bool http2_fields_data(struct http2_stream *s, size_t len);
bool http2_fields_end(const struct http2_stream *s);

/* http2_priority.c */
/* False: it cannot be read, and nothing was changed. */
bool http2_priority_read(struct str text, nghttp2_extpri *priority);
void http2_priority_take(struct http2_stream *s, struct str value);
void http2_priority_set(const struct http2_stream *s);
/* A PRIORITY_UPDATE has come for a stream that is not open. */
void http2_priority_updated(struct http2 *h, int32_t id);

/* http2_head.c */
/* False: out of memory, or the request is malformed and its stream reset. */
bool http2_head_add(struct http2_stream *s, nghttp2_rcbuf *name, nghttp2_rcbuf *value);
void http2_head_complete(struct http2_stream *s, bool end_stream);
/* Something for the log in the place of what did not come. */
void http2_head_blank(struct http2_stream *s);

/* http2_body.c */
void http2_body_resume(struct request *req);
void http2_body_pause(struct request *req);
void http2_body_received(struct http2_stream *s, const uint8_t *data, size_t len);
void http2_body_ended(struct http2_stream *s);
void http2_body_failed(struct http2_stream *s, int status);
/* Hands on what waits. */
void http2_body_deliver(struct http2_stream *s);
void http2_body_drop(struct http2_stream *s);

/* http2_response.c */
extern const struct request_ops http2_request_ops;
int http2_send_data(nghttp2_session *session, nghttp2_frame *frame, const uint8_t *framehd, size_t length,
                    nghttp2_data_source *source, void *user_data);
/* Lets go of what was not sent. */
void http2_response_drop(struct http2_stream *s);
void http2_reset(struct http2_stream *s, uint32_t error);
/* The client has broken a rule of RFC 9113, which counts as a reset of its own. */
void http2_malformed(struct http2_stream *s);
/* Has nghttp2 ask again a stream that had nothing to send. */
void http2_wake(struct http2_stream *s);

/* http2_tunnel.c */
struct conn *http2_upgrade_conn(struct request *req);
bool http2_upgrade_stream(struct request *req, const struct protocol *protocol, void *proto);
/* Both sides have ended the stream. */
void http2_tunnel_ended(struct conn *tunnel);

/* http2_limits.c */
void http2_limits_start(struct http2 *h);
/* False: the client has done this too often. */
bool http2_count_reset(struct http2 *h);
bool http2_count_frame(struct http2 *h);
/* A request, or bytes that were sent: so many more frames are in order. */
void http2_earn_frames(struct http2 *h, unsigned frames);

#endif
