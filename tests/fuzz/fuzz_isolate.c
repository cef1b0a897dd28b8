/* What the process of an isolated endpoint sends, be it anything: no answer but its own is touched, heads and
 * lengths that reach a client are right, and nothing remains. */
#include "fuzz.h"

#include "tests/support/relay_support.h"

static void give_descriptors(struct wire *wire)
{
    int pipes[2];
    int file = memfd_create("x", MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, 1000) == 0) {
        wire->fds[wire->fd_count++] = file;
    }
    if (pipe(pipes) == 0) {
        wire->fds[wire->fd_count++] = pipes[0];
        wire->fds[wire->fd_count++] = pipes[1];
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (fake_loop == NULL) {
        fake_start();
    }
    fake_begin();
    give_descriptors(&fake_channel->wire);
    /* The first byte says in how large pieces the rest arrives. */
    size_t piece = size > 0 ? (size_t)data[0] + 1 : 1;
    bool open = true;
    for (size_t at = 1; at < size && open; at += piece) {
        size_t n = size - at < piece ? size - at : piece;
        open = wire_feed(&fake_channel->wire, data + at, n);
        if (open) { /* else it would free the channel, which is looked at once more */
            loop_run_deferred(fake_loop);
        }
    }
    fake_finish();
    return 0;
}
