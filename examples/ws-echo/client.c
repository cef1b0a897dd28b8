/* Sends each word of the command line and prints what comes back. client URL [--ca=FILE] [--proxy=URL] WORDS... */
#include <kiln_ws.h>

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    char error[300] = "usage: client URL [--ca=FILE] [--proxy=URL] WORDS...";
    kiln_ws_options options = {.deflate = KILN_WS_DEFLATE, .error = error, .error_size = sizeof error};
    int i = 2;
    for (; i < argc && strncmp(argv[i], "--", 2) == 0; i++) {
        if (strncmp(argv[i], "--ca=", 5) == 0) {
            options.ca_file = argv[i] + 5; /* a self-signed certificate is its own authority */
        } else if (strncmp(argv[i], "--proxy=", 8) == 0) {
            options.proxy = argv[i] + 8; /* http://user:password@host:port or socks5://... */
        }
    }
    kiln_ws *ws = argc > 1 ? kiln_ws_connect(argv[1], &options) : NULL;
    if (ws == NULL) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    const char *tls = kiln_ws_tls(ws);
    fprintf(stderr, "connected to %s, %s\n", kiln_ws_peer(ws), tls != NULL ? tls : "not encrypted");
    kiln_ws_message m;
    for (; i < argc && kiln_ws_send_text(ws, argv[i]) == KILN_OK && kiln_ws_recv(ws, &m) > 0; i++) {
        printf("%s\n", m.data);
    }
    kiln_ws_free(ws);
    return i == argc ? 0 : 1;
}
