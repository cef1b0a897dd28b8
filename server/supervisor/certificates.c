#include "supervisor/certificates.h"

#include "base/file.h"
#include "config/config.h"
#include "connection/self_signed.h"
#include "supervisor/clock.h"
#include "supervisor/control.h"
#include "supervisor/supervisor_private.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    SETTLE_MS = 300, /* after an event, for the other files of a change */
    SETTLE_MOST_MS = 2000,
    LOOK_MS = 60000,
    WARN_MS = 86400000,
    CLIENT_CA_MAX = 4 << 20,
    EVENTS = IN_CLOSE_WRITE | IN_MOVED_TO | IN_MOVED_FROM | IN_CREATE | IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF |
             IN_ATTRIB,
    LINK_EVENTS = IN_MOVED_TO | IN_CREATE, /* where a link lies: another one takes its place */
    LINKS_MAX = 40, /* as the kernel follows */
};

void certificates_init(struct certificates *c)
{
    *c = (struct certificates){.events = -1};
    cert_dir_init(&c->dir);
}

void certificates_free(struct certificates *c)
{
    cert_dir_free(&c->dir);
    ticket_keys_wipe(&c->tickets);
    free(c->path);
    buffer_free(&c->client_ca);
    if (c->events >= 0) {
        close(c->events);
    }
}

/* ---- to the workers ----------------------------------------------------------------------------- */

/* The memory file of CERTIFICATES; -1 with errno. */
static int certificates_to_memory(const struct certificates *c)
{
    size_t room = 64 + 2 * c->client_ca.len;
    LIST_EACH(node, &c->dir.entries) {
        const struct cert_entry *entry = LIST_ENTRY(node, struct cert_entry, node);
        room += 2 * (entry->chain.len + entry->key.len) + strlen(entry->directory) * 6 + 256;
        room += entry->staple != NULL ? strlen(entry->staple) : 0;
    }
    struct buffer text = BUFFER_EMPTY;
    buffer_reserve(&text, room); /* at once: growing would leave copies of keys behind */
    buffer_append_z(&text, "{\"certificates\":[");
    bool first = true;
    LIST_EACH(node, &c->dir.entries) {
        const struct cert_entry *entry = LIST_ENTRY(node, struct cert_entry, node);
        if (entry->pair == NULL) {
            continue;
        }
        buffer_append_z(&text, first ? "{\"directory\":" : ",{\"directory\":");
        buffer_append_json(&text, str_of(entry->directory));
        buffer_append_z(&text, ",\"chain\":");
        buffer_append_json(&text, buffer_str(&entry->chain));
        buffer_append_z(&text, ",\"key\":");
        buffer_append_json(&text, buffer_str(&entry->key));
        if (entry->staple != NULL) {
            buffer_printf(&text, ",\"staple\":\"%s\",\"until\":%.0f,\"renew\":%.0f", entry->staple, entry->staple_until,
                          entry->staple_renew);
        }
        buffer_append_char(&text, '}');
        first = false;
    }
    buffer_append_z(&text, "],\"client_ca\":");
    buffer_append_json(&text, buffer_str(&c->client_ca));
    buffer_append_char(&text, '}');
    int fd = memfd_create("kiln certificates", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    bool ok = fd >= 0 && !text.failed && fd_write_all(fd, text.data, text.len) &&
              fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) == 0;
    if (text.data != NULL) {
        OPENSSL_cleanse(text.data, text.cap);
    }
    buffer_free(&text);
    if (!ok && fd >= 0) {
        close(fd);
    }
    return ok ? fd : -1;
}

static bool send_certificates(const struct certificates *c, struct worker_process *worker)
{
    int memory = certificates_to_memory(c);
    bool ok = memory >= 0 && worker->control >= 0 &&
              control_send(worker->control, CONTROL_CERTIFICATES, NULL, &memory, 1) == CONTROL_OK;
    worker->certificates_owed += ok;
    if (memory >= 0) {
        close(memory);
    }
    return ok;
}

static bool send_tickets(const struct certificates *c, struct worker_process *worker)
{
    struct buffer text = BUFFER_EMPTY;
    ticket_keys_print(&c->tickets, &text);
    cJSON *body = cJSON_CreateObject();
    cJSON *keys = text.failed ? NULL : cJSON_AddStringToObject(body, "keys", text.data);
    bool ok = keys != NULL && worker->control >= 0 &&
              control_send(worker->control, CONTROL_TICKETS, body, NULL, 0) == CONTROL_OK;
    if (keys != NULL) {
        OPENSSL_cleanse(keys->valuestring, text.len);
    }
    cJSON_Delete(body);
    if (text.data != NULL) {
        OPENSSL_cleanse(text.data, text.cap);
    }
    buffer_free(&text);
    return ok;
}

bool certificates_tell(struct supervisor *s, struct worker_process *worker)
{
    const struct certificates *c = &s->certificates;
    return c->path == NULL || (send_certificates(c, worker) && send_tickets(c, worker));
}

bool certificates_are_taken(const struct supervisor *s)
{
    LIST_EACH(node, &s->workers) {
        const struct worker_process *worker = LIST_ENTRY(node, struct worker_process, node);
        if (worker->certificates_owed > 0 && worker->state != WORKER_DRAINING) {
            return false;
        }
    }
    return true;
}

void certificates_staple(struct supervisor *s, const struct control_message *message)
{
    const char *fingerprint = control_text(message, "fingerprint");
    const char *der = control_text(message, "der");
    if (fingerprint == NULL || der == NULL) {
        return;
    }
    LIST_EACH(node, &s->certificates.dir.entries) {
        struct cert_entry *entry = LIST_ENTRY(node, struct cert_entry, node);
        char text[65];
        if (entry->pair == NULL) {
            continue;
        }
        cert_pair_print_fingerprint(entry->pair, text);
        if (strcmp(text, fingerprint) == 0 && strspn(der, "0123456789abcdef") == strlen(der)) {
            free(entry->staple);
            entry->staple = strdup(der);
            entry->staple_until = control_number(message, "until", 0);
            entry->staple_renew = control_number(message, "renew", 0);
        }
    }
}

static void tell_all(struct supervisor *s, bool (*send)(const struct certificates *, struct worker_process *),
                     const char *what)
{
    LIST_EACH(node, &s->workers) {
        struct worker_process *worker = LIST_ENTRY(node, struct worker_process, node);
        if (!send(&s->certificates, worker)) {
            log_error("worker %d does not take %s: %s", (int)worker->pid, what, strerror(errno));
        }
    }
}

/* ---- watching -------------------------------------------------------------------------------------- */

static void watch(const struct certificates *c, const char *path)
{
    /* What cannot be watched is seen when it is looked at. A directory may be here for several reasons. */
    inotify_add_watch(c->events, path, EVENTS | IN_MASK_ADD);
}

/* Watches where the first symbolic link on a way lies, and puts its target in its place. False: there is none. */
static bool follow_link(const struct certificates *c, char path[PATH_MAX])
{
    char target[PATH_MAX];
    char behind_it[PATH_MAX];
    for (char *end = path; *end != '\0';) {
        end += strspn(end, "/");
        end += strcspn(end, "/");
        char behind = *end;
        *end = '\0';
        ssize_t len = readlink(path, target, sizeof target);
        *end = behind;
        if (len < 0) {
            continue;
        }
        size_t rest = strlen(end) + 1;
        char *name = end;
        while (name > path && name[-1] != '/') {
            name--;
        }
        char *to = len > 0 && target[0] == '/' ? path : name;
        if ((size_t)(to - path) + (size_t)len + rest > PATH_MAX) {
            return false;
        }
        memcpy(behind_it, end, rest);
        *name = '\0';
        inotify_add_watch(c->events, name > path ? path : ".", LINK_EVENTS | IN_MASK_ADD);
        memcpy(to, target, (size_t)len);
        memcpy(to + len, behind_it, rest);
        return true;
    }
    return false;
}

/* Every link on the way to a file, and where the file lies at last. */
static void watch_way(const struct certificates *c, const char *path)
{
    char way[PATH_MAX];
    size_t len = strlen(path) + 1;
    if (len > sizeof way) {
        return;
    }
    memcpy(way, path, len);
    for (int links = 0; links < LINKS_MAX && follow_link(c, way); links++) {
    }
    char *slash = strrchr(way, '/');
    if (slash != NULL && slash > way) {
        *slash = '\0';
        watch(c, way);
    }
}

static void watch_all(struct certificates *c)
{
    if (c->events < 0) {
        c->events = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    }
    watch(c, c->path);
    DIR *d = opendir(c->path);
    const struct dirent *item;
    while (d != NULL && (item = readdir(d)) != NULL) {
        char path[PATH_MAX];
        int len = snprintf(path, sizeof path, "%s/%s", c->path, item->d_name);
        if (item->d_name[0] != '.' && len > 0 && (size_t)len < sizeof path) {
            inotify_add_watch(c->events, path, EVENTS | IN_ONLYDIR | IN_MASK_ADD);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    LIST_EACH(node, &c->dir.entries) {
        const struct cert_entry *entry = LIST_ENTRY(node, struct cert_entry, node);
        watch_way(c, entry->chain_path);
        watch_way(c, entry->key_path);
    }
}

void certificates_read_events(struct supervisor *s)
{
    struct certificates *c = &s->certificates;
    char events[4096];
    while (read(c->events, events, sizeof events) > 0) {
    }
    uint64_t now = clock_now_ms();
    if (c->first_event_ms == 0) {
        c->first_event_ms = now;
    }
    uint64_t last = c->first_event_ms + SETTLE_MOST_MS;
    c->rescan_at_ms = now + SETTLE_MS < last ? now + SETTLE_MS : last;
}

/* ---- what is there ----------------------------------------------------------------------------------- */

static const struct cert_entry *find_ours(const struct certificates *c)
{
    LIST_EACH(node, &c->dir.entries) {
        const struct cert_entry *entry = LIST_ENTRY(node, struct cert_entry, node);
        if (entry->pair != NULL && self_signed_is_ours(entry->pair)) {
            return entry;
        }
    }
    return NULL;
}

/* With no certificate at all, or with one of ours alone that ends soon. */
static bool make_self_signed(struct certificates *c)
{
    size_t count = cert_dir_count(&c->dir);
    const struct cert_entry *ours = find_ours(c);
    bool ends = ours != NULL && ours->pair->not_after - time(NULL) < (time_t)CERT_WARN_DAYS * 86400;
    if (count > 0 && !ends) {
        return false;
    }
    struct buffer why = BUFFER_EMPTY;
    bool ok = self_signed_make(c->path, &why);
    if (ok) {
        log_notice("a self-signed certificate for localhost was made in %s/" SELF_SIGNED_DIRECTORY
                   "/: browsers ask before they trust it; put a real one beside it",
                   c->path);
    } else {
        log_error("there is no certificate, and none can be made: %.*s; HTTPS will not answer",
                  STR_ARG(buffer_str(&why)));
    }
    buffer_free(&why);
    return ok;
}

static bool scan(struct certificates *c)
{
    c->first_event_ms = 0;
    c->rescan_at_ms = clock_now_ms() + LOOK_MS;
    watch_all(c);
    bool changed = cert_dir_scan(&c->dir, c->path);
    if (make_self_signed(c)) {
        changed = cert_dir_scan(&c->dir, c->path) || changed;
    }
    watch_all(c);
    return changed;
}

static void scan_and_tell(struct supervisor *s)
{
    if (scan(&s->certificates)) {
        tell_all(s, send_certificates, "the certificates");
    }
}

static void warn_expiry(struct certificates *c)
{
    c->warn_at_ms = clock_now_ms() + WARN_MS;
    cert_dir_warn_expiry(&c->dir, time(NULL));
}

static void rotate(struct supervisor *s)
{
    struct certificates *c = &s->certificates;
    c->rotate_at_ms = clock_now_ms() + (uint64_t)(s->config->ticket_rotation * 1000);
    if (!ticket_keys_rotate(&c->tickets)) {
        log_error("no new key for TLS session tickets: the system has no random bytes; the one before stays in use");
        return;
    }
    tell_all(s, send_tickets, "the ticket keys");
}

static void read_client_ca(struct certificates *c, const struct config *config)
{
    buffer_free(&c->client_ca);
    if (config->client_certificates != CLIENT_CERTIFICATES_NONE &&
        !file_read(config->client_ca.ptr, CLIENT_CA_MAX, &c->client_ca)) {
        log_error("ClientCA %s cannot be read: %s; no TLS client can be asked for a certificate", config->client_ca.ptr,
                  strerror(errno));
        buffer_free(&c->client_ca);
    }
}

void certificates_config_changed(struct supervisor *s)
{
    struct certificates *c = &s->certificates;
    if (s->config->https_ports.count == 0) {
        return; /* what is there may still be in use by workers that end */
    }
    struct str path = s->config->cert_dir;
    if (path.len > 1 && path.ptr[path.len - 1] == '/') {
        path.len--;
    }
    if (c->path == NULL || !str_eq(str_of(c->path), path)) {
        cert_dir_forget(&c->dir);
        free(c->path);
        c->path = strndup(path.ptr, path.len);
    }
    read_client_ca(c, s->config);
    scan(c);
    warn_expiry(c);
    if (c->rotate_at_ms == 0 && c->tickets.count == 0) {
        rotate(s);
    }
    uint64_t latest = clock_now_ms() + (uint64_t)(s->config->ticket_rotation * 1000);
    if (c->rotate_at_ms == 0 || c->rotate_at_ms > latest) {
        c->rotate_at_ms = latest;
    }
    /* Also those that began before there was HTTPS. */
    tell_all(s, send_certificates, "the certificates");
    tell_all(s, send_tickets, "the ticket keys");
}

/* ---- time -------------------------------------------------------------------------------------------- */

uint64_t certificates_due(const struct supervisor *s)
{
    const struct certificates *c = &s->certificates;
    if (c->path == NULL || s->shutting_down) {
        return UINT64_MAX;
    }
    uint64_t due = c->rescan_at_ms < c->warn_at_ms ? c->rescan_at_ms : c->warn_at_ms;
    return c->rotate_at_ms < due ? c->rotate_at_ms : due;
}

void certificates_run_due(struct supervisor *s)
{
    struct certificates *c = &s->certificates;
    uint64_t now = clock_now_ms();
    if (c->path == NULL || s->shutting_down) {
        return;
    }
    if (c->rescan_at_ms <= now) {
        scan_and_tell(s);
    }
    if (c->warn_at_ms <= now) {
        warn_expiry(c);
    }
    if (c->rotate_at_ms <= now) {
        rotate(s);
    }
}

/* ---- commands ----------------------------------------------------------------------------------------- */

void certificates_load(struct supervisor *s)
{
    LIST_EACH(node, &s->certificates.dir.entries) {
        struct cert_entry *entry = LIST_ENTRY(node, struct cert_entry, node);
        entry->chain_stamp = (struct cert_stamp){0};
    }
    if (s->certificates.path != NULL) {
        scan_and_tell(s);
    }
}

void certificates_clear(struct supervisor *s)
{
    cert_dir_forget(&s->certificates.dir);
    if (s->certificates.path != NULL) {
        scan(&s->certificates);
        tell_all(s, send_certificates, "the certificates");
    }
}
