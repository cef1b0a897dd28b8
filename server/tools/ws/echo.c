/* The echo server: the ready loop, on one thread. */
#include "ws/ws_tool.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static kiln_ws_loop *running;

static void stop(int signal_number)
{
    (void)signal_number;
    kiln_ws_loop_stop(running); /* NOLINT(bugprone-signal-handler): kiln_ws.h promises it */
}

/* A client that does not read what comes back: what it sends meanwhile has nowhere to go. */
static void on_message(kiln_ws *ws, const kiln_ws_message *m, void *user)
{
    (void)user;
    if (kiln_ws_send(ws, m->type, m->data, m->length) == KILN_TOO_LARGE) {
        kiln_ws_close(ws, 1008, "you send but do not read");
    }
}

static const kiln_ws_handler handler = {.message = on_message};

int ws_echo(const struct ws_tool *tool)
{
    char error[512] = "";
    kiln_ws_listen_options options = {
        .address = tool->address,
        .port = tool->echo_port,
        .cert_file = tool->options.cert_file,
        .key_file = tool->options.key_file,
        .client_ca_file = tool->options.ca_file,
        .protocols = tool->protocols,
        .origins = (const char *const[]){"*", NULL},
        .page = "<!doctype html><title>kiln ws</title><p>This is an echo server for WebSockets.\n",
        .connections = 100000,
        .ws = {.deflate = KILN_WS_DEFLATE,
               .max_message = tool->options.max_message,
               .error = error,
               .error_size = sizeof error},
    };
    options.ws.send_queue = 64 << 20;
    kiln_ws_listener *listener = kiln_ws_listen(&options);
    running = listener != NULL ? kiln_ws_loop_create() : NULL;
    if (running == NULL) {
        fprintf(stderr, "kiln ws: %s\n", listener == NULL ? error : "no memory");
        kiln_ws_listener_free(listener);
        return EXIT_NO_CONNECTION;
    }
    signal(SIGINT, stop);
    signal(SIGTERM, stop);
    kiln_ws_loop_listen(running, listener, &handler, NULL);
    printf("echo server on %s://localhost:%d/\n", options.cert_file != NULL ? "wss" : "ws",
           kiln_ws_listener_port(listener));
    fflush(stdout);
    int result = kiln_ws_loop_run(running);
    kiln_ws_loop_free(running);
    kiln_ws_listener_free(listener);
    return result == KILN_OK ? EXIT_ALL_WELL : EXIT_BROKEN;
}
