/* Addresses of peers: as the kernel tells them, and as text. */
#include "connection/conn.h"

#include <arpa/inet.h>
#include <netinet/in.h>

void address_from_sockaddr(struct address *address, const struct sockaddr_storage *from)
{
    *address = (struct address){.family = AF_UNIX};
    if (from->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)from;
        address->family = AF_INET;
        address->port = ntohs(in->sin_port);
        memcpy(address->ip, &in->sin_addr, 4);
    } else if (from->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)from;
        address->port = ntohs(in6->sin6_port);
        if (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) {
            address->family = AF_INET;
            memcpy(address->ip, in6->sin6_addr.s6_addr + 12, 4);
        } else {
            address->family = AF_INET6;
            memcpy(address->ip, &in6->sin6_addr, 16);
        }
    }
}

size_t address_text(const struct address *address, char out[ADDRESS_TEXT])
{
    if (address->family == AF_UNIX || inet_ntop(address->family, address->ip, out, ADDRESS_TEXT) == NULL) {
        memcpy(out, "unix", 5);
    }
    return strlen(out);
}
