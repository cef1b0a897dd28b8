/* What depends on whether the connection is encrypted: ForceTLS sends plain requests to https, HSTS
 * tells browsers to stay there, and a connection may not be used for a host whose certificate it
 * was not opened with. */
#include "answer/answer.h"
#include "config/config.h"
#include "connection/conn.h"
#include "connection/tls.h"
#include "request/steps.h"
#include "route/path.h"

#define ACME_CHALLENGE "/.well-known/acme-challenge/"

static struct str host_without_port(const struct request *req)
{
    return str_first(req->host, req->host_name_len);
}

/* A certificate is asked for before there is one. Only what leads nowhere else when it is decoded and normalised. */
static bool is_acme_challenge(struct str raw_path)
{
    static const struct str below = {ACME_CHALLENGE, sizeof ACME_CHALLENGE - 1};
    return str_starts(raw_path, below) && path_scan(str_from(raw_path, below.len - 1)).clean;
}

/* 308 keeps the method and the body. */
static enum step_result send_to_https(struct request *req)
{
    const struct config *config = req->config;
    struct str host = host_without_port(req);
    unsigned port = (unsigned)config->force_tls_port;
    if (port == 0 && config->https_ports.count > 0) {
        port = config->https_ports.items[0];
    }
    if (host.len == 0) {
        response_error(req, 400); /* HTTP/1.0 without Host: there is nowhere to send it */
        return STEP_TAKEN;
    }
    char number[16] = "";
    if (port != 443) {
        number[0] = ':';
        number[1 + str_put_u64(number + 1, port)] = '\0';
    }
    const char *location = arena_printf(&req->arena, "https://%.*s%s%.*s%s%.*s", STR_ARG(host), number,
                                        STR_ARG(req->raw_path), req->query.ptr != NULL ? "?" : "", STR_ARG(req->query));
    if (location == NULL || !response_header_set(req, STR("Location"), str_of(location))) {
        response_error(req, 500);
        return STEP_TAKEN;
    }
    req->response.status = 308;
    response_send(req, "", 0);
    return STEP_TAKEN;
}

enum step_result step_secure(struct request *req)
{
    const struct config *config = req->config;
    if (!req->conn->transport->secure) {
        return config->force_tls && !is_acme_challenge(req->raw_path) ? send_to_https(req) : STEP_NEXT;
    }
    if (req->http_major >= 2 && !tls_covers_host(req->conn, host_without_port(req))) {
        response_error(req, 421);
        return STEP_TAKEN;
    }
    const struct tls_client *client = tls_client_of(req->conn);
    if (client != NULL) {
        req->client_subject = arena_str(&req->arena, str_of(client->subject));
        req->client_fingerprint = arena_str(&req->arena, str_of(client->fingerprint));
        if (req->client_subject.ptr == NULL || req->client_fingerprint.ptr == NULL) {
            response_error(req, 500); /* nobody is somebody else for want of memory */
            return STEP_TAKEN;
        }
    }
    if (config->hsts.len > 0 && !response_header_set(req, STR("Strict-Transport-Security"), config->hsts)) {
        response_error(req, 500);
        return STEP_TAKEN;
    }
    return STEP_NEXT;
}
