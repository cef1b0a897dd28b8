#include "wsio/pacing.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>

enum { NAME_SIZE = 16 }; /* TCP_CA_NAME_MAX of the kernel */

bool pacing_is_on(int fd)
{
    char name[NAME_SIZE] = "";
    socklen_t len = sizeof name;
    return getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len) == 0 && strncmp(name, "bbr", 3) == 0;
}

bool pacing_is_needless(const struct sockaddr *peer)
{
    if (peer->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)peer;
        return ntohl(in->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    }
    if (peer->sa_family == AF_INET6) {
        const struct in6_addr *in6 = &((const struct sockaddr_in6 *)(const void *)peer)->sin6_addr;
        return IN6_IS_ADDR_LOOPBACK(in6) || (IN6_IS_ADDR_V4MAPPED(in6) && in6->s6_addr[12] == IN_LOOPBACKNET);
    }
    return false;
}

void pacing_end(int fd)
{
    static const char unpaced[] = "reno";
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, unpaced, sizeof unpaced - 1);
}

void pacing_suit(int fd, const struct sockaddr *peer)
{
    if (pacing_is_needless(peer) && pacing_is_on(fd)) {
        pacing_end(fd);
    }
}
