/* An echo server, a thread for each client. server PORT [CERT KEY]: with a certificate it is wss. */
#include <kiln_ws.h>

#include <stdio.h>
#include <stdlib.h>

static void echo(kiln_ws *ws, void *user)
{
    (void)user;
    kiln_ws_message m;
    while (kiln_ws_recv(ws, &m) > 0) {
        kiln_ws_send(ws, m.type, m.data, m.length);
    }
}

int main(int argc, char **argv)
{
    char error[200];
    kiln_ws_listen_options options = {.port = argc > 1 ? atoi(argv[1]) : 9000};
    options.cert_file = argc > 3 ? argv[2] : NULL;
    options.key_file = argc > 3 ? argv[3] : NULL;
    options.ws.deflate = KILN_WS_DEFLATE;
    options.ws.error = error;
    options.ws.error_size = sizeof error;
    kiln_ws_listener *listener = kiln_ws_listen(&options);
    if (listener == NULL) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    printf("port %d\n", kiln_ws_listener_port(listener));
    fflush(stdout);
    kiln_ws_listener_serve(listener, echo, NULL);
    return 0;
}
