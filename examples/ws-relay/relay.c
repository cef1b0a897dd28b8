/* Passes messages between two WebSockets, both ways, in a loop of its own: descriptor, wanted events, time, step.
 * relay URL URL */
#include <kiln_ws.h>

#include <poll.h>
#include <stdio.h>

enum { MOST = 1 << 20 }; /* bytes that may wait for one side before no more is read from the other */

static int may_pass(kiln_ws *from, kiln_ws *to)
{
    return kiln_ws_state(from) != KILN_WS_CONNECTING && kiln_ws_state(to) == KILN_WS_OPEN && kiln_ws_pending(to) < MOST;
}

/* What to wait for; the time is made the nearest. */
static struct pollfd look_at(kiln_ws *ws, kiln_ws *other, int *ms)
{
    int state = kiln_ws_state(ws);
    int holds_back = state == KILN_WS_OPEN && !may_pass(ws, other); /* what is here already has to wait, too */
    int wanted = kiln_ws_wanted(ws) & (holds_back ? KILN_WRITE : KILN_READ | KILN_WRITE);
    int due = state == KILN_WS_CLOSED ? -1 : holds_back ? 1000 : kiln_ws_timeout(ws);
    if (due >= 0 && (*ms < 0 || due < *ms)) {
        *ms = due;
    }
    return (struct pollfd){.fd = wanted != 0 ? kiln_ws_fd(ws) : -1,
                           .events = (wanted & KILN_READ ? POLLIN : 0) | (wanted & KILN_WRITE ? POLLOUT : 0)};
}

static void pass(kiln_ws *from, kiln_ws *to)
{
    kiln_ws_message m;
    while (may_pass(from, to) && kiln_ws_recv(from, &m) > 0) {
        kiln_ws_send(to, m.type, m.data, m.length);
    }
    int code = kiln_ws_close_code(from);
    if (code != 0 || kiln_ws_state(from) == KILN_WS_CLOSED) { /* 1005 and 1006 cannot be sent */
        kiln_ws_close(to, code == 1005 ? 1000 : code == 1006 ? 1001 : code, kiln_ws_close_reason(from));
    }
    if (kiln_ws_state(to) != KILN_WS_OPEN && kiln_ws_state(to) != KILN_WS_CONNECTING) {
        while (kiln_ws_recv(from, &m) > 0) { /* for nobody any more: the close frame is behind it */
        }
    }
}

int main(int argc, char **argv)
{
    char error[300] = "usage: relay URL URL";
    kiln_ws_options options = {.error = error, .error_size = sizeof error};
    kiln_ws *a = argc > 2 ? kiln_ws_open(argv[1], &options) : NULL;
    kiln_ws *b = a != NULL ? kiln_ws_open(argv[2], &options) : NULL;
    if (b == NULL) {
        fprintf(stderr, "%s\n", error);
        kiln_ws_free(a);
        return 1;
    }
    while (kiln_ws_state(a) != KILN_WS_CLOSED || kiln_ws_state(b) != KILN_WS_CLOSED) {
        int ms = -1;
        struct pollfd fds[2] = {look_at(a, b, &ms), look_at(b, a, &ms)};
        poll(fds, 2, ms);
        kiln_ws_step(a);
        kiln_ws_step(b);
        pass(a, b);
        pass(b, a);
    }
    int ok = kiln_ws_connections(a) > 0 && kiln_ws_connections(b) > 0;
    if (!ok) {
        fprintf(stderr, "%s\n%s\n", kiln_ws_error(a), kiln_ws_error(b));
    }
    kiln_ws_free(a);
    kiln_ws_free(b);
    return !ok;
}
