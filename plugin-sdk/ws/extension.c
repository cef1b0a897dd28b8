/* Negotiation of permessage-deflate (RFC 7692, section 7). An offer that we do not understand is passed
 * over; an answer that we do not understand ends the connection. */
#include "ws/handshake.h"

#include <stdio.h>

enum {
    BITS_NONE = 0, /* parameter absent */
    BITS_ANY = 1, /* present without a value */
    BITS_DEFAULT = 15,
};

/* Parameters as they stand in one offer or answer. */
struct parameters {
    bool server_no_takeover;
    bool client_no_takeover;
    unsigned server_bits;
    unsigned client_bits;
};

/* A value may be quoted; 8 to 15 without leading zeros. 0: neither. */
static unsigned read_bits(struct ws_text value)
{
    if (value.len >= 2 && value.ptr[0] == '"' && value.ptr[value.len - 1] == '"') {
        value = (struct ws_text){value.ptr + 1, value.len - 2};
    }
    if (value.len == 1 && (value.ptr[0] == '8' || value.ptr[0] == '9')) {
        return (unsigned)(value.ptr[0] - '0');
    }
    if (value.len == 2 && value.ptr[0] == '1' && value.ptr[1] >= '0' && value.ptr[1] <= '5') {
        return 10 + (unsigned)(value.ptr[1] - '0');
    }
    return 0;
}

static bool set_flag(bool *flag, bool has_value)
{
    if (*flag || has_value) {
        return false;
    }
    *flag = true;
    return true;
}

static bool set_bits(unsigned *bits, bool has_value, struct ws_text value, bool value_needed)
{
    unsigned read = has_value ? read_bits(value) : BITS_ANY;
    if (*bits != BITS_NONE || read == 0 || (value_needed && read == BITS_ANY)) {
        return false;
    }
    *bits = read;
    return true;
}

static bool read_parameter(struct parameters *p, struct ws_text parameter, bool answer)
{
    const char *equals = memchr(parameter.ptr, '=', parameter.len);
    bool has_value = equals != NULL;
    struct ws_text name = parameter;
    struct ws_text value = {0};
    if (has_value) {
        name = ws_text_trim((struct ws_text){parameter.ptr, (size_t)(equals - parameter.ptr)});
        value = ws_text_trim((struct ws_text){equals + 1, (size_t)(parameter.ptr + parameter.len - equals - 1)});
    }
    if (ws_text_eq_nocase(name, WS_TEXT_OF("server_no_context_takeover"))) {
        return set_flag(&p->server_no_takeover, has_value);
    }
    if (ws_text_eq_nocase(name, WS_TEXT_OF("client_no_context_takeover"))) {
        return set_flag(&p->client_no_takeover, has_value);
    }
    if (ws_text_eq_nocase(name, WS_TEXT_OF("server_max_window_bits"))) {
        return set_bits(&p->server_bits, has_value, value, true);
    }
    if (ws_text_eq_nocase(name, WS_TEXT_OF("client_max_window_bits"))) {
        return set_bits(&p->client_bits, has_value, value, answer);
    }
    return false;
}

/* One element of the list. False: another extension, or parameters that cannot be. */
static bool read_element(struct ws_text element, bool answer, struct parameters *p)
{
    struct ws_text part;
    *p = (struct parameters){0};
    ws_split_next(&element, ';', &part);
    if (!ws_text_eq_nocase(part, WS_TEXT_OF("permessage-deflate"))) {
        return false;
    }
    while (ws_split_next(&element, ';', &part)) {
        if (part.len == 0 || !read_parameter(p, part, answer)) {
            return false;
        }
    }
    return true;
}

static void describe(const struct ws_deflate *agreed, bool server_bits, bool client_bits, char out[WS_EXTENSION_MAX])
{
    size_t at = (size_t)snprintf(out, WS_EXTENSION_MAX, "permessage-deflate%s%s",
                                 agreed->server_no_takeover ? "; server_no_context_takeover" : "",
                                 agreed->client_no_takeover ? "; client_no_context_takeover" : "");
    if (server_bits) {
        at += (size_t)snprintf(out + at, WS_EXTENSION_MAX - at, "; server_max_window_bits=%u", agreed->server_bits);
    }
    if (client_bits) {
        snprintf(out + at, WS_EXTENSION_MAX - at, "; client_max_window_bits=%u", agreed->client_bits);
    }
}

/* ---- server ------------------------------------------------------------------------------------------ */

static unsigned or_default(unsigned bits)
{
    return bits != 0 ? bits : BITS_DEFAULT;
}

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

static void grant(const struct parameters *p, const struct ws_deflate_policy *policy, struct ws_deflate *agreed,
                  char answer[WS_EXTENSION_MAX])
{
    unsigned ours = or_default(policy->server_bits);
    unsigned theirs = or_default(policy->client_bits);
    *agreed = (struct ws_deflate){
        .on = true,
        .server_no_takeover = p->server_no_takeover || !policy->server_takeover,
        .client_no_takeover = p->client_no_takeover || !policy->client_takeover,
        .server_bits = (uint8_t)least(ours, p->server_bits != BITS_NONE ? p->server_bits : BITS_DEFAULT),
        .client_bits = BITS_DEFAULT,
    };
    bool tell_client = false;
    if (p->client_bits != BITS_NONE) {
        /* Only a client that named the parameter may be told a window. */
        agreed->client_bits = (uint8_t)least(theirs, p->client_bits > BITS_ANY ? p->client_bits : BITS_DEFAULT);
        tell_client = agreed->client_bits < BITS_DEFAULT;
    }
    describe(agreed, p->server_bits != BITS_NONE || agreed->server_bits < BITS_DEFAULT, tell_client, answer);
}

bool ws_deflate_accept(struct ws_headers headers, const struct ws_deflate_policy *policy, struct ws_deflate *agreed,
                       char answer[WS_EXTENSION_MAX])
{
    *agreed = (struct ws_deflate){0};
    answer[0] = '\0';
    struct ws_header header;
    for (size_t i = 0; policy->on && headers.at(headers.from, i, &header); i++) {
        if (!ws_text_eq_nocase(header.name, WS_TEXT_OF("sec-websocket-extensions"))) {
            continue;
        }
        struct ws_text rest = header.value;
        struct ws_text element;
        while (ws_list_next(&rest, &element)) {
            struct parameters p;
            if (read_element(element, false, &p)) {
                grant(&p, policy, agreed, answer);
                return true;
            }
        }
    }
    return false;
}

/* ---- client ------------------------------------------------------------------------------------------- */

/* The offer as it stands in our request. */
void ws_deflate_describe_offer(const struct ws_deflate_offer *offer, char out[WS_EXTENSION_MAX])
{
    unsigned server_bits = or_default(offer->server_bits);
    unsigned client_bits = or_default(offer->client_bits);
    struct ws_deflate wish = {
        .server_no_takeover = offer->server_no_takeover,
        .client_no_takeover = offer->client_no_takeover,
        .server_bits = (uint8_t)server_bits,
        .client_bits = (uint8_t)client_bits,
    };
    describe(&wish, server_bits < BITS_DEFAULT, client_bits < BITS_DEFAULT, out);
    if (client_bits == BITS_DEFAULT) {
        size_t len = strlen(out);
        snprintf(out + len, WS_EXTENSION_MAX - len, "; client_max_window_bits"); /* the server may choose */
    }
}

static bool agree(const struct parameters *p, const struct ws_deflate_offer *offer, struct ws_deflate *agreed)
{
    unsigned wished = or_default(offer->server_bits);
    unsigned ours = or_default(offer->client_bits);
    if (wished < BITS_DEFAULT && (p->server_bits == BITS_NONE || p->server_bits > wished)) {
        return false;
    }
    if (offer->server_no_takeover && !p->server_no_takeover) {
        return false;
    }
    if (p->client_bits > ours) {
        return false;
    }
    *agreed = (struct ws_deflate){
        .on = true,
        .server_no_takeover = p->server_no_takeover,
        .client_no_takeover = p->client_no_takeover || offer->client_no_takeover,
        .server_bits = (uint8_t)(p->server_bits != BITS_NONE ? p->server_bits : BITS_DEFAULT),
        .client_bits = (uint8_t)least(ours, p->client_bits != BITS_NONE ? p->client_bits : BITS_DEFAULT),
    };
    return true;
}

bool ws_deflate_agree(struct ws_headers headers, const struct ws_deflate_offer *offer, struct ws_deflate *agreed)
{
    *agreed = (struct ws_deflate){0};
    struct ws_header header;
    for (size_t i = 0; headers.at(headers.from, i, &header); i++) {
        if (!ws_text_eq_nocase(header.name, WS_TEXT_OF("sec-websocket-extensions"))) {
            continue;
        }
        struct ws_text rest = header.value;
        struct ws_text element;
        while (ws_list_next(&rest, &element)) {
            struct parameters p;
            if (!offer->on || agreed->on || !read_element(element, true, &p) || !agree(&p, offer, agreed)) {
                return false;
            }
        }
    }
    return true;
}
