/* Both sides of an upgrade: the elder in this process, the heir in a child that runs this program again
 * with a role as its argument. */
#include "supervisor/upgrade.h"

#include "config/config.h"
#include "supervisor/clock.h"
#include "supervisor/control.h"
#include "supervisor/program.h"
#include "supervisor/supervisor_private.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PORT = 8123 }; /* as the config has it; the socket is bound elsewhere */

static const char *program = "/proc/self/exe";
static char *arguments[] = {"test_upgrade", "role", NULL};
static unsigned shut_down;
static char notified[1024];
static char pid_path[] = "/tmp/kiln-upgrade-XXXXXX";

const char *__wrap_program_path(void)
{
    return program;
}

char *const *__wrap_program_arguments(void)
{
    return arguments;
}

void __wrap_supervisor_shut_down(struct supervisor *s)
{
    s->shutting_down = true;
    shut_down++;
}

void __wrap_notify_send(const char *state)
{
    size_t len = strlen(notified);
    snprintf(notified + len, sizeof notified - len, "%s;", state);
}

/* ---- a supervisor without anything else ---------------------------------------------------------------- */

static void blank(struct supervisor *s)
{
    struct config_errors errors = {0};
    struct config_overrides overrides = {0};
    *s = (struct supervisor){
        .config = config_parse(STR_NONE, "test", &overrides, &errors),
        .pid_file.fd = -1,
        .upgrade = {.control = -1, .elder = -1},
    };
    config_errors_free(&errors);
    list_init(&s->workers);
    ledger_init(&s->ledger, 64);
    crash_list_init(&s->crashes);
    admin_init(&s->admin);
    console_init(&s->console);
}

static struct supervisor elder;

static int make_elder(void **state)
{
    (void)state;
    blank(&elder);
    elder.config->upgrade_timeout = 1000;
    int low = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int fd = fcntl(low, F_DUPFD_CLOEXEC, 200); /* CONTROL_FD is wanted for something else */
    close(low);
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(fd, (struct sockaddr *)(void *)&any, sizeof any) != 0 || listen(fd, 1) != 0 ||
        !listeners_adopt(&elder.listeners, fd, PORT, 0)) {
        return -1;
    }
    program = "/proc/self/exe";
    shut_down = 0;
    notified[0] = '\0';
    return 0;
}

static int free_elder(void **state)
{
    (void)state;
    listeners_close(&elder.listeners, NULL);
    pid_file_close(&elder.pid_file);
    if (elder.upgrade.control >= 0) {
        close(elder.upgrade.control);
    }
    ledger_free(&elder.ledger);
    config_unref(elder.config);
    return waitpid(-1, NULL, WNOHANG) == -1 ? 0 : -1; /* no child is left */
}

static void begin(char *role)
{
    arguments[1] = role;
    upgrade_begin(&elder);
}

/* Until the heir's socket says nothing more, or the upgrade is decided. */
static void listen_to_heir(void)
{
    while (elder.upgrade.control >= 0 && !elder.upgrade.handed_over) {
        struct pollfd wait = {.fd = elder.upgrade.control, .events = POLLIN};
        assert_int_equal(poll(&wait, 1, -1), 1);
        upgrade_read(&elder);
    }
}

static int end_of(pid_t pid)
{
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void check_nothing_changed(void)
{
    assert_int_equal(elder.upgrade.heir, 0);
    assert_int_equal(elder.upgrade.control, -1);
    assert_true(elder.upgrade.until_ms == 0);
    assert_false(elder.upgrade.handed_over);
    assert_int_equal(elder.upgrade.failure.len, 0);
    assert_int_equal(shut_down, 0);
    assert_string_equal(notified, "RELOADING=1;READY=1;");
    assert_null(getenv("KILN_UPGRADE"));
}

static void make_pid_file(void)
{
    struct buffer why = BUFFER_EMPTY;
    assert_int_equal(pid_file_open(&elder.pid_file, pid_path, &why), PID_FILE_OK);
    assert_true(pid_file_write(&elder.pid_file));
    buffer_free(&why);
}

static int pid_in_file(void)
{
    char text[32] = "";
    int fd = open(pid_path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_true(read(fd, text, sizeof text - 1) > 0);
    close(fd);
    return atoi(text);
}

/* ---- the roles of the child ------------------------------------------------------------------------------- */

static bool has_what_the_elder_has(const struct supervisor *s)
{
    struct sockaddr_in name;
    socklen_t len = sizeof name;
    int listening = 0;
    socklen_t size = sizeof listening;
    return s->listeners.count == 1 && s->listeners.items[0].configured_port == PORT &&
           getsockname(s->listeners.items[0].fd, (struct sockaddr *)(void *)&name, &len) == 0 &&
           name.sin_family == AF_INET &&
           getsockopt(s->listeners.items[0].fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 && listening != 0 &&
           fcntl(CONTROL_FD, F_GETFD) == FD_CLOEXEC;
}

/* Two endpoints and a number of requests, which the elder tells once it has handed over; then it ends. */
static int wait_for_figures(struct supervisor *s)
{
    while (s->upgrade.elder >= 0) {
        struct pollfd wait = {.fd = s->upgrade.elder, .events = POLLIN};
        poll(&wait, 1, -1);
        upgrade_read_elder(s);
    }
    const struct account *account = map_get(&s->ledger.by_file, STR("/www/b._c"));
    bool ok = s->ledger.total[METRIC_REQUESTS] == 45 && s->ledger.server[SERVER_FIGURE_WORKERS_LOST] == 2 &&
              s->ledger.by_file.count == 2 && account != NULL && account->figure[ENDPOINT_FIGURE_CRASHES] == 1 &&
              s->upgrade.elder_figures == NULL;
    ledger_free(&s->ledger);
    return ok ? 0 : 6;
}

static int take_over(const char *role, struct supervisor *s)
{
    struct buffer why = BUFFER_EMPTY;
    bool ok = upgrade_inherit(s, &why) && upgrade_is_heir(s) && getenv("KILN_UPGRADE") == NULL;
    buffer_free(&why);
    if (!ok || !has_what_the_elder_has(s)) {
        upgrade_failed(s, "what was inherited is not right");
        return 5;
    }
    if (strcmp(role, "fails") == 0) {
        upgrade_failed(s, "no luck");
        return 1;
    }
    upgrade_ready(s);
    return strcmp(role, "counts") == 0 ? wait_for_figures(s) : 0;
}

static int be_heir(const char *role)
{
    if (strcmp(role, "ends") == 0) {
        return 3;
    }
    if (strcmp(role, "hangs") == 0) {
        for (;;) {
            pause();
        }
    }
    if (strcmp(role, "nonsense") == 0) {
        ssize_t ignored = write(CONTROL_FD, "nonsense", 8);
        (void)ignored;
        return 4;
    }
    struct supervisor s;
    blank(&s);
    s.config->pid_file = str_of(getenv("PID_PATH"));
    int code = take_over(role, &s);
    figures_free(s.upgrade.elder_figures); /* nobody is left to send what is still to come */
    listeners_close(&s.listeners, NULL);
    pid_file_leave(&s.pid_file); /* it stays as it is, for the elder to look at */
    config_unref(s.config);
    return code;
}

/* ---- the elder ------------------------------------------------------------------------------------------- */

static void test_hand_over(void **state)
{
    (void)state;
    begin("ready");
    pid_t heir = elder.upgrade.heir;
    assert_true(heir > 0);
    listen_to_heir();
    assert_true(elder.upgrade.handed_over);
    assert_false(elder.upgrade.pid_file_given);
    assert_int_equal(shut_down, 1);
    char expected[128];
    snprintf(expected, sizeof expected, "RELOADING=1;MAINPID=%d\nREADY=1;", (int)heir);
    assert_string_equal(notified, expected);
    assert_true(elder.upgrade.until_ms == 0);
    int status = end_of(heir);
    assert_int_equal(status, 0);
    assert_true(upgrade_child_ended(&elder, heir, status)); /* not ours any more */
    assert_int_equal(shut_down, 1);
}

static void test_what_was_counted_goes_with_it(void **state)
{
    (void)state;
    elder.ledger.total[METRIC_REQUESTS] = 42;
    elder.ledger.server[SERVER_FIGURE_WORKERS_LOST] = 2;
    ledger_count_crash(&elder.ledger, "/www/a._c");
    ledger_count_crash(&elder.ledger, "/www/b._c");
    begin("counts");
    pid_t heir = elder.upgrade.heir;
    listen_to_heir();
    assert_true(elder.upgrade.tell_at_ms > 0);
    elder.ledger.total[METRIC_REQUESTS] += 3; /* of workers that drain */
    upgrade_end(&elder);
    int status = end_of(heir);
    assert_int_equal(status, 0);
    assert_true(upgrade_child_ended(&elder, heir, status));
}

static void test_pid_file_goes_with_it(void **state)
{
    (void)state;
    make_pid_file();
    assert_int_equal(pid_in_file(), getpid());
    begin("ready");
    pid_t heir = elder.upgrade.heir;
    listen_to_heir();
    assert_true(elder.upgrade.pid_file_given);
    assert_int_equal(pid_in_file(), heir);
    end_of(heir);
    pid_file_leave(&elder.pid_file);
    assert_int_equal(pid_in_file(), heir); /* it is still there */
}

static void test_heir_that_says_why_it_failed(void **state)
{
    (void)state;
    make_pid_file();
    begin("fails");
    pid_t heir = elder.upgrade.heir;
    int status = end_of(heir);
    /* Its last words are read by then or not: they count. */
    assert_true(upgrade_child_ended(&elder, heir, status));
    check_nothing_changed();
    assert_int_equal(pid_in_file(), getpid());
}

static void test_heir_that_ends(void **state)
{
    (void)state;
    begin("ends");
    pid_t heir = elder.upgrade.heir;
    listen_to_heir();
    assert_int_equal(elder.upgrade.heir, heir); /* until it is waited for */
    int status = end_of(heir);
    assert_false(upgrade_child_ended(&elder, heir + 1, status));
    assert_true(upgrade_child_ended(&elder, heir, status));
    check_nothing_changed();
    assert_false(upgrade_child_ended(&elder, heir, status));
}

static void test_heir_that_talks_nonsense(void **state)
{
    (void)state;
    begin("nonsense");
    pid_t heir = elder.upgrade.heir;
    listen_to_heir();
    assert_true(upgrade_child_ended(&elder, heir, end_of(heir)));
    check_nothing_changed();
}

static void test_heir_that_hangs_is_killed(void **state)
{
    (void)state;
    elder.config->upgrade_timeout = 0.1;
    uint64_t before = clock_now_ms();
    begin("hangs");
    pid_t heir = elder.upgrade.heir;
    assert_true(elder.upgrade.until_ms >= before + 100);
    begin("hangs"); /* one is enough */
    assert_int_equal(elder.upgrade.heir, heir);
    upgrade_expired(&elder);
    int status = end_of(heir);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    check_nothing_changed();
}

static void test_end_of_the_server_ends_the_heir(void **state)
{
    (void)state;
    begin("hangs");
    pid_t heir = elder.upgrade.heir;
    upgrade_cancel(&elder);
    int status = end_of(heir);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(elder.upgrade.heir, 0);
    upgrade_cancel(&elder);
    elder.shutting_down = true;
    begin("ready");
    assert_int_equal(elder.upgrade.heir, 0);
}

static void test_program_that_cannot_be_started(void **state)
{
    (void)state;
    program = "/no/such/program";
    begin("ready");
    check_nothing_changed();
    program = NULL;
    notified[0] = '\0';
    begin("ready");
    assert_string_equal(notified, "");
}

/* ---- the heir ----------------------------------------------------------------------------------------------- */

/* One end is where an heir expects its elder, the other is returned. */
static int pretend_to_be_heir(pid_t of)
{
    int ends[2];
    char number[16];
    assert_true(control_pair(ends));
    int ours = fcntl(ends[0], F_DUPFD_CLOEXEC, 100);
    int theirs = fcntl(ends[1], F_DUPFD_CLOEXEC, 100);
    close(ends[0]);
    close(ends[1]);
    assert_int_equal(dup2(theirs, CONTROL_FD), CONTROL_FD);
    close(theirs);
    snprintf(number, sizeof number, "%d", (int)of);
    setenv("KILN_UPGRADE", number, 1);
    return ours;
}

/* What inheriting from that comes to; the message that it fails with. */
static void check_inheritance(enum control_kind kind, const char *body, int fd, const char *expected)
{
    struct supervisor s;
    struct buffer why = BUFFER_EMPTY;
    int ours = pretend_to_be_heir(getppid());
    cJSON *json = cJSON_Parse(body);
    assert_non_null(json);
    assert_int_equal(control_send(ours, kind, json, &fd, fd >= 0 ? 1 : 0), CONTROL_OK);
    cJSON_Delete(json);
    blank(&s);
    bool ok = upgrade_inherit(&s, &why);
    buffer_append_char(&why, '\0');
    assert_string_equal(why.data, expected);
    assert_int_equal(ok, expected[0] == '\0');
    buffer_free(&why);
    assert_true(upgrade_is_heir(&s));
    listeners_close(&s.listeners, NULL);
    config_unref(s.config);
    close(CONTROL_FD);
    close(ours);
}

static void test_inheritance_that_is_none(void **state)
{
    (void)state;
    static const char missing[] = "the listening sockets of the server to take over from did not come along";
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int fd = elder.listeners.items[0].fd;
    check_inheritance(CONTROL_INHERIT, "{}", -1, "");
    check_inheritance(CONTROL_INHERIT, "{\"listeners\": [{\"kind\": 0, \"configured_port\": 80}]}", fd, "");
    check_inheritance(CONTROL_INHERIT, "{\"listeners\": [{\"kind\": 0, \"configured_port\": 80}]}", -1, missing);
    check_inheritance(CONTROL_INHERIT, "{\"listeners\": [{\"kind\": 0, \"configured_port\": 80}]}", null, missing);
    check_inheritance(CONTROL_INHERIT, "{\"listeners\": [{\"kind\": 0}]}", fd, missing);
    check_inheritance(CONTROL_INHERIT, "{\"listeners\": [7]}", fd, missing);
    check_inheritance(CONTROL_STOP, "{}", -1, "the server to take over from sent a message of kind 4");
    close(null);
}

static void test_elder_that_has_ended(void **state)
{
    (void)state;
    struct supervisor s;
    struct buffer why = BUFFER_EMPTY;
    close(pretend_to_be_heir(getppid()));
    blank(&s);
    assert_false(upgrade_inherit(&s, &why));
    assert_true(str_eq(buffer_str(&why), STR("the server to take over from has ended")));
    buffer_free(&why);
    config_unref(s.config);
    close(CONTROL_FD);
}

/* The variable of an elder reaches whatever that starts; only its own child is the heir. */
static void test_started_by_somebody_else(void **state)
{
    (void)state;
    struct supervisor s;
    struct buffer why = BUFFER_EMPTY;
    int ours = pretend_to_be_heir(getppid() + 1);
    blank(&s);
    assert_true(upgrade_inherit(&s, &why));
    assert_false(upgrade_is_heir(&s));
    assert_null(getenv("KILN_UPGRADE"));
    upgrade_failed(&s, "nobody hears it");
    close(CONTROL_FD);
    close(ours);
    /* Descriptor 3 is something else. */
    assert_int_equal(dup2(elder.listeners.items[0].fd, CONTROL_FD), CONTROL_FD);
    char number[16];
    snprintf(number, sizeof number, "%d", (int)getppid());
    setenv("KILN_UPGRADE", number, 1);
    assert_true(upgrade_inherit(&s, &why));
    assert_false(upgrade_is_heir(&s));
    close(CONTROL_FD);
    config_unref(s.config);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        return be_heir(argv[1]);
    }
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_elder, free_elder)
    const struct CMUnitTest tests[] = {
        TEST(test_hand_over),
        TEST(test_what_was_counted_goes_with_it),
        TEST(test_pid_file_goes_with_it),
        TEST(test_heir_that_says_why_it_failed),
        TEST(test_heir_that_ends),
        TEST(test_heir_that_talks_nonsense),
        TEST(test_heir_that_hangs_is_killed),
        TEST(test_end_of_the_server_ends_the_heir),
        TEST(test_program_that_cannot_be_started),
        TEST(test_inheritance_that_is_none),
        TEST(test_elder_that_has_ended),
        TEST(test_started_by_somebody_else),
    };
    int fd = mkstemp(pid_path);
    if (fd < 0) {
        return 1;
    }
    close(fd);
    setenv("PID_PATH", pid_path, 1);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(pid_path);
    return failed;
}
