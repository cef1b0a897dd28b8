/* What a client reads before it is connected: URLs, and the answers of both kinds of proxies, in one piece and byte by
 * byte, which must come to the same. */
#include "fuzz.h"

#include "wsio/proxy.h"

#include <stdlib.h>
#include <string.h>

static enum proxy_result talk(const struct proxy_url *proxy, const uint8_t *data, size_t size, size_t step)
{
    struct proxy_dialogue *d = malloc(sizeof *d);
    proxy_begin(d, proxy, "example.com", 443, false);
    enum proxy_result result = PROXY_MORE;
    for (size_t at = 0; at < size && result == PROXY_MORE; at += step) {
        size_t n = size - at < step ? size - at : step;
        size_t used;
        result = proxy_receive(d, data + at, n, &used);
        if (used > n || d->out.len > 2048) {
            abort();
        }
        d->out.len = 0;
    }
    proxy_end(d);
    free(d);
    return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char error[URL_ERROR_MAX];
    char *text = malloc(size + 1);
    memcpy(text, data, size);
    text[size] = '\0';
    struct url url;
    struct proxy_url parsed;
    if (url_parse(&url, text, error)) {
        if (url.target[0] != '/' || url.host[0] == '\0' || url.port == 0 || url.port > 65535) {
            abort();
        }
        url_free(&url);
    }
    proxy_url_parse(&parsed, text, error);
    free(text);
    const struct proxy_url proxies[] = {{.kind = PROXY_HTTP},
                                        {.kind = PROXY_SOCKS5},
                                        {.kind = PROXY_SOCKS5, .user = "u", .password = "p", .has_user = true}};
    for (size_t i = 0; i < sizeof proxies / sizeof proxies[0] && size < 4096; i++) {
        if (talk(&proxies[i], data, size, size + 1) != talk(&proxies[i], data, size, 1)) {
            abort();
        }
    }
    return 0;
}
