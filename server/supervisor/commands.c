#include "supervisor/commands.h"

#include "base/file.h"
#include "observe/log.h"
#include "supervisor/clock.h"
#include "supervisor/control.h"
#include "supervisor/status.h"
#include "supervisor/supervisor_private.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { ASK_MS = 5000 };

/* ---- what they do: false when it could not be done; the text is for whoever asked ------------------------- */

static bool print_certificates(const struct supervisor *s, struct buffer *out)
{
    const struct certificates *c = &s->certificates;
    if (c->path == NULL) {
        buffer_append_z(out, "this server has no HTTPS: its option HttpsPorts is empty\n");
        return false;
    }
    cert_dir_print(&c->dir, c->path, time(NULL), out);
    return true;
}

/* True when everything that lies there is in use. */
static bool all_good(const struct certificates *c)
{
    LIST_EACH(node, &c->dir.entries) {
        if (LIST_ENTRY(node, struct cert_entry, node)->trouble != NULL) {
            return false;
        }
    }
    return c->dir.trouble == NULL;
}

static bool list_certificates(struct supervisor *s, struct buffer *out)
{
    return print_certificates(s, out);
}

static bool load_certificates(struct supervisor *s, struct buffer *out)
{
    log_notice("certificates are read again, by command");
    certificates_load(s);
    return print_certificates(s, out) && all_good(&s->certificates);
}

static bool clear_certificates(struct supervisor *s, struct buffer *out)
{
    log_notice("certificates are cleared and read again, by command");
    certificates_clear(s);
    return print_certificates(s, out) && all_good(&s->certificates);
}

static bool show(const struct supervisor *s, struct buffer *out, void (*print)(const struct status *, struct buffer *))
{
    struct status status;
    if (!supervisor_status(s, &status)) {
        buffer_append_z(out, "the server is out of memory\n");
        return false;
    }
    print(&status, out);
    supervisor_status_free(&status);
    return true;
}

static bool show_status(struct supervisor *s, struct buffer *out)
{
    return show(s, out, status_print_text);
}

static bool show_endpoints(struct supervisor *s, struct buffer *out)
{
    return show(s, out, status_print_endpoints);
}

static bool reload(struct supervisor *s, struct buffer *out)
{
    return supervisor_reload(s, out);
}

static bool restart(struct supervisor *s, struct buffer *out)
{
    bool any = supervisor_restart_workers(s);
    buffer_append_z(out, any ? "a fresh worker starts and takes over\n" : "no worker serves now\n");
    return any;
}

static bool upgrade(struct supervisor *s, struct buffer *out)
{
    if (s->shutting_down) {
        buffer_append_z(out, "the server is about to end\n");
        return false;
    }
    upgrade_begin(s);
    buffer_append_z(out, "the program file is started anew; the log says what comes of it\n");
    return true;
}

static bool stop(struct supervisor *s, struct buffer *out)
{
    buffer_append_z(out, s->shutting_down ? "stops at once\n" : "stops when the running requests have ended\n");
    supervisor_shut_down(s);
    return true;
}

static const struct command {
    const char *name;
    const char *help;
    bool (*run)(struct supervisor *s, struct buffer *out);
    bool waits; /* for the workers, with its answer */
} table[] = {
#define COMMAND(name, help, run, waits) {#name, help, run, waits},
#include "supervisor/commands.def"
#undef COMMAND
};

/* NULL: there is none of this name. */
static const struct command *find(struct str name)
{
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        if (str_eq_nocase(str_of(table[i].name), name)) {
            return &table[i];
        }
    }
    return NULL;
}

bool command_exists(const char *name)
{
    return find(str_of(name)) != NULL;
}

void commands_print_help(struct buffer *out, const char *before, int width)
{
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        buffer_printf(out, "  %s%-*s %s\n", before, width, table[i].name, table[i].help);
    }
}

/* ---- the socket --------------------------------------------------------------------------------------------- */

unsigned command_address(int pid, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int len = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "kiln/%d", pid);
    return (unsigned)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len);
}

bool command_peer_is_trusted(int socket)
{
    struct ucred peer;
    socklen_t len = sizeof peer;
    return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && (peer.uid == 0 || peer.uid == geteuid());
}

void commands_init(struct commands *commands)
{
    commands->listening = -1;
    for (size_t i = 0; i < COMMANDS_MOST; i++) {
        commands->asking[i].fd = -1;
    }
}

void commands_start(struct supervisor *s)
{
    struct sockaddr_un address;
    socklen_t len = command_address((int)getpid(), &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, len) != 0 || listen(fd, COMMANDS_MOST) != 0) {
        log_warning("commands such as kiln loadcerts cannot be taken: %s", strerror(errno));
        if (fd >= 0) {
            close(fd);
        }
        return;
    }
    s->commands.listening = fd;
}

static void forget(struct commands *commands, size_t i)
{
    close(commands->asking[i].fd);
    commands->asking[i].fd = -1;
    commands->asking[i].waits = false;
    buffer_free(&commands->asking[i].text);
}

void commands_end(struct commands *commands)
{
    for (size_t i = 0; i < COMMANDS_MOST; i++) {
        if (commands->asking[i].fd >= 0) {
            forget(commands, i);
        }
    }
    if (commands->listening >= 0) {
        close(commands->listening);
        commands->listening = -1;
    }
}

/* ---- one command ---------------------------------------------------------------------------------------------- */

static void answer(int socket, bool ok, const struct buffer *text)
{
    int memory = memfd_create("kiln answer", MFD_CLOEXEC);
    cJSON *body = cJSON_CreateObject();
    if (memory >= 0 && body != NULL && cJSON_AddBoolToObject(body, "ok", ok) != NULL && !text->failed &&
        fd_write_all(memory, text->data, text->len)) {
        control_send(socket, CONTROL_ANSWER, body, &memory, 1);
    }
    cJSON_Delete(body);
    if (memory >= 0) {
        close(memory);
    }
}

bool commands_run_one(struct supervisor *s, struct str name, struct buffer *out, bool *ok)
{
    const struct command *command = find(name);
    if (command != NULL) {
        *ok = command->run(s, out);
    }
    return command != NULL;
}

/* The answer is given now, or stays with who asked. */
static void obey(struct supervisor *s, size_t i, const struct control_message *message)
{
    struct commands *commands = &s->commands;
    struct str name = str_of(control_text(message, "name"));
    struct buffer *text = &commands->asking[i].text;
    const struct command *command = find(name);
    bool ok = command != NULL && command->run(s, text);
    if (command == NULL) {
        buffer_append_z(text, "the running server is another version, which does not know this command\n");
    }
    commands->asking[i].ok = ok;
    commands->asking[i].waits = command != NULL && command->waits && !certificates_are_taken(s);
    commands->asking[i].until_ms = clock_now_ms() + ASK_MS;
    if (!commands->asking[i].waits) {
        answer(commands->asking[i].fd, ok, text);
    }
}

void commands_settle(struct supervisor *s)
{
    struct commands *commands = &s->commands;
    for (size_t i = 0; i < COMMANDS_MOST && certificates_are_taken(s); i++) {
        if (commands->asking[i].waits) {
            answer(commands->asking[i].fd, commands->asking[i].ok, &commands->asking[i].text);
            forget(commands, i);
        }
    }
}

/* The worker does not say that it uses them. */
static void give_up_waiting(struct commands *commands, size_t i)
{
    buffer_append_z(&commands->asking[i].text, "a worker does not use them yet: it is too busy, or hangs\n");
    answer(commands->asking[i].fd, false, &commands->asking[i].text);
}

static void hear(struct supervisor *s, size_t i)
{
    struct control_message message;
    struct buffer why = BUFFER_EMPTY;
    int socket = s->commands.asking[i].fd;
    enum control_result result = control_receive(socket, &message, &why);
    buffer_free(&why);
    if (result == CONTROL_EMPTY) {
        return;
    }
    if (result == CONTROL_OK) {
        if (message.kind == CONTROL_COMMAND && !s->commands.asking[i].waits) {
            obey(s, i, &message);
        }
        control_message_free(&message);
        if (s->commands.asking[i].waits) {
            return;
        }
    }
    forget(&s->commands, i);
}

static void take(struct commands *commands)
{
    int fd = accept4(commands->listening, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        return;
    }
    for (size_t i = 0; i < COMMANDS_MOST && command_peer_is_trusted(fd); i++) {
        if (commands->asking[i].fd < 0) {
            commands->asking[i].fd = fd;
            commands->asking[i].until_ms = clock_now_ms() + ASK_MS;
            return;
        }
    }
    close(fd);
}

/* ---- the supervisor's loop --------------------------------------------------------------------------------------- */

void commands_poll(const struct commands *commands, struct pollfd *fds)
{
    fds[0] = (struct pollfd){.fd = commands->listening, .events = POLLIN};
    for (size_t i = 0; i < COMMANDS_MOST; i++) {
        fds[1 + i] = (struct pollfd){.fd = commands->asking[i].fd, .events = POLLIN};
    }
}

uint64_t commands_due_ms(const struct commands *commands)
{
    uint64_t due = UINT64_MAX;
    for (size_t i = 0; i < COMMANDS_MOST; i++) {
        if (commands->asking[i].fd >= 0 && commands->asking[i].until_ms < due) {
            due = commands->asking[i].until_ms;
        }
    }
    return due;
}

void commands_run(struct supervisor *s, const struct pollfd *fds)
{
    struct commands *commands = &s->commands;
    uint64_t now = clock_now_ms();
    for (size_t i = 0; i < COMMANDS_MOST; i++) {
        if (commands->asking[i].fd < 0) {
            continue;
        }
        if (fds[1 + i].revents != 0) {
            hear(s, i);
        } else if (commands->asking[i].until_ms <= now) {
            if (commands->asking[i].waits) {
                give_up_waiting(commands, i);
            }
            forget(commands, i);
        }
    }
    if (fds[0].revents != 0) {
        take(commands);
    }
}
