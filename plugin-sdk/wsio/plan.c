#include "wsio/plan.h"

#include "kiln_ws.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool fail(char error[URL_ERROR_MAX], const char *text)
{
    snprintf(error, URL_ERROR_MAX, "%s", text);
    return false;
}

/* A copy that the plan owns; NULL stays NULL, and so it is without memory, which *ok tells. */
static const char *keep(struct plan *plan, const char *text, bool *ok)
{
    if (text == NULL) {
        return NULL;
    }
    char *copy = plan->text_count < sizeof plan->texts / sizeof plan->texts[0] ? strdup(text) : NULL;
    if (copy == NULL) {
        *ok = false;
        return NULL;
    }
    plan->texts[plan->text_count++] = copy;
    return copy;
}

static bool take_protocols(struct plan *plan, const char *const *list, char error[URL_ERROR_MAX])
{
    bool ok = true;
    size_t n = 0;
    for (; list != NULL && list[n] != NULL; n++) {
        if (n == PLAN_LIST_MAX) {
            return fail(error, "more than 64 subprotocols are offered");
        }
        if (!ws_text_is_token(ws_text(list[n]))) {
            return fail(error, "a subprotocol is a word without blanks, commas or quotes");
        }
        plan->protocols[n] = keep(plan, list[n], &ok);
    }
    plan->request.protocols = plan->protocols;
    plan->request.protocol_count = n;
    return ok || fail(error, "no memory");
}

static bool take_headers(struct plan *plan, const char *const *list, char error[URL_ERROR_MAX])
{
    bool ok = true;
    size_t n = 0;
    for (; list != NULL && list[n] != NULL; n++) {
        const char *text = n < PLAN_LIST_MAX ? keep(plan, list[n], &ok) : NULL;
        const char *colon = text != NULL ? strchr(text, ':') : NULL;
        if (colon == NULL) {
            return fail(error, !ok                  ? "no memory"
                               : n == PLAN_LIST_MAX ? "more than 64 headers"
                                                    : "a header is written \"Name: value\"; a colon is missing");
        }
        struct ws_header *header = &plan->headers[n];
        header->name = (struct ws_text){text, (size_t)(colon - text)};
        header->value = ws_text_trim(ws_text(colon + 1));
    }
    if (plan->url.has_user) {
        basic_credentials(plan->url.user, plan->url.password, &plan->authorization);
        plan->headers[n++] =
            (struct ws_header){WS_TEXT_OF("Authorization"), {plan->authorization.data, plan->authorization.len}};
    }
    plan->request.more = plan->headers;
    plan->request.more_count = n;
    return !plan->authorization.failed || fail(error, "no memory");
}

static bool take_deflate(struct plan *plan, const kiln_ws_options *options, char error[URL_ERROR_MAX])
{
    int bits = options->deflate_bits;
    if (bits != 0 && (bits < 8 || bits > 15)) {
        return fail(error, "deflate_bits is from 8 to 15");
    }
    bool forget = (options->deflate & KILN_WS_DEFLATE_FORGET) != 0;
    plan->request.deflate = (struct ws_deflate_offer){
        .on = options->deflate != 0,
        .server_no_takeover = forget,
        .client_no_takeover = forget,
        .server_bits = (uint8_t)bits,
        .client_bits = (uint8_t)bits,
    };
    return true;
}

/* A request that cannot be written is told of now, not after the connection stands. */
static bool is_writable(const struct plan *plan, char error[URL_ERROR_MAX])
{
    struct ws_buffer out = {0};
    char key[WS_KEY_LENGTH + 1];
    bool ok = ws_client_write(&out, &plan->request, key);
    ws_buffer_free(&out);
    return ok || fail(error, "a header cannot be sent: its name or value holds a forbidden character, or it belongs to "
                             "the handshake itself");
}

static bool fill(struct plan *plan, const char *url, const kiln_ws_options *options, char error[URL_ERROR_MAX])
{
    bool ok = true;
    if (url == NULL) {
        return fail(error, "there is no URL");
    }
    if (!url_parse(&plan->url, url, error)) {
        return false;
    }
    plan->has_proxy = options->proxy != NULL && options->proxy[0] != '\0';
    if (plan->has_proxy && !proxy_url_parse(&plan->proxy, options->proxy, error)) {
        return false;
    }
    plan->tls = (struct tls_files){keep(plan, options->ca_file, &ok), keep(plan, options->cert_file, &ok),
                                   keep(plan, options->key_file, &ok), options->insecure == 1};
    plan->server_name = keep(plan, options->server_name, &ok);
    plan->request.origin = keep(plan, options->origin, &ok);
    plan->request.host = ws_text(plan->url.authority);
    plan->request.target = ws_text(plan->url.target);
    if (!ok) {
        return fail(error, "no memory");
    }
    return take_protocols(plan, options->protocols, error) && take_headers(plan, options->headers, error) &&
           take_deflate(plan, options, error) && is_writable(plan, error);
}

struct plan *plan_create(const char *url, const struct kiln_ws_options *options, char error[URL_ERROR_MAX])
{
    struct plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL) {
        fail(error, "no memory");
        return NULL;
    }
    atomic_init(&plan->references, 1);
    if (!fill(plan, url, options, error)) {
        plan_release(plan);
        return NULL;
    }
    return plan;
}

void plan_release(struct plan *plan)
{
    if (plan == NULL || atomic_fetch_sub(&plan->references, 1) > 1) {
        return;
    }
    for (size_t i = 0; i < plan->text_count; i++) {
        free(plan->texts[i]);
    }
    if (plan->authorization.data != NULL) {
        explicit_bzero(plan->authorization.data, plan->authorization.cap);
    }
    ws_buffer_free(&plan->authorization);
    explicit_bzero(plan->proxy.password, sizeof plan->proxy.password);
    url_free(&plan->url);
    SSL_CTX_free(plan->context);
    free(plan);
}

/* ---- preparation --------------------------------------------------------------------------------------- */

static int look_up(struct preparation *p, int flags)
{
    const struct plan *plan = p->plan;
    const char *host = plan->has_proxy ? plan->proxy.host : plan->url.host;
    char port[8];
    snprintf(port, sizeof port, "%u", plan->has_proxy ? plan->proxy.port : plan->url.port);
    struct addrinfo wanted = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | flags};
    int result = getaddrinfo(host, port, &wanted, &p->addresses);
    if (result != 0) {
        p->addresses = NULL;
    }
    return result;
}

bool preparation_at_once(struct preparation *p)
{
    struct plan *plan = p->plan;
    if (plan->url.tls && plan->context == NULL) {
        plan->context = tls_client_context_made(&plan->tls);
        p->has_context = plan->context != NULL;
    }
    return (!plan->url.tls || plan->context != NULL) && look_up(p, AI_NUMERICHOST) == 0;
}

bool preparation_trust(struct preparation *p)
{
    const struct plan *plan = p->plan;
    if (plan->url.tls && !p->has_context) {
        p->context = tls_client_context(&plan->tls, p->error);
        return p->context != NULL;
    }
    return true;
}

void preparation_look_up(struct preparation *p)
{
    const struct plan *plan = p->plan;
    errno = 0;
    int result = look_up(p, 0);
    if (result != 0) {
        /* Without a descriptor for its files and sockets it says that there is no such name. */
        bool system = result == EAI_SYSTEM || errno == EMFILE || errno == ENFILE;
        snprintf(p->error, sizeof p->error, "%.150s: %.100s", plan->has_proxy ? plan->proxy.host : plan->url.host,
                 system ? strerror(errno) : gai_strerror(result));
    }
}

void preparation_run(struct preparation *p)
{
    if (preparation_trust(p)) {
        preparation_look_up(p);
    }
}

void preparation_settle(struct preparation *p)
{
    if (p->plan->context == NULL) {
        p->plan->context = p->context;
        p->context = NULL;
    }
}

void preparation_free(struct preparation *p)
{
    SSL_CTX_free(p->context);
    if (p->addresses != NULL) {
        freeaddrinfo(p->addresses);
    }
    plan_release(p->plan);
    *p = (struct preparation){0};
}
