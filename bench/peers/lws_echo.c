/* An echo server on libwebsockets, as its own examples are written: whole messages come back. One thread.
 *   lws_echo PORT [CERTIFICATE KEY] */
#include <libwebsockets.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct session {
    unsigned char *data; /* LWS_PRE bytes before it */
    size_t len;
    size_t cap;
    int binary;
};

static int keep(struct session *s, const void *in, size_t len)
{
    if (s->len + len > s->cap) {
        s->cap = (s->len + len) * 2;
        s->data = realloc(s->data, LWS_PRE + s->cap);
        if (s->data == NULL) {
            return -1;
        }
    }
    memcpy(s->data + LWS_PRE + s->len, in, len);
    s->len += len;
    return 0;
}

static int on_event(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t len)
{
    struct session *s = user;
    switch (reason) {
    case LWS_CALLBACK_RECEIVE:
        s->binary = lws_frame_is_binary(wsi);
        if (keep(s, in, len) != 0) {
            return -1;
        }
        if (lws_is_final_fragment(wsi) && lws_remaining_packet_payload(wsi) == 0) {
            lws_callback_on_writable(wsi);
        }
        return 0;
    case LWS_CALLBACK_SERVER_WRITEABLE:
        if (s->len > 0) {
            int n = lws_write(wsi, s->data + LWS_PRE, s->len, s->binary ? LWS_WRITE_BINARY : LWS_WRITE_TEXT);
            s->len = 0;
            return n < 0 ? -1 : 0;
        }
        return 0;
    case LWS_CALLBACK_CLOSED: free(s->data); return 0;
    default: return 0;
    }
}

int main(int argc, char **argv)
{
    static struct lws_protocols protocols[] = {{"echo", on_event, sizeof(struct session), 65536, 0, NULL, 0}, {0}};
    struct lws_context_creation_info info = {.port = argc > 1 ? atoi(argv[1]) : 0, .protocols = protocols, .iface = "127.0.0.1"};
    lws_set_log_level(LLL_ERR, NULL);
    if (argc > 3) {
        info.options = LWS_SERVER_OPTION_DO_SSL_GLOBAL_INIT;
        info.ssl_cert_filepath = argv[2];
        info.ssl_private_key_filepath = argv[3];
    }
    struct lws_context *context = lws_create_context(&info);
    while (context != NULL && lws_service(context, 0) >= 0) {
    }
    return EXIT_FAILURE;
}
