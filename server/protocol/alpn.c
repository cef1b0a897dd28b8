#include "protocol/alpn.h"

#include "base/check.h"
#include "config/config.h"
#include "connection/conn.h"
#include "protocol/http1.h"
#include "protocol/http2.h"

static bool http2_is_on(const struct config *config)
{
    return config->enable_http2;
}

static const struct {
    struct str name;
    const struct protocol *protocol;
    bool (*is_on)(const struct config *config); /* NULL: always */
} protocols[] = {
    {{"h2", 2}, &protocol_http2, http2_is_on},
    {{"http/1.1", 8}, &protocol_http1, NULL},
};

static bool is_offered(struct str offers, struct str name)
{
    while (offers.len > 0) {
        size_t len = (unsigned char)offers.ptr[0];
        if (len == 0 || len > offers.len - 1) {
            return false;
        }
        if (str_eq((struct str){offers.ptr + 1, len}, name)) {
            return true;
        }
        offers = str_from(offers, 1 + len);
    }
    return false;
}

struct str alpn_select(struct str offers, const struct config *config)
{
    for (size_t i = 0; i < ARRAY_LEN(protocols); i++) {
        bool on = protocols[i].is_on == NULL || protocols[i].is_on(config);
        if (on && is_offered(offers, protocols[i].name)) {
            return protocols[i].name;
        }
    }
    return STR_NONE;
}

const struct protocol *protocol_for_alpn(struct str name)
{
    for (size_t i = 0; i < ARRAY_LEN(protocols); i++) {
        if (str_eq(name, protocols[i].name)) {
            return protocols[i].protocol;
        }
    }
    return &protocol_http1;
}
