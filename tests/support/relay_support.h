/* A worker's side of a channel without a process behind it: requests with a client that only counts, and bytes
 * that are fed as if a host had sent them. For the unit test and the fuzz target of server/isolate. */
#ifndef KILN_TESTS_RELAY_SUPPORT_H
#define KILN_TESTS_RELAY_SUPPORT_H

#include "base/check.h"
#include "config/config.h"
#include "endpoint/home.h"
#include "isolate/isolate_private.h"
#include "isolate/relay.h"
#include "loop/config_hold.h"
#include "loop/loop_private.h"
#include "observe/log.h"
#include "request/request.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FAKE_REQUESTS = 3 };

/* What the client of a request has seen. */
struct fake_client {
    struct conn conn;
    struct request *req; /* held by the test */
    unsigned heads;
    unsigned ends; /* finished, cut or an error page */
    bool cut;
    int status;
    uint64_t bytes;
    uint64_t promised;
};

static struct fake_client fake_clients[FAKE_REQUESTS];
static struct loop *fake_loop;
static struct isolate *fake_isolate;
static struct host *fake_host;
static struct channel *fake_channel;
static struct module *fake_module;
static struct endpoint fake_endpoint;
static const struct transport fake_transport = {.name = "fake"};

static struct fake_client *client_of(const struct request *req)
{
    return req->stream;
}

static void fake_send_head(struct request *req, uint64_t length)
{
    struct fake_client *client = client_of(req);
    CHECK(client->heads == 0 && client->ends == 0);
    CHECK(req->response.status >= 200 && req->response.status <= 599);
    for (unsigned i = 0; i < req->response.header_count; i++) {
        struct response_header header = req->response.headers[i];
        for (size_t j = 0; j < header.name.len; j++) {
            CHECK(header.name.ptr[j] > ' ' && header.name.ptr[j] != ':' && header.name.ptr[j] < 0x7f);
        }
        for (size_t j = 0; j < header.value.len; j++) {
            CHECK(header.value.ptr[j] != '\r' && header.value.ptr[j] != '\n' && header.value.ptr[j] != '\0');
        }
        CHECK(header.name.len > 0 && !response_header_is_servers_own(header.name));
    }
    client->heads++;
    client->status = req->response.status;
    client->promised = length;
}

static void fake_send_body(struct request *req, const void *data, size_t len)
{
    struct fake_client *client = client_of(req);
    const volatile uint8_t *bytes = data;
    CHECK(client->heads == 1 && client->ends == 0);
    if (len > 0) {
        (void)bytes[0];
        (void)bytes[len - 1];
    }
    client->bytes += len;
    CHECK(client->bytes <= client->promised);
}

static void fake_send_ref(struct request *req, const void *data, size_t len, void (*release)(void *), void *arg)
{
    fake_send_body(req, data, len);
    if (release != NULL) {
        release(arg);
    }
}

static void fake_send_file(struct request *req, int fd, off_t offset, uint64_t len, void (*release)(void *), void *arg)
{
    struct fake_client *client = client_of(req);
    CHECK(client->heads == 1 && client->ends == 0 && offset >= 0 && lseek(fd, 0, SEEK_END) >= offset + (off_t)len);
    client->bytes += len;
    CHECK(client->bytes <= client->promised);
    release(arg);
}

static void fake_end(struct request *req)
{
    client_of(req)->ends++;
    CHECK(client_of(req)->ends == 1);
    request_end(req);
}

static void fake_abort(struct request *req)
{
    client_of(req)->cut = true;
    fake_end(req);
}

static void fake_ready(struct request *req, const struct ready_head *head, const void *body, size_t len,
                       void (*release)(void *), void *arg)
{
    (void)head, (void)body, (void)len, (void)release, (void)arg;
    fake_end(req);
}

static void fake_interim(struct request *req, int status)
{
    (void)req, (void)status;
}

/* Twice a few bytes, then the end. */
static void fake_resume(struct request *req)
{
    req->body.flowing = true;
    while (req->body.flowing && req->body.received < req->body.length) {
        req->body.received += 4;
        req->body.sink->on_bytes(req, (const uint8_t *)"body", 4);
    }
    if (req->body.flowing) {
        req->body.flowing = false;
        req->body.complete = true;
        req->body.sink->on_end(req);
    }
}

static void fake_pause(struct request *req)
{
    req->body.flowing = false;
}

static size_t fake_pending(struct request *req)
{
    (void)req;
    return 0;
}

static void fake_nothing(struct request *req)
{
    (void)req;
}

static void fake_error(struct request *req, int status, const char *detail)
{
    (void)detail;
    CHECK(status >= 400 && status <= 599);
    client_of(req)->status = status;
    fake_end(req);
}

static const struct request_ops fake_ops = {
    .send_head = fake_send_head,
    .send_body = fake_send_body,
    .send_body_ref = fake_send_ref,
    .send_body_file = fake_send_file,
    .finish = fake_end,
    .abort = fake_abort,
    .send_ready = fake_ready,
    .send_interim = fake_interim,
    .body_resume = fake_resume,
    .body_pause = fake_pause,
    .pending = fake_pending,
    .notify_drained = fake_nothing,
    .flush = fake_nothing,
    .send_error = fake_error,
};

/* Once. */
static void fake_start(void)
{
    struct config_errors errors = {0};
    struct config *config = config_parse(STR("{}"), NULL, NULL, &errors);
    CHECK(config != NULL);
    config_errors_free(&errors);
    log_level_set((enum log_level)(LOG_ERROR + 1));
    fake_loop = loop_create(0);
    CHECK(fake_loop != NULL);
    config_hold_set(fake_loop, config);
    size_t size = sizeof *fake_module + sizeof fake_module->uses[0];
    fake_module = aligned_alloc(64, (size + 63) & ~(size_t)63);
    CHECK(fake_module != NULL);
    memset(fake_module, 0, size);
    fake_module->loops = 1;
    fake_module->endpoint = &fake_endpoint;
    fake_module->entry.home = &home_isolated;
    fake_endpoint.file = STR("/fake._c");
    fake_endpoint.magic = ENDPOINT_MAGIC;
}

static void fake_request(struct fake_client *client)
{
    *client = (struct fake_client){.conn.loop = fake_loop, .conn.transport = &fake_transport};
    struct request *req = request_create(&client->conn, &fake_ops, client);
    struct kiln_context *ctx = arena_zalloc(&req->arena, sizeof *ctx);
    client->req = req;
    req->method_text = STR("POST");
    req->target = req->path = req->raw_path = STR("/x");
    req->body.length = 8;
    req->body.present = true;
    ctx->magic = CONTEXT_MAGIC;
    ctx->req = req;
    ctx->endpoint = &fake_endpoint;
    ctx->module = fake_module;
    req->answer_state = ctx;
    module_use(fake_module, 0);
    request_hold(req);
    relay_start(ctx);
}

/* A channel with FAKE_REQUESTS requests under way: their ids are 1 << 32 and the number of each. */
static void fake_begin(void)
{
    size_t size = sizeof *fake_isolate + sizeof fake_isolate->berths[0];
    fake_isolate = aligned_alloc(64, (size + 63) & ~(size_t)63);
    fake_host = calloc(1, sizeof *fake_host);
    fake_channel = malloc(sizeof *fake_channel);
    CHECK(fake_isolate != NULL && fake_host != NULL && fake_channel != NULL);
    memset(fake_isolate, 0, size);
    fake_isolate->magic = ISOLATE_MAGIC;
    fake_isolate->loops = 1;
    fake_isolate->object = -1;
    fake_isolate->file = strdup("/fake._c");
    atomic_init(&fake_isolate->references, 2); /* ours, the host's */
    relay_berth_init(&fake_isolate->berths[0], fake_isolate);
    fake_module->away = fake_isolate;
    fake_host->isolate = fake_isolate;
    fake_host->control = fake_host->log = -1;
    list_init(&fake_host->node);
    for (size_t i = 0; i < ARRAY_LEN(fake_host->channels); i++) {
        fake_host->channels[i] = -1;
    }
    fake_host->begun = mmap(NULL, sizeof(struct begun) * ENDPOINT_MAX_LOOPS, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    atomic_init(&fake_host->references, 2); /* ours, the channel's */
    channel_init(fake_channel, fake_host, &fake_isolate->berths[0], 0);
    CHECK(wire_open(&fake_channel->wire, NULL, -1, channel_calls()));
    fake_channel->wire.loop = fake_loop;
    fake_isolate->berths[0].channel = fake_channel;
    for (size_t i = 0; i < FAKE_REQUESTS; i++) {
        fake_request(&fake_clients[i]);
    }
}

static inline uint64_t fake_id(unsigned i)
{
    return UINT64_C(1) << 32 | i;
}

/* The clients that are left go; nothing may remain. */
static void fake_finish(void)
{
    for (size_t i = 0; i < FAKE_REQUESTS; i++) {
        struct request *req = fake_clients[i].req;
        if (!req->ended) {
            request_gone(req);
            request_end(req);
        }
        request_release(req);
    }
    CHECK(atomic_load(&fake_host->live) == 0);
    CHECK(fake_module->uses[0].begun == fake_module->uses[0].ended);
    CHECK(list_is_empty(&fake_isolate->berths[0].waiting));
    if (!fake_channel->wire.ended) {
        wire_close(&fake_channel->wire);
        channel_calls()->on_end(&fake_channel->wire, NULL);
    }
    loop_run_deferred(fake_loop);
    host_unref(fake_host);
    isolate_unref(fake_isolate);
}

#endif
