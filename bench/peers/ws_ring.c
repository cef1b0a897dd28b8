/* The same floor with io_uring in epoll's place, by all that makes it cheap: one submission a pass, receives that stay armed and
 * fill buffers of a shared ring, registered descriptors, no completion for a send that went well. It shows what a backend of
 * this kind could gain (see server/loop/backend.h).
 *   ws_ring PORT */
#include "ws_common.h"

#include <errno.h>
#include <liburing.h>
#include <sys/resource.h>

enum { BUFFERS = 1024, BYTES = 512, ANSWER = 512, ENTRIES = 1024, ACCEPTED = MOST, SENT };

static struct io_uring ring;
static struct io_uring_buf_ring *buffers;
static unsigned char (*memory)[BYTES];
static unsigned char answers[MOST][ANSWER]; /* by descriptor: one message is under way on each connection */

static struct io_uring_sqe *next_entry(void)
{
    struct io_uring_sqe *entry = io_uring_get_sqe(&ring);
    while (entry == NULL) {
        io_uring_submit(&ring);
        entry = io_uring_get_sqe(&ring);
    }
    return entry;
}

static void receive(int fd)
{
    struct io_uring_sqe *entry = next_entry();
    io_uring_prep_recv_multishot(entry, fd, NULL, 0, 0);
    entry->flags |= IOSQE_BUFFER_SELECT | IOSQE_FIXED_FILE;
    entry->user_data = (unsigned)fd;
}

static void answer(int fd, size_t len)
{
    struct io_uring_sqe *entry = next_entry();
    io_uring_prep_send(entry, fd, answers[fd], len, MSG_NOSIGNAL);
    entry->flags |= IOSQE_FIXED_FILE | IOSQE_CQE_SKIP_SUCCESS;
    entry->user_data = SENT;
}

static void drop(int fd)
{
    int none = -1;
    io_uring_register_files_update(&ring, (unsigned)fd, &none, 1);
    close(fd);
}

static void take(int fd)
{
    if (fd >= 0 && welcome(fd)) {
        io_uring_register_files_update(&ring, (unsigned)fd, &fd, 1);
        receive(fd);
    }
}

static void serve(int fd, const struct io_uring_cqe *done)
{
    if (done->res == -ENOBUFS) {
        receive(fd);
        return;
    }
    if (done->res <= 0) {
        drop(fd);
        return;
    }
    unsigned which = done->flags >> IORING_CQE_BUFFER_SHIFT;
    unsigned char *in = memory[which];
    bool goes_on = true;
    if (is_open[fd]) {
        answer(fd, echo(in, (size_t)done->res, answers[fd]));
    } else {
        in[done->res] = '\0';
        goes_on = accept_handshake(fd, (const char *)in);
    }
    io_uring_buf_ring_add(buffers, in, BYTES - 1, (unsigned short)which, io_uring_buf_ring_mask(BUFFERS), 0);
    io_uring_buf_ring_advance(buffers, 1);
    if (!goes_on) {
        drop(fd);
    } else if ((done->flags & IORING_CQE_F_MORE) == 0) {
        receive(fd);
    }
}

static bool prepare(void)
{
    struct io_uring_params params = {.flags =
                                         IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQSIZE,
                                     .cq_entries = 4 * ENTRIES};
    size_t size = BUFFERS * sizeof(struct io_uring_buf);
    struct rlimit files; /* the kernel registers no more */
    getrlimit(RLIMIT_NOFILE, &files);
    buffers = aligned_alloc(4096, size);
    memory = malloc(BUFFERS * sizeof *memory);
    struct io_uring_buf_reg registration = {.ring_addr = (unsigned long)buffers, .ring_entries = BUFFERS};
    if (buffers == NULL || memory == NULL || io_uring_queue_init_params(ENTRIES, &ring, &params) != 0 ||
        io_uring_register_files_sparse(&ring, files.rlim_cur < MOST ? (unsigned)files.rlim_cur : MOST) != 0 ||
        io_uring_register_buf_ring(&ring, &registration, 0) != 0) {
        return false;
    }
    io_uring_buf_ring_init(buffers);
    for (unsigned i = 0; i < BUFFERS; i++) {
        io_uring_buf_ring_add(buffers, memory[i], BYTES - 1, (unsigned short)i, io_uring_buf_ring_mask(BUFFERS),
                              (int)i);
    }
    io_uring_buf_ring_advance(buffers, BUFFERS);
    return true;
}

int main(int argc, char **argv)
{
    int listener = argc > 1 ? listen_on(argv[1]) : -1;
    if (listener < 0 || !prepare()) {
        return EXIT_FAILURE;
    }
    struct io_uring_sqe *entry = next_entry();
    io_uring_prep_multishot_accept(entry, listener, NULL, NULL, 0);
    entry->user_data = ACCEPTED;
    for (;;) {
        struct io_uring_cqe *done;
        unsigned head;
        unsigned seen = 0;
        io_uring_submit_and_wait(&ring, 1);
        io_uring_for_each_cqe(&ring, head, done)
        {
            seen++;
            if (done->user_data == ACCEPTED) {
                take(done->res);
            } else if (done->user_data != SENT) {
                serve((int)done->user_data, done);
            }
        }
        io_uring_cq_advance(&ring, seen);
    }
}
