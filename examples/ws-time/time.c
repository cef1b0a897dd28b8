/* A server that tells each client the time, and a client that asks it: both in one program, as streams. */
#include <kiln_ws.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

static void tell_time(kiln_ws *ws, void *user)
{
    int64_t now = (int64_t)time(NULL);
    (void)user;
    kiln_ws_write(ws, &now, sizeof now); /* when this function returns, the socket is closed */
}

static void *serve(void *listener)
{
    kiln_ws_listener_serve(listener, tell_time, NULL);
    return NULL;
}

int main(void)
{
    char error[200];
    kiln_ws_listen_options server = {.address = "127.0.0.1", .ws = {.error = error, .error_size = sizeof error}};
    kiln_ws_options client = {.error = error, .error_size = sizeof error};
    kiln_ws_listener *listener = kiln_ws_listen(&server);
    if (listener == NULL) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    pthread_t thread;
    pthread_create(&thread, NULL, serve, listener);

    char url[64];
    snprintf(url, sizeof url, "ws://127.0.0.1:%d/", kiln_ws_listener_port(listener));
    kiln_ws_stream *stream = kiln_ws_stream_open(kiln_ws_connect(url, &client));
    int64_t now;
    if (stream == NULL || kiln_ws_stream_read_all(stream, &now, sizeof now) != KILN_OK) {
        fprintf(stderr, "%s\n", stream == NULL ? error : "the time did not come");
        return 1;
    }
    printf("Current time is %" PRId64 "\n", now);

    kiln_ws_stream_free(stream);
    kiln_ws_listener_close(listener);
    pthread_join(thread, NULL);
    kiln_ws_listener_free(listener);
    return 0;
}
