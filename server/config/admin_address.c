#include "config/admin_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/un.h>

static bool parse_unix(struct str path, struct admin_address *out)
{
    struct sockaddr_un *un = (struct sockaddr_un *)&out->address;
    if (path.len < 2 || path.len >= sizeof un->sun_path || path.ptr[0] != '/' || path.ptr[path.len - 1] == '/' ||
        memchr(path.ptr, '\0', path.len) != NULL) {
        return false;
    }
    un->sun_family = AF_UNIX;
    memcpy(un->sun_path, path.ptr, path.len);
    out->len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + path.len + 1);
    out->is_unix = true;
    out->is_loopback = true;
    snprintf(out->text, sizeof out->text, "unix:%s", un->sun_path);
    return true;
}

static bool is_loopback4(struct in_addr address)
{
    return ntohl(address.s_addr) >> 24 == 127;
}

static bool is_loopback6(const struct in6_addr *address)
{
    struct in_addr mapped;
    memcpy(&mapped, address->s6_addr + 12, sizeof mapped);
    return IN6_IS_ADDR_LOOPBACK(address) || (IN6_IS_ADDR_V4MAPPED(address) && is_loopback4(mapped));
}

/* "192.0.2.1" or "[2001:db8::1]"; 0: neither. */
static int parse_ip(struct str host, struct in_addr *v4, struct in6_addr *v6)
{
    char text[INET6_ADDRSTRLEN] = "";
    bool brackets = host.len > 2 && host.ptr[0] == '[' && host.ptr[host.len - 1] == ']';
    struct str bare = brackets ? (struct str){host.ptr + 1, host.len - 2} : host;
    if (bare.len == 0 || bare.len >= sizeof text) {
        return 0;
    }
    memcpy(text, bare.ptr, bare.len);
    if (brackets) {
        return inet_pton(AF_INET6, text, v6) == 1 ? AF_INET6 : 0;
    }
    return inet_pton(AF_INET, text, v4) == 1 ? AF_INET : 0;
}

static bool parse_ip_and_port(struct str host, uint16_t port, struct admin_address *out)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)&out->address;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&out->address;
    struct in_addr ip4;
    struct in6_addr ip6;
    char text[INET6_ADDRSTRLEN];
    switch (parse_ip(host, &ip4, &ip6)) {
    case AF_INET:
        *v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = ip4};
        out->len = sizeof *v4;
        out->is_loopback = is_loopback4(ip4);
        snprintf(out->text, sizeof out->text, "%s:%u", inet_ntop(AF_INET, &ip4, text, sizeof text), port);
        return true;
    case AF_INET6:
        *v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = ip6};
        out->len = sizeof *v6;
        out->is_loopback = is_loopback6(&ip6);
        snprintf(out->text, sizeof out->text, "[%s]:%u", inet_ntop(AF_INET6, &ip6, text, sizeof text), port);
        return true;
    default: return false;
    }
}

bool admin_address_parse(struct str text, struct admin_address *out)
{
    *out = (struct admin_address){0};
    if (str_starts(text, STR("unix:"))) {
        return parse_unix(str_from(text, 5), out);
    }
    size_t colon = str_find_last(text, ':');
    struct str host = colon == SIZE_MAX ? STR("127.0.0.1") : str_first(text, colon);
    uint64_t port;
    if (!str_to_u64(colon == SIZE_MAX ? text : str_from(text, colon + 1), UINT16_MAX, &port)) {
        return false;
    }
    host = str_eq_nocase(host, STR("localhost")) ? STR("127.0.0.1") : host;
    return parse_ip_and_port(host, (uint16_t)port, out);
}

/* ---- Host --------------------------------------------------------------------------------------- */

struct str admin_host_name(struct str host)
{
    size_t colon = str_find_last(host, ':');
    size_t bracket = str_find_last(host, ']');
    bool port = colon != SIZE_MAX && (bracket == SIZE_MAX || colon > bracket);
    return port ? str_first(host, colon) : host;
}

static bool has_good_port(struct str host)
{
    struct str name = admin_host_name(host);
    uint64_t port;
    return name.len == host.len || str_to_u64(str_from(host, name.len + 1), UINT16_MAX, &port);
}

bool admin_host_is_local(struct str host, bool any_address)
{
    struct str name = admin_host_name(host);
    struct in_addr v4;
    struct in6_addr v6;
    if (!has_good_port(host)) {
        return false;
    }
    switch (parse_ip(name, &v4, &v6)) {
    case AF_INET: return any_address || is_loopback4(v4);
    case AF_INET6: return any_address || is_loopback6(&v6);
    default: return str_eq_nocase(name, STR("localhost"));
    }
}
