#include "supervisor/worker_certificates.h"

#include "base/check.h"
#include "config/config.h"
#include "connection/certs.h"
#include "connection/handshakes.h"
#include "connection/hex.h"
#include "connection/staple.h"
#include "connection/tickets.h"
#include "connection/tls_context.h"
#include "observe/log.h"

#include <openssl/crypto.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CERTIFICATES_BYTES_MAX = 1 << 30 };

static struct cert_source *sources; /* NULL: none were sent */
static size_t source_count;
static struct buffer client_ca; /* PEM of ClientCA */

static const char *member(const cJSON *item, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, name));
    return text != NULL ? text : "";
}

static void forget(void)
{
    for (size_t i = 0; i < source_count; i++) {
        free((char *)(uintptr_t)sources[i].directory.ptr);
        cert_pair_unref(sources[i].pair);
    }
    free(sources);
    sources = NULL;
    source_count = 0;
}

static void read_staple(const cJSON *item, struct cert_pair *pair)
{
    struct str text = str_of(member(item, "staple"));
    unsigned char *der = text.len > 0 ? malloc(text.len / 2 + 1) : NULL;
    if (der != NULL && hex_read(text, der)) {
        staple_set(pair, der, text.len / 2,
                   (time_t)cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(item, "until")),
                   (time_t)cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(item, "renew")));
    }
    free(der);
}

/* On the thread of staple.c. */
static void tell_supervisor(const struct cert_pair *pair, const struct staple *staple)
{
    char fingerprint[65];
    char *der = malloc(staple->len * 2 + 1);
    if (der == NULL) {
        return;
    }
    cert_pair_print_fingerprint(pair, fingerprint);
    hex_print(staple->der, staple->len, der);
    cJSON *body = cJSON_CreateObject();
    cJSON_AddStringToObject(body, "fingerprint", fingerprint);
    cJSON_AddStringToObject(body, "der", der);
    cJSON_AddNumberToObject(body, "until", (double)staple->until);
    cJSON_AddNumberToObject(body, "renew", (double)staple->renew);
    control_send(CONTROL_FD, CONTROL_STAPLE, body, NULL, 0);
    cJSON_Delete(body);
    free(der);
}

static void watch_staples(void)
{
    struct cert_pair **pairs = calloc(source_count + 1, sizeof *pairs); /* NOLINT(bugprone-sizeof-expression) */
    CHECK(pairs != NULL);
    for (size_t i = 0; i < source_count; i++) {
        pairs[i] = sources[i].pair;
    }
    staples_watch(pairs, source_count, tell_supervisor);
    free(pairs);
}

/* The supervisor has tried the pair already. */
static void add_source(cJSON *item)
{
    struct buffer why = BUFFER_EMPTY;
    cJSON *key = cJSON_GetObjectItemCaseSensitive(item, "key");
    struct str key_text = str_of(member(item, "key"));
    struct cert_pair *pair = cert_pair_parse(str_of(member(item, "chain")), key_text, &why);
    if (cJSON_IsString(key)) {
        OPENSSL_cleanse(key->valuestring, key_text.len);
    }
    if (pair == NULL) {
        log_error("certificate %s not taken: %.*s", member(item, "directory"), STR_ARG(buffer_str(&why)));
    } else {
        read_staple(item, pair);
        char *directory = strdup(member(item, "directory"));
        CHECK(directory != NULL);
        sources[source_count++] = (struct cert_source){str_of(directory), pair};
    }
    buffer_free(&why);
}

static cJSON *read_memory(int fd)
{
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0 || st.st_size <= 0 || st.st_size > CERTIFICATES_BYTES_MAX) {
        return NULL;
    }
    void *text = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (text == MAP_FAILED) {
        return NULL;
    }
    cJSON *json = cJSON_ParseWithLength(text, (size_t)st.st_size);
    munmap(text, (size_t)st.st_size);
    return json;
}

void worker_certificates_use(const struct config *config)
{
    if (sources == NULL) {
        return;
    }
    struct buffer why = BUFFER_EMPTY;
    struct cert_set *set = cert_set_make(sources, source_count, config->default_certificate);
    if (set == NULL || !tls_context_use(config, set, buffer_str(&client_ca), &why)) {
        log_error("the certificates are not taken over: %.*s", STR_ARG(buffer_str(&why)));
    }
    cert_set_unref(set);
    buffer_free(&why);
    watch_staples();
}

static void take(struct control_message *message)
{
    int fd = control_take_fd(message);
    cJSON *json = read_memory(fd);
    if (fd >= 0) {
        close(fd);
    }
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, "certificates");
    if (!cJSON_IsArray(list)) {
        log_error("the certificates cannot be read from the supervisor; those before stay in use");
        cJSON_Delete(json);
        return;
    }
    forget();
    sources = calloc((size_t)cJSON_GetArraySize(list) + 1, sizeof *sources);
    CHECK(sources != NULL);
    cJSON *item;
    cJSON_ArrayForEach(item, list)
    {
        add_source(item);
    }
    buffer_free(&client_ca);
    buffer_append_z(&client_ca, member(json, "client_ca"));
    cJSON_Delete(json);
    if (config_current() != NULL) {
        worker_certificates_use(config_current());
    }
}

void worker_certificates_take(struct control_message *message)
{
    take(message);
    control_send(CONTROL_FD, CONTROL_CERTIFICATES_DONE, NULL, NULL, 0);
}

void worker_tickets_take(struct control_message *message)
{
    cJSON *item = cJSON_GetObjectItemCaseSensitive(message->body, "keys");
    struct str text = str_of(cJSON_IsString(item) ? item->valuestring : NULL);
    struct ticket_keys keys;
    if (!ticket_keys_parse(text, &keys) || !tickets_use(&keys)) {
        log_error("the keys of TLS session tickets cannot be used; those before stay in use");
    }
    ticket_keys_wipe(&keys);
    if (text.len > 0) {
        OPENSSL_cleanse(item->valuestring, text.len);
    }
}

void worker_certificates_end(void)
{
    staples_end();
    tls_context_end();
    tickets_end();
    handshakes_free();
    buffer_free(&client_ca);
    forget();
}
