/* The transport without encryption: system calls as they are. The two of every request go past the C
 * library's functions, which are cancellation points and so cost two locked instructions each in
 * a program with threads; nobody cancels a loop. */
#include "connection/conn.h"

#include <errno.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define recv(fd, to, cap, flags) syscall(SYS_recvfrom, (fd), (to), (cap), (flags), NULL, NULL)
#define send(fd, from, len, flags) syscall(SYS_sendto, (fd), (from), (len), (flags), NULL, 0)
#endif

static ssize_t plain_receive(struct conn *conn, void *to, size_t cap)
{
    return recv(conn->watch.fd, to, cap, 0);
}

static ssize_t plain_send(struct conn *conn, const struct iovec *vectors, int count, bool more)
{
    int flags = MSG_NOSIGNAL | (more ? MSG_MORE : 0);
    if (count == 1) {
        return send(conn->watch.fd, vectors[0].iov_base, vectors[0].iov_len, flags);
    }
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)vectors, .msg_iovlen = (size_t)count};
    return sendmsg(conn->watch.fd, &message, flags);
}

static ssize_t plain_send_file(struct conn *conn, int fd, off_t offset, size_t len)
{
    return sendfile(conn->watch.fd, fd, &offset, len);
}

static void plain_nothing(struct conn *conn)
{
    (void)conn;
}

const struct transport transport_plain = {
    .name = "plain",
    .secure = false,
    .receive = plain_receive,
    .send = plain_send,
    .send_file = plain_send_file,
    .shutdown = plain_nothing,
    .close = plain_nothing,
};
