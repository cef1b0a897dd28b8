#include "supervisor/listeners.h"

#include "base/check.h"
#include "config/config.h"
#include "supervisor/port_holder.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

static uint32_t last_id;

/* BindAddress and a port as the kernel wants them. Empty: all addresses of both families,
 * by an IPv6 socket, or of IPv4 alone where the machine has no IPv6. */
static socklen_t make_address(const struct config *config, uint16_t port, bool have_ipv6, struct sockaddr_storage *out)
{
    memset(out, 0, sizeof *out);
    struct sockaddr_in *v4 = (struct sockaddr_in *)out;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
    const char *text = config->bind_address.len > 0 ? config->bind_address.ptr : have_ipv6 ? "::" : "0.0.0.0";
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        return sizeof *v4;
    }
    memset(out, 0, sizeof *out);
    CHECK(inet_pton(AF_INET6, text, &v6->sin6_addr) == 1); /* checked by the config */
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    return sizeof *v6;
}

static int open_socket(const struct sockaddr_storage *address, socklen_t len, int backlog)
{
    int fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return -1;
    }
    int on = 1;
    int off = 0;
    bool ok = setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0;
    if (ok && address->ss_family == AF_INET6) {
        ok = setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0;
    }
    if (ok && bind(fd, (const struct sockaddr *)address, len) == 0 && listen(fd, backlog) == 0) {
        return fd;
    }
    int saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

static bool holds_port(const struct listener_set *set, uint16_t port)
{
    for (unsigned i = 0; set != NULL && i < set->count; i++) {
        if (set->items[i].address.port == port) {
            return true;
        }
    }
    return false;
}

static void explain(const struct config *config, enum listener_kind kind, uint16_t port, int error,
                    const struct listener_set *keep, struct buffer *why)
{
    const char *where = config->bind_address.len > 0 ? config->bind_address.ptr : "all addresses";
    const char *option = kind == LISTENER_TLS ? "--httpsPort=N or HttpsPorts" : "--httpPort=N or HttpPorts";
    buffer_printf(why, "cannot listen on port %u (%s): ", port, where);
    switch (error) {
    case EADDRINUSE:
        if (holds_port(keep, port)) {
            buffer_append_z(why,
                            "this server holds it already, with another BindAddress (restart it to change that) or "
                            "as a port of the other kind");
            break;
        }
        buffer_append_z(why, "it is in use");
        port_holder_print(port, why);
        buffer_printf(why, "; stop that program, or choose another port with %s", option);
        break;
    case EACCES:
        buffer_printf(why,
                      "ports below 1024 need root or the capability CAP_NET_BIND_SERVICE; choose a port from "
                      "1024 up with %s, or start the server as root with the option User",
                      option);
        break;
    case EADDRNOTAVAIL:
        buffer_append_z(why, "this machine does not have that address; correct BindAddress, or leave it empty");
        break;
    default: buffer_append_z(why, strerror(error)); break;
    }
}

static bool same_address(const struct config *config, const struct listener *listener)
{
    struct sockaddr_storage wanted;
    for (int have_ipv6 = 0; have_ipv6 <= 1; have_ipv6++) {
        make_address(config, 0, have_ipv6 == 1, &wanted);
        struct address address;
        address_from_sockaddr(&address, &wanted);
        if (address.family == listener->address.family &&
            memcmp(address.ip, listener->address.ip, address.family == AF_INET ? 4 : 16) == 0) {
            return true;
        }
    }
    return false;
}

static const struct listener *find_kept(const struct listener_set *keep, const struct config *config,
                                        enum listener_kind kind, uint16_t port)
{
    for (unsigned i = 0; keep != NULL && i < keep->count; i++) {
        if (keep->items[i].configured_port == port && keep->items[i].kind == kind &&
            same_address(config, &keep->items[i])) {
            return &keep->items[i];
        }
    }
    return NULL;
}

static bool open_listener(const struct config *config, enum listener_kind kind, uint16_t port,
                          const struct listener_set *keep, struct listener *out, struct buffer *why)
{
    struct sockaddr_storage address;
    socklen_t len = make_address(config, port, true, &address);
    int fd = open_socket(&address, len, (int)config->backlog);
    bool no_ipv6 = fd < 0 && (errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL);
    if (no_ipv6 && config->bind_address.len == 0) {
        len = make_address(config, port, false, &address);
        fd = open_socket(&address, len, (int)config->backlog);
    }
    if (fd < 0) {
        explain(config, kind, port, errno, keep, why);
        return false;
    }
    len = sizeof address;
    CHECK(getsockname(fd, (struct sockaddr *)&address, &len) == 0);
    *out = (struct listener){.id = ++last_id, .fd = fd, .configured_port = port, .kind = kind};
    address_from_sockaddr(&out->address, &address);
    return true;
}

bool listeners_adopt(struct listener_set *set, int fd, uint16_t configured_port, enum listener_kind kind)
{
    struct sockaddr_storage address;
    socklen_t len = sizeof address;
    int listening = 0;
    socklen_t int_len = sizeof listening;
    if (set->count == LISTENERS_MAX || getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &int_len) != 0 ||
        listening == 0 || getsockname(fd, (struct sockaddr *)&address, &len) != 0) {
        return false;
    }
    struct listener *listener = &set->items[set->count++];
    *listener = (struct listener){.id = ++last_id, .fd = fd, .configured_port = configured_port, .kind = kind};
    address_from_sockaddr(&listener->address, &address);
    return true;
}

static bool already_wanted(const struct config_ports *ports, size_t index)
{
    for (size_t i = 0; i < index; i++) {
        if (ports->items[i] == ports->items[index]) {
            return true;
        }
    }
    return false;
}

static bool open_ports(struct listener_set *set, const struct config *config, enum listener_kind kind,
                       const struct listener_set *keep, struct buffer *why)
{
    const struct config_ports *ports = kind == LISTENER_TLS ? &config->https_ports : &config->http_ports;
    for (size_t i = 0; i < ports->count; i++) {
        uint16_t port = ports->items[i];
        if (already_wanted(ports, i)) {
            continue;
        }
        if (set->count == LISTENERS_MAX) {
            buffer_printf(why, "more than %d ports to listen on", LISTENERS_MAX);
            return false;
        }
        struct listener *listener = &set->items[set->count];
        const struct listener *kept = find_kept(keep, config, kind, port);
        if (kept != NULL) {
            *listener = *kept;
        } else if (!open_listener(config, kind, port, keep, listener, why)) {
            return false;
        }
        set->count++;
    }
    return true;
}

bool listeners_open(struct listener_set *set, const struct config *config, const struct listener_set *keep,
                    struct buffer *why)
{
    *set = (struct listener_set){0};
    bool ok = open_ports(set, config, LISTENER_PLAIN, keep, why) && open_ports(set, config, LISTENER_TLS, keep, why);
    if (!ok) {
        listeners_close(set, keep);
    }
    return ok;
}

const struct listener *listeners_find(const struct listener_set *set, uint32_t id)
{
    for (unsigned i = 0; i < set->count; i++) {
        if (set->items[i].id == id) {
            return &set->items[i];
        }
    }
    return NULL;
}

void listeners_close(struct listener_set *old, const struct listener_set *now)
{
    for (unsigned i = 0; i < old->count; i++) {
        if (now == NULL || listeners_find(now, old->items[i].id) == NULL) {
            close(old->items[i].fd);
        }
    }
    old->count = 0;
}

void listeners_print_urls(const struct listener_set *set, struct buffer *out)
{
    static const uint8_t any[16] = {0};
    for (unsigned i = 0; i < set->count; i++) {
        const struct listener *listener = &set->items[i];
        const struct address *address = &listener->address;
        bool tls = listener->kind == LISTENER_TLS;
        buffer_printf(out, "%shttp%s://", i > 0 ? ", " : "", tls ? "s" : "");
        char text[ADDRESS_TEXT];
        address_text(address, text);
        if (memcmp(address->ip, any, sizeof any) == 0) {
            buffer_append_z(out, "localhost");
        } else {
            buffer_printf(out, address->family == AF_INET6 ? "[%s]" : "%s", text);
        }
        if (address->port != (tls ? 443 : 80)) {
            buffer_printf(out, ":%u", address->port);
        }
    }
}
