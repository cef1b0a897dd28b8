#include "supervisor/upgrade.h"

#include "config/config.h"
#include "supervisor/clock.h"
#include "supervisor/control.h"
#include "supervisor/notify.h"
#include "supervisor/program.h"
#include "supervisor/status.h"
#include "supervisor/supervisor_private.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define ELDER_VARIABLE "KILN_UPGRADE"

extern char **environ;

enum {
    INHERIT_MS = 10000,
    TELL_MS = 1000, /* between two times that figures are told */
    SEND_TRIES = 20,
    SEND_MS = 50,
    CHUNK_BYTES = 24576, /* of a message, well below CONTROL_BODY_MAX */
    ENDPOINT_BYTES = 160,
};

/* ---- the elder ------------------------------------------------------------------------------ */

static int spawn_heir(pid_t *pid, int control)
{
    posix_spawn_file_actions_t actions;
    int error = posix_spawn_file_actions_init(&actions);
    if (error != 0) {
        return error;
    }
    error = posix_spawn_file_actions_adddup2(&actions, control, CONTROL_FD);
    char number[16];
    snprintf(number, sizeof number, "%d", (int)getpid());
    setenv(ELDER_VARIABLE, number, 1);
    notify_share(true);
    if (error == 0) {
        error = posix_spawn(pid, program_path(), &actions, NULL, program_arguments(), environ);
    }
    notify_share(false);
    unsetenv(ELDER_VARIABLE);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

static void send_inheritance(struct supervisor *s)
{
    int fds[CONTROL_FDS_MAX];
    unsigned count = 0;
    cJSON *body = cJSON_CreateObject();
    cJSON *list = cJSON_AddArrayToObject(body, "listeners");
    for (unsigned i = 0; i < s->listeners.count; i++) {
        const struct listener *listener = &s->listeners.items[i];
        cJSON *item = cJSON_CreateObject();
        cJSON_AddNumberToObject(item, "kind", listener->kind);
        cJSON_AddNumberToObject(item, "configured_port", listener->configured_port);
        cJSON_AddItemToArray(list, item);
        fds[count++] = listener->fd;
    }
    cJSON_AddBoolToObject(body, "pid_file", s->pid_file.fd >= 0);
    if (s->pid_file.fd >= 0) {
        fds[count++] = s->pid_file.fd;
    }
    if (s->admin.socket.fd >= 0) {
        cJSON_AddStringToObject(body, "admin", s->admin.socket.text);
        fds[count++] = s->admin.socket.fd;
    }
    cJSON_AddItemToObject(body, "quarantines", supervisor_print_quarantines(s, CHUNK_BYTES));
    struct buffer tickets = BUFFER_EMPTY;
    ticket_keys_print(&s->certificates.tickets, &tickets);
    cJSON *secret = tickets.len > 0 ? cJSON_AddStringToObject(body, "tickets", tickets.data) : NULL;
    control_send(s->upgrade.control, CONTROL_INHERIT, body, fds, count);
    if (secret != NULL) {
        OPENSSL_cleanse(secret->valuestring, tickets.len);
        OPENSSL_cleanse(tickets.data, tickets.cap);
    }
    buffer_free(&tickets);
    cJSON_Delete(body);
}

static void forget_heir(struct supervisor *s)
{
    struct upgrade *u = &s->upgrade;
    if (u->control >= 0) {
        close(u->control);
        u->control = -1;
    }
    u->until_ms = 0;
    u->heir = 0;
    buffer_free(&u->failure);
}

/* The server goes on as if nothing had been tried. */
static void give_up(struct supervisor *s, const char *why)
{
    struct upgrade *u = &s->upgrade;
    if (u->heir > 0) {
        kill(u->heir, SIGKILL); /* its worker ends with it */
    }
    log_error("not upgraded: %s; process %d goes on serving", why, (int)getpid());
    pid_file_write(&s->pid_file);
    notify_send("READY=1");
    forget_heir(s);
}

void upgrade_begin(struct supervisor *s)
{
    struct upgrade *u = &s->upgrade;
    if (s->shutting_down) {
        return;
    }
    if (u->heir > 0) {
        log_notice("an upgrade is under way already: process %d starts", (int)u->heir);
        return;
    }
    if (program_path() == NULL) {
        log_error("not upgraded: the program file that was started cannot be told");
        return;
    }
    int ends[2];
    if (!control_pair(ends)) {
        log_error("not upgraded: %s", strerror(errno));
        return;
    }
    notify_send("RELOADING=1");
    u->control = ends[0];
    u->until_ms = clock_now_ms() + (uint64_t)(s->config->upgrade_timeout * 1000);
    int error = spawn_heir(&u->heir, ends[1]);
    close(ends[1]);
    if (error != 0) {
        char text[4352];
        snprintf(text, sizeof text, "%s cannot be started: %s", program_path(), strerror(error));
        u->heir = 0;
        give_up(s, text);
        return;
    }
    log_notice("upgrade: %s starts as process %d", program_path(), (int)u->heir);
    send_inheritance(s); /* who takes no messages has ended or will not be ready: either is noticed and says more */
}

/* Waits a little for room, which the heir makes as soon as it comes to it. */
static bool send_patiently(int socket, enum control_kind kind, const cJSON *body)
{
    for (int tries = 0; tries < SEND_TRIES; tries++) {
        enum control_result result = control_send(socket, kind, body, NULL, 0);
        if (result != CONTROL_BAD || errno != EAGAIN) {
            return result == CONTROL_OK;
        }
        struct pollfd wait = {.fd = socket, .events = POLLOUT};
        poll(&wait, 1, SEND_MS);
    }
    return false;
}

static bool tell_endpoints(struct supervisor *s)
{
    struct list *node = s->ledger.accounts.next;
    while (node != &s->ledger.accounts) {
        cJSON *body = cJSON_CreateObject();
        cJSON *list = cJSON_AddArrayToObject(body, "endpoints");
        size_t bytes = 0;
        for (; node != &s->ledger.accounts && bytes < CHUNK_BYTES; node = node->next) {
            const struct account *account = LIST_ENTRY(node, struct account, node);
            cJSON_AddItemToArray(list, ledger_print_endpoint(account->file, account->figure));
            bytes += strlen(account->file) + ENDPOINT_BYTES;
        }
        bool ok = send_patiently(s->upgrade.control, CONTROL_ENDPOINTS, body);
        cJSON_Delete(body);
        if (!ok) {
            return false;
        }
    }
    return true;
}

/* What is counted here from now on is added there. FIGURES comes last: with it the heir knows all. */
static void tell_figures(struct supervisor *s)
{
    struct upgrade *u = &s->upgrade;
    if (!u->handed_over || u->control < 0) {
        u->tell_at_ms = 0;
        return;
    }
    u->tell_at_ms = clock_now_ms() + TELL_MS;
    int64_t metric[METRIC_COUNT];
    supervisor_metrics(s, metric);
    cJSON *body = cJSON_CreateObject();
    cJSON_AddItemToObject(body, "metrics", ledger_print_metrics(metric));
    cJSON_AddItemToObject(body, "server", ledger_print_server(&s->ledger));
    if (tell_endpoints(s)) {
        send_patiently(u->control, CONTROL_FIGURES, body);
    }
    cJSON_Delete(body);
}

static void hand_over(struct supervisor *s, const struct control_message *message)
{
    struct upgrade *u = &s->upgrade;
    char state[64];
    snprintf(state, sizeof state, "MAINPID=%d\nREADY=1", (int)u->heir);
    notify_send(state);
    log_notice("upgraded: process %d serves; this one finishes what it has begun", (int)u->heir);
    u->handed_over = true;
    u->until_ms = 0;
    u->pid_file_given = control_bool(message, "pid_file");
    supervisor_shut_down(s);
    admin_hand_over(s);
    console_end(&s->console); /* the heir has one of its own */
    tell_figures(s);
}

void upgrade_read(struct supervisor *s)
{
    struct upgrade *u = &s->upgrade;
    struct control_message message;
    struct buffer why = BUFFER_EMPTY;
    switch (control_receive(u->control, &message, &why)) {
    case CONTROL_EMPTY: break;
    case CONTROL_OK:
        if (message.kind == CONTROL_READY && !u->handed_over && !s->shutting_down) {
            hand_over(s, &message);
        } else if (message.kind == CONTROL_FAILED) {
            const char *text = control_text(&message, "text");
            buffer_append_z(&u->failure, text != NULL ? text : "");
        }
        control_message_free(&message);
        break;
    case CONTROL_CLOSED:
    case CONTROL_BAD:
        /* Its end follows, or its time is over. */
        if (why.len > 0) {
            log_error("upgrade: %.*s", STR_ARG(buffer_str(&why)));
        }
        close(u->control);
        u->control = -1;
        break;
    }
    buffer_free(&why);
}

bool upgrade_child_ended(struct supervisor *s, pid_t pid, int wait_status)
{
    struct upgrade *u = &s->upgrade;
    if (u->heir == 0 || pid != u->heir) {
        return false;
    }
    if (u->handed_over) {
        return true; /* not ours any more */
    }
    while (u->control >= 0 && u->failure.len == 0) {
        struct pollfd wait = {.fd = u->control, .events = POLLIN};
        if (poll(&wait, 1, 0) <= 0) {
            break;
        }
        upgrade_read(s); /* its last words */
    }
    u->heir = 0;
    struct buffer text = BUFFER_EMPTY;
    buffer_printf(&text, "process %d ", (int)pid);
    worker_process_print_end(wait_status, &text);
    buffer_append_z(&text, " before it was ready");
    if (u->failure.len > 0) {
        buffer_printf(&text, ": %.*s", STR_ARG(buffer_str(&u->failure)));
    } else {
        buffer_append_z(&text, "; its own messages say why");
    }
    buffer_append_char(&text, '\0');
    give_up(s, text.failed ? "the new process ended" : text.data);
    buffer_free(&text);
    return true;
}

void upgrade_expired(struct supervisor *s)
{
    char text[128];
    snprintf(text, sizeof text, "process %d was not ready within UpgradeTimeout (%g s)", (int)s->upgrade.heir,
             s->config->upgrade_timeout);
    give_up(s, text);
}

void upgrade_cancel(struct supervisor *s)
{
    if (s->upgrade.heir > 0 && !s->upgrade.handed_over) {
        log_notice("the upgrade is given up, since the server ends");
        kill(s->upgrade.heir, SIGKILL);
        forget_heir(s);
    }
}

/* ---- the heir ------------------------------------------------------------------------------- */

static bool receive(int elder, struct control_message *message, struct buffer *why)
{
    struct pollfd wait = {.fd = elder, .events = POLLIN};
    if (poll(&wait, 1, INHERIT_MS) <= 0) {
        buffer_append_z(why, "the server to take over from says nothing");
        return false;
    }
    enum control_result result = control_receive(elder, message, why);
    if (result != CONTROL_OK) {
        buffer_append_z(why, result == CONTROL_CLOSED ? "the server to take over from has ended" : "");
        return false;
    }
    if (message->kind != CONTROL_INHERIT) {
        buffer_printf(why, "the server to take over from sent a message of kind %d", (int)message->kind);
        control_message_free(message);
        return false;
    }
    return true;
}

static bool take_listeners(struct listener_set *set, struct control_message *message)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(message->body, "listeners"))
    {
        const cJSON *port = cJSON_GetObjectItemCaseSensitive(item, "configured_port");
        const cJSON *kind = cJSON_GetObjectItemCaseSensitive(item, "kind");
        int fd = control_take_fd(message);
        if (fd < 0 || !cJSON_IsNumber(port) || !cJSON_IsNumber(kind) ||
            !listeners_adopt(set, fd, (uint16_t)port->valuedouble, (enum listener_kind)kind->valueint)) {
            if (fd >= 0) {
                close(fd);
            }
            return false;
        }
    }
    return true;
}

bool upgrade_inherit(struct supervisor *s, struct buffer *why)
{
    struct upgrade *u = &s->upgrade;
    const char *number = getenv(ELDER_VARIABLE);
    bool started_by_elder = number != NULL && strtol(number, NULL, 10) == (long)getppid();
    unsetenv(ELDER_VARIABLE);
    int type = 0;
    socklen_t len = sizeof type;
    if (!started_by_elder || getsockopt(CONTROL_FD, SOL_SOCKET, SO_TYPE, &type, &len) != 0 || type != SOCK_SEQPACKET) {
        return true;
    }
    fcntl(CONTROL_FD, F_SETFD, FD_CLOEXEC);
    u->elder = CONTROL_FD;
    struct control_message message;
    if (!receive(u->elder, &message, why)) {
        return false;
    }
    bool ok = take_listeners(&s->listeners, &message);
    if (!ok) {
        buffer_append_z(why, "the listening sockets of the server to take over from did not come along");
    }
    if (ok && control_bool(&message, "pid_file")) {
        pid_file_adopt(&s->pid_file, control_take_fd(&message), s->config->pid_file.ptr);
    }
    const char *admin = control_text(&message, "admin");
    int fd = ok && admin != NULL ? control_take_fd(&message) : -1;
    if (fd >= 0 && !admin_socket_adopt(&s->admin.socket, fd, admin)) {
        close(fd); /* it is opened anew then, or its being in use told */
    }
    /* So that clients of the elder resume their TLS sessions here. */
    cJSON *tickets = cJSON_GetObjectItemCaseSensitive(message.body, "tickets");
    if (ok && cJSON_IsString(tickets)) {
        size_t secret = strlen(tickets->valuestring);
        ticket_keys_parse((struct str){tickets->valuestring, secret}, &s->certificates.tickets);
        OPENSSL_cleanse(tickets->valuestring, secret);
    }
    supervisor_take_quarantines(s, cJSON_GetObjectItemCaseSensitive(message.body, "quarantines"));
    control_message_free(&message);
    return ok;
}

bool upgrade_is_heir(const struct supervisor *s)
{
    return s->upgrade.elder >= 0 && !s->upgrade.took_over;
}

static void tell_elder(struct supervisor *s, enum control_kind kind, cJSON *body)
{
    control_send(s->upgrade.elder, kind, body, NULL, 0);
    cJSON_Delete(body);
}

static void forget_elder(struct supervisor *s)
{
    struct upgrade *u = &s->upgrade;
    if (u->elder >= 0) {
        close(u->elder);
        u->elder = -1;
    }
    figures_free(u->elder_figures);
    u->elder_figures = NULL;
}

void upgrade_ready(struct supervisor *s)
{
    bool inherited = s->pid_file.inherited;
    if (inherited) {
        pid_file_write(&s->pid_file);
        s->pid_file.inherited = false; /* ours from now on */
    }
    cJSON *body = cJSON_CreateObject();
    cJSON_AddBoolToObject(body, "pid_file", inherited);
    tell_elder(s, CONTROL_READY, body);
    s->upgrade.took_over = true;
    s->upgrade.elder_figures = figures_create();
    admin_take_over(s);
}

/* What it had counted, and still counts while its workers end. */
void upgrade_read_elder(struct supervisor *s)
{
    struct upgrade *u = &s->upgrade;
    struct control_message message;
    struct buffer why = BUFFER_EMPTY;
    enum control_result result;
    while ((result = control_receive(u->elder, &message, &why)) == CONTROL_OK) {
        if (message.kind == CONTROL_ENDPOINTS && u->elder_figures != NULL) {
            ledger_take_endpoints(&s->ledger, u->elder_figures, message.body);
        } else if (message.kind == CONTROL_FIGURES && u->elder_figures != NULL) {
            ledger_take_figures(&s->ledger, u->elder_figures, message.body, clock_now_ms());
            admin_start(s);
        }
        control_message_free(&message);
    }
    if (result != CONTROL_EMPTY) {
        forget_elder(s);
        admin_start(s);
    }
    buffer_free(&why);
}

void upgrade_failed(struct supervisor *s, const char *text)
{
    if (!upgrade_is_heir(s)) {
        return;
    }
    cJSON *body = cJSON_CreateObject();
    cJSON_AddStringToObject(body, "text", text);
    tell_elder(s, CONTROL_FAILED, body);
    forget_elder(s);
}

/* ---- either side, in the poll loop ------------------------------------------------------------ */

void upgrade_poll(const struct supervisor *s, struct pollfd *fds)
{
    const struct upgrade *u = &s->upgrade;
    fds[0] = (struct pollfd){.fd = u->control, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = u->took_over ? u->elder : -1, .events = POLLIN};
}

void upgrade_polled(struct supervisor *s, const struct pollfd *fds)
{
    if (fds[0].revents != 0) {
        upgrade_read(s);
    }
    if (fds[1].revents != 0) {
        upgrade_read_elder(s);
    }
}

uint64_t upgrade_due_ms(const struct supervisor *s)
{
    const struct upgrade *u = &s->upgrade;
    uint64_t due = u->until_ms != 0 ? u->until_ms : UINT64_MAX;
    return u->tell_at_ms != 0 && u->tell_at_ms < due ? u->tell_at_ms : due;
}

void upgrade_run(struct supervisor *s)
{
    struct upgrade *u = &s->upgrade;
    uint64_t now = clock_now_ms();
    if (u->until_ms != 0 && u->until_ms <= now) {
        upgrade_expired(s);
    }
    if (u->tell_at_ms != 0 && u->tell_at_ms <= now) {
        tell_figures(s);
    }
}

void upgrade_end(struct supervisor *s)
{
    struct upgrade *u = &s->upgrade;
    tell_figures(s); /* the last ones */
    if (u->control >= 0) {
        close(u->control);
        u->control = -1;
    }
    forget_elder(s);
    buffer_free(&u->failure);
}
