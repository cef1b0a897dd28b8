#include "supervisor/worker_config.h"

#include "base/epoch.h"
#include "config/config.h"
#include "connection/accept.h"
#include "endpoint/loader.h"
#include "loop/config_hold.h"
#include "observe/log.h"
#include "route/site_index.h"
#include "supervisor/worker_certificates.h"
#include "supervisor/worker_loops.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONFIG_BYTES_MAX = 64 << 20 };

/* A struct listener stays for as long as the worker: connections point to it. */
struct worker_listener {
    struct list node;
    struct listener listener;
    bool wanted; /* by the newest config */
    bool accepting; /* the loops were told to */
};

/* A config on its way through the loops. */
struct change {
    struct config *config; /* a reference */
    unsigned generation;
    struct worker_listener *start[CONTROL_FDS_MAX];
    struct worker_listener *stop[CONTROL_FDS_MAX];
    unsigned start_count;
    unsigned stop_count;
};

static struct list listeners = {&listeners, &listeners};

/* The memory file's offset is where the supervisor stopped writing: it is not used. */
static bool read_memory(int fd, struct buffer *out)
{
    struct stat st;
    if (fstat(fd, &st) != 0) {
        return false;
    }
    size_t size = (size_t)st.st_size;
    char *to = size <= CONFIG_BYTES_MAX ? buffer_reserve(out, size + 1) : NULL;
    if (to == NULL) {
        errno = EFBIG;
        return false;
    }
    while (out->len < size) {
        ssize_t n = pread(fd, to + out->len, size - out->len, (off_t)out->len);
        if (n <= 0) {
            return false;
        }
        out->len += (size_t)n;
    }
    return true;
}

static struct config *read_config(struct control_message *message, struct buffer *why)
{
    int memory = control_take_fd(message);
    struct buffer text = BUFFER_EMPTY;
    struct config *config = NULL;
    struct config_errors errors = {0};
    if (memory < 0 || !read_memory(memory, &text)) {
        buffer_printf(why, "the config cannot be read from the supervisor: %s",
                      memory < 0 ? "none came" : strerror(errno));
    } else {
        config = config_parse(buffer_str(&text), control_text(message, "file"), NULL, &errors);
        if (config == NULL) {
            buffer_append_str(why, buffer_str(&errors.text));
        }
    }
    config_errors_free(&errors);
    buffer_free(&text);
    if (memory >= 0) {
        close(memory);
    }
    return config;
}

/* ---- listeners ------------------------------------------------------------------------------ */

static struct worker_listener *find_listener(uint32_t id)
{
    LIST_EACH(node, &listeners) {
        struct worker_listener *listener = LIST_ENTRY(node, struct worker_listener, node);
        if (listener->listener.id == id) {
            return listener;
        }
    }
    return NULL;
}

static double member(const cJSON *item, const char *name)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(item, name);
    return cJSON_IsNumber(value) ? value->valuedouble : 0;
}

static struct worker_listener *add_listener(const cJSON *item, int fd)
{
    struct worker_listener *listener = calloc(1, sizeof *listener);
    CHECK(listener != NULL);
    listener->listener = (struct listener){
        .id = (uint32_t)member(item, "id"),
        .fd = fd,
        .configured_port = (uint16_t)member(item, "configured_port"),
        .kind = (enum listener_kind)member(item, "kind"),
    };
    struct sockaddr_storage address;
    socklen_t len = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &len) == 0) {
        address_from_sockaddr(&listener->listener.address, &address);
    }
    list_append(&listeners, &listener->node);
    return listener;
}

/* Marks what the message wants and takes the sockets that came with it. */
static bool read_listeners(struct control_message *message, struct buffer *why)
{
    LIST_EACH(node, &listeners) {
        LIST_ENTRY(node, struct worker_listener, node)->wanted = false;
    }
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(message->body, "listeners");
    const cJSON *item;
    cJSON_ArrayForEach(item, list)
    {
        struct worker_listener *listener = find_listener((uint32_t)member(item, "id"));
        if (listener == NULL) {
            int fd = control_take_fd(message);
            if (fd < 0) {
                buffer_append_z(why, "a listening socket did not come along");
                return false;
            }
            listener = add_listener(item, fd);
        }
        listener->wanted = true;
    }
    return true;
}

/* ---- changes ---------------------------------------------------------------------------------- */

static void apply_on_loop(struct loop *loop, void *arg)
{
    struct change *change = arg;
    config_hold_set(loop, change->config);
    for (unsigned i = 0; i < change->start_count; i++) {
        if (!accept_start(loop, &change->start[i]->listener)) {
            log_error("thread %u cannot accept on port %u: %s", loop_index(loop) + 1,
                      change->start[i]->listener.address.port, strerror(errno));
        }
    }
    for (unsigned i = 0; i < change->stop_count; i++) {
        accept_stop(loop, &change->stop[i]->listener);
    }
}

static void send_done(unsigned generation, const char *text)
{
    cJSON *body = cJSON_CreateObject();
    cJSON_AddNumberToObject(body, "generation", generation);
    if (text != NULL) {
        cJSON_AddStringToObject(body, "text", text);
    }
    control_send(CONTROL_FD, CONTROL_CONFIG_DONE, body, NULL, 0);
    cJSON_Delete(body);
}

static void change_done(void *arg)
{
    struct change *change = arg;
    for (unsigned i = 0; i < change->stop_count; i++) {
        struct listener *listener = &change->stop[i]->listener;
        if (listener->fd >= 0) {
            close(listener->fd);
            listener->fd = -1;
        }
    }
    if (change->generation > 0) {
        send_done(change->generation, NULL);
    }
    config_unref(change->config);
    free(change);
    epoch_reclaim();
}

/* `generation` 0: nobody waits for an answer. */
static void broadcast_change(struct config *config, unsigned generation)
{
    struct change *change = calloc(1, sizeof *change);
    CHECK(change != NULL);
    change->config = config_ref(config);
    change->generation = generation;
    LIST_EACH(node, &listeners) {
        struct worker_listener *listener = LIST_ENTRY(node, struct worker_listener, node);
        if (listener->wanted && !listener->accepting) {
            change->start[change->start_count++] = listener;
        } else if (!listener->wanted && listener->accepting) {
            change->stop[change->stop_count++] = listener;
        }
        listener->accepting = listener->wanted;
    }
    worker_loops_broadcast(apply_on_loop, change_done, change);
}

/* ---- the steps of a worker's life ---------------------------------------------------------------- */

struct config *worker_config_first(struct control_message *message, struct buffer *why)
{
    struct config *config = read_config(message, why);
    if (config == NULL) {
        return NULL;
    }
    if (!read_listeners(message, why)) {
        config_unref(config);
        return NULL;
    }
    config_set_current(config_ref(config));
    return config;
}

void worker_config_accept(void)
{
    broadcast_change(config_current(), 0);
}

void worker_config_change(struct control_message *message)
{
    unsigned generation = (unsigned)control_number(message, "generation", 0);
    struct buffer why = BUFFER_EMPTY;
    struct config *config = read_config(message, &why);
    if (config == NULL || !read_listeners(message, &why)) {
        buffer_append_char(&why, '\0');
        send_done(generation, why.data);
        config_unref(config);
        buffer_free(&why);
        return;
    }
    log_level_set((enum log_level)config->log_level);
    config_set_current(config_ref(config));
    worker_certificates_use(config);
    endpoints_config_changed(config); /* before the index: what it opens anew goes by the new one */
    site_index_config_changed(config);
    broadcast_change(config, generation);
    config_unref(config);
    buffer_free(&why);
}

bool worker_config_listens(void)
{
    LIST_EACH(node, &listeners) {
        const struct worker_listener *listener = LIST_ENTRY(node, struct worker_listener, node);
        int listens = 0;
        socklen_t len = sizeof listens;
        if (listener->accepting && listener->listener.fd >= 0 &&
            (getsockopt(listener->listener.fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) != 0 || listens == 0)) {
            return false;
        }
    }
    return true;
}

void worker_config_close_listeners(void)
{
    LIST_EACH(node, &listeners) {
        struct worker_listener *listener = LIST_ENTRY(node, struct worker_listener, node);
        if (listener->listener.fd >= 0) {
            close(listener->listener.fd);
            listener->listener.fd = -1;
        }
    }
}

void worker_config_end(void)
{
    worker_config_close_listeners();
    LIST_EACH(node, &listeners) {
        list_remove(node);
        free(LIST_ENTRY(node, struct worker_listener, node));
    }
    config_set_current(NULL);
    epoch_reclaim();
}
