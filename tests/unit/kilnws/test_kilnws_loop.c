/* libkilnws's loop and reconnection where things go wrong: descriptors that others hold, names that are slow, listeners
 * that cannot accept. */
#include "kilnws_support.h"

#include <dirent.h>
#include <dlfcn.h>
#include <netdb.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* ---- names that are as slow as a test wants them: the library calls these ----------------------------- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool found; /* lookups of slow.test may end */
    int waiting; /* those that have begun */
    bool freed; /* the freeing of their results may end */
    int freeing;
} names = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .found = true, .freed = true};

static void names_set(bool found, bool freed)
{
    pthread_mutex_lock(&names.lock);
    names.found = found;
    names.freed = freed;
    pthread_cond_broadcast(&names.changed);
    pthread_mutex_unlock(&names.lock);
}

static void names_await(const int *count, int least)
{
    pthread_mutex_lock(&names.lock);
    while (*count < least) {
        pthread_cond_wait(&names.changed, &names.lock);
    }
    pthread_mutex_unlock(&names.lock);
}

static void names_count(int *count, const bool *go)
{
    pthread_mutex_lock(&names.lock);
    (*count)++;
    pthread_cond_broadcast(&names.changed);
    while (!*go) {
        pthread_cond_wait(&names.changed, &names.lock);
    }
    pthread_mutex_unlock(&names.lock);
}

static _Thread_local bool was_slow;

int getaddrinfo(const char *host, const char *port, const struct addrinfo *wanted, struct addrinfo **list)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (host == NULL || strcmp(host, "slow.test") != 0 || (wanted->ai_flags & AI_NUMERICHOST) != 0) {
        return real(host, port, wanted, list);
    }
    was_slow = true;
    names_count(&names.waiting, &names.found);
    return real("127.0.0.1", port, wanted, list);
}

void freeaddrinfo(struct addrinfo *list)
{
    void (*real)(struct addrinfo *);
    *(void **)&real = dlsym(RTLD_NEXT, "freeaddrinfo");
    real(list);
    if (was_slow) { /* on the thread that has looked up */
        names_count(&names.freeing, &names.freed);
    }
}

/* ---- the loop -------------------------------------------------------------------------------------------------- */

struct seen {
    kiln_ws_loop *loop;
    int opened;
    int closed;
    int refused;
};

static void seen_open(kiln_ws *ws, void *user)
{
    (void)ws;
    ((struct seen *)user)->opened++;
}

static void seen_close(kiln_ws *ws, int code, const char *reason, void *user)
{
    (void)ws;
    (void)code;
    (void)reason;
    ((struct seen *)user)->closed++;
}

static const kiln_ws_handler seen_handler = {.open = seen_open, .close = seen_close};

static void run_until(kiln_ws_loop *loop, const int *count, int least)
{
    while (*count < least) {
        assert_true(kiln_ws_loop_run_once(loop, 1000) >= 0);
    }
}

static void test_a_name_that_comes_too_late_finds_nobody(void **state)
{
    (void)state;
    struct seen seen = {.loop = kiln_ws_loop_create()};
    names.freeing = 0;
    names.waiting = 0;
    names_set(false, false);
    kiln_ws *ws = kiln_ws_loop_connect(seen.loop, "ws://slow.test:1/", NULL, &seen_handler, &seen);
    assert_non_null(ws);
    kiln_ws_loop_run_once(seen.loop, 0);
    names_await(&names.waiting, 1);
    kiln_ws_close(ws, 1000, NULL);
    run_until(seen.loop, &seen.closed, 1);
    assert_int_equal(kiln_ws_loop_count(seen.loop), 0);
    /* Its thread goes on to where it throws the result away. */
    names_set(true, false);
    names_await(&names.freeing, 1);
    assert_int_equal(kiln_ws_loop_run_once(seen.loop, 0), 0);
    names_set(true, true);
    kiln_ws_loop_free(seen.loop);
}

static void test_a_descriptor_that_a_child_still_holds_is_forgotten(void **state)
{
    (void)state;
    struct seen seen = {.loop = kiln_ws_loop_create()};
    int peer;
    kiln_ws *ws = with_raw_peer(&peer, NULL);
    int held = dup(kiln_ws_fd(ws)); /* as after fork(2) */
    assert_int_equal(kiln_ws_loop_add(seen.loop, ws, &seen_handler, &seen), KILN_OK);
    assert_int_equal(kiln_ws_loop_add(seen.loop, ws, &seen_handler, &seen), KILN_INVALID);
    run_until(seen.loop, &seen.opened, 1);
    shutdown(peer, SHUT_WR);
    run_until(seen.loop, &seen.closed, 1);
    assert_int_equal(kiln_ws_loop_run_once(seen.loop, 0), 0); /* its end can still be read from the copy */
    close(held);
    close(peer);
    kiln_ws_loop_free(seen.loop);
}

/* How often the loop hears of something, of a thousand times that it asks. */
static int busy_rounds(kiln_ws_loop *loop)
{
    int heard = 0;
    for (int i = 0; i < 1000; i++) {
        heard += kiln_ws_loop_run_once(loop, 0);
    }
    return heard;
}

static int raw_connect(const kiln_ws_listener *listener)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)kiln_ws_listener_port(listener)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static void test_a_listener_without_descriptors_waits(void **state)
{
    (void)state;
    struct seen seen = {.loop = kiln_ws_loop_create()};
    kiln_ws_listener *listener = kiln_ws_listen(&(kiln_ws_listen_options){.address = "127.0.0.1"});
    assert_int_equal(kiln_ws_loop_listen(seen.loop, listener, &seen_handler, &seen), KILN_OK);
    int client = raw_connect(listener);
    struct rlimit before;
    getrlimit(RLIMIT_NOFILE, &before);
    int next = dup(client); /* the lowest number that is free */
    close(next);
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)next, before.rlim_max});
    int heard = busy_rounds(seen.loop);
    setrlimit(RLIMIT_NOFILE, &before);
    assert_true(heard > 0 && heard < 500);
    while (kiln_ws_loop_count(seen.loop) == 0) { /* and then it is accepted by itself */
        kiln_ws_loop_run_once(seen.loop, -1);
    }
    close(client);
    kiln_ws_loop_free(seen.loop);
    kiln_ws_listener_free(listener);
}

static void test_a_closed_listener_is_not_ready_for_ever(void **state)
{
    (void)state;
    struct seen seen = {.loop = kiln_ws_loop_create()};
    kiln_ws_listener *listener = kiln_ws_listen(&(kiln_ws_listen_options){.address = "127.0.0.1"});
    assert_int_equal(kiln_ws_loop_listen(seen.loop, listener, &seen_handler, &seen), KILN_OK);
    kiln_ws_listener_close(listener);
    int client = raw_connect(listener);
    assert_true(busy_rounds(seen.loop) < 500);
    assert_int_equal(kiln_ws_loop_count(seen.loop), 0);
    close(client);
    kiln_ws_loop_free(seen.loop);
    kiln_ws_listener_free(listener);
}

static void close_and_come_again(kiln_ws *ws, int code, const char *reason, void *user)
{
    struct seen *seen = user;
    static const kiln_ws_handler again = {.close = close_and_come_again};
    seen_close(ws, code, reason, user);
    seen->refused += kiln_ws_loop_connect(seen->loop, "ws://127.0.0.1:1/", NULL, &again, seen) == NULL;
}

static void test_nothing_is_added_to_a_loop_that_ends(void **state)
{
    (void)state;
    struct seen seen = {.loop = kiln_ws_loop_create()};
    static const kiln_ws_handler handler = {.open = seen_open, .close = close_and_come_again};
    int peer;
    kiln_ws_loop_add(seen.loop, with_raw_peer(&peer, NULL), &handler, &seen);
    run_until(seen.loop, &seen.opened, 1);
    kiln_ws_loop_free(seen.loop);
    assert_int_equal(seen.closed, 1);
    assert_int_equal(seen.refused, 1);
    close(peer);
}

static void send_much(kiln_ws *ws, void *user)
{
    char data[4000] = "";
    seen_open(ws, user);
    for (int i = 0; i < 40; i++) {
        assert_int_equal(kiln_ws_send(ws, KILN_WS_BINARY, data, sizeof data), KILN_OK);
    }
}

static void test_what_a_callback_gathers_is_sent_before_it_is_too_much(void **state)
{
    (void)state;
    struct seen seen = {.loop = kiln_ws_loop_create()};
    static const kiln_ws_handler handler = {.open = send_much, .close = seen_close};
    int peer;
    kiln_ws *ws = with_raw_peer(&peer, &(kiln_ws_options){.send_queue = 20000});
    int room = 1 << 20;
    setsockopt(kiln_ws_fd(ws), SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    kiln_ws_loop_add(seen.loop, ws, &handler, &seen);
    run_until(seen.loop, &seen.opened, 1);
    kiln_ws_loop_free(seen.loop);
    close(peer);
}

static void *serve_and_restart(void *listener)
{
    for (int i = 0; i < 2; i++) {
        kiln_ws *ws = kiln_ws_listener_accept(listener, -1);
        kiln_ws_close(ws, i == 0 ? 1012 : 1000, NULL);
        kiln_ws_free(ws);
    }
    return NULL;
}

static void count_connection(kiln_ws *ws, void *user)
{
    (void)ws;
    (*(int *)user)++;
}

static void test_reconnection_goes_on_in_the_loop(void **state)
{
    (void)state;
    struct seen seen = {.loop = kiln_ws_loop_create()};
    int connected = 0;
    kiln_ws_listener *listener = kiln_ws_listen(&(kiln_ws_listen_options){.address = "127.0.0.1"});
    pthread_t thread;
    pthread_create(&thread, NULL, serve_and_restart, listener);
    kiln_ws *ws = kiln_ws_connect(
        url_of(listener, "ws"),
        &(kiln_ws_options){.reconnect = -1, .reconnect_min = 1, .connected = count_connection, .user = &connected});
    assert_non_null(ws);
    assert_int_equal(kiln_ws_loop_add(seen.loop, ws, &seen_handler, &seen), KILN_OK);
    run_until(seen.loop, &seen.closed, 1);
    assert_int_equal(seen.opened, 2);
    assert_int_equal(connected, 2);
    pthread_join(thread, NULL);
    kiln_ws_loop_free(seen.loop);
    kiln_ws_listener_free(listener);
}

static int count_threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int count = -2; /* "." and ".." */
    assert_non_null(tasks);
    while (readdir(tasks) != NULL) {
        count++;
    }
    closedir(tasks);
    return count;
}

static void test_many_names_are_looked_up_by_few_threads(void **state)
{
    (void)state;
    enum { MANY = 300, FEW = 64 };
    struct seen seen = {.loop = kiln_ws_loop_create()};
    kiln_ws_listener *listener = kiln_ws_listen(&(kiln_ws_listen_options){.address = "127.0.0.1"});
    char url[64];
    snprintf(url, sizeof url, "ws://slow.test:%d/", kiln_ws_listener_port(listener));
    assert_int_equal(kiln_ws_loop_listen(seen.loop, listener, &seen_handler, &seen), KILN_OK);
    int threads = count_threads();
    names.waiting = 0;
    names_set(false, true);
    for (int i = 0; i < MANY; i++) {
        assert_non_null(kiln_ws_loop_connect(seen.loop, url, NULL, &seen_handler, &seen));
    }
    names_await(&names.waiting, FEW);
    kiln_ws_loop_run_once(seen.loop, 0);
    assert_true(count_threads() <= threads + FEW);
    names_set(true, true);
    run_until(seen.loop, &seen.opened, 2 * MANY); /* both sides of each */
    assert_int_equal(seen.closed, 0);
    kiln_ws_loop_free(seen.loop);
    kiln_ws_listener_free(listener);
}

static void test_a_child_of_fork_looks_up_names_again(void **state)
{
#ifdef __SANITIZE_THREAD__
    skip(); /* it allows no threads in such a child */
#endif
    (void)state;
    enum { ALL = 64 }; /* threads that there may be: none of them is left in the child */
    kiln_ws *sockets[ALL];
    names.waiting = 0;
    names_set(false, true);
    for (int i = 0; i < ALL; i++) {
        sockets[i] = kiln_ws_open("ws://slow.test:1/", NULL);
    }
    names_await(&names.waiting, ALL);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        names.found = true;
        _exit(kiln_ws_connect("ws://slow.test:1/", NULL) == NULL ? 7 : 8); /* refused: it was looked up */
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    names_set(true, true);
    for (int i = 0; i < ALL; i++) {
        kiln_ws_free(sockets[i]);
    }
}

/* A program that ends at any time after it wanted a name, begun anew: what its parent had is not its leak. */
static int begin_and_end(const char *milliseconds)
{
    static kiln_ws *left;
    alarm(60);
    names.found = false;
    for (int i = 0; i < 4; i++) {
        kiln_ws_free(kiln_ws_open("wss://slow.test:1/", NULL));
    }
    left = kiln_ws_open("wss://slow.test:1/", NULL);
    usleep((useconds_t)atoi(milliseconds) * 1000);
    exit(left != NULL ? 7 : 8);
}

/* Nor does it crash, when a thread is still about what OpenSSL frees at the end. */
static void test_the_end_of_a_program_waits_for_no_name(void **state)
{
#ifdef __SANITIZE_THREAD__
    skip();
#endif
    (void)state;
    for (int i = 0; i < 10; i++) {
        char milliseconds[12];
        snprintf(milliseconds, sizeof milliseconds, "%d", i * 2);
        pid_t child = fork();
        if (child == 0) {
            execl("/proc/self/exe", "test_kilnws_loop", milliseconds, (char *)NULL);
            _exit(1);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
}

/* ---- one that sends without end ---------------------------------------------------------------------------------- */

enum { FRAME = 50, FRAMES = 2000, PATIENCE = 500000 };

struct flood {
    uint8_t frames[FRAME * FRAMES];
    size_t at;
    int peer;
    int messages;
    bool other_was_heard;
};

/* As much as there is room for. */
static void send_on(struct flood *flood)
{
    ssize_t n;
    while ((n = send(flood->peer, flood->frames + flood->at, sizeof flood->frames - flood->at, MSG_DONTWAIT)) > 0) {
        flood->at = (flood->at + (size_t)n) % sizeof flood->frames;
    }
}

static void flood_message(kiln_ws *ws, const kiln_ws_message *m, void *user)
{
    struct flood *flood = user;
    if (m->type == KILN_WS_TEXT) {
        flood->other_was_heard = true;
    } else if (++flood->messages > PATIENCE) {
        kiln_ws_close(ws, 1000, NULL);
    } else if (flood->messages % 500 == 0) {
        send_on(flood);
    }
}

static void test_one_that_sends_without_end_does_not_keep_others_waiting(void **state)
{
    (void)state;
    static const kiln_ws_handler handler = {.message = flood_message};
    static struct flood flood;
    kiln_ws_loop *loop = kiln_ws_loop_create();
    int other;
    for (size_t i = 0; i < sizeof flood.frames; i += FRAME) {
        flood.frames[i] = 0x82;
        flood.frames[i + 1] = FRAME - 2;
    }
    assert_int_equal(kiln_ws_loop_add(loop, with_raw_peer(&flood.peer, NULL), &handler, &flood), KILN_OK);
    assert_int_equal(kiln_ws_loop_add(loop, with_raw_peer(&other, NULL), &handler, &flood), KILN_OK);
    send_on(&flood);
    kiln_ws_loop_run_once(loop, -1);
    peer_sends(other, 1, "me too", 6);
    while (!flood.other_was_heard) {
        kiln_ws_loop_run_once(loop, -1);
    }
    assert_true(flood.messages > 0 && flood.messages < PATIENCE);
    kiln_ws_loop_free(loop);
    close(flood.peer);
    close(other);
}

/* ---- reconnection ------------------------------------------------------------------------------------------------ */

static void test_slow_names_and_reconnection(void **state)
{
    (void)state;
    names.waiting = 0;
    names_set(false, true);
    kiln_ws *ws = kiln_ws_open(
        "wss://slow.test:1/",
        &(kiln_ws_options){.connect_timeout = 20, .reconnect = -1, .reconnect_min = 1, .reconnect_max = 1});
    assert_non_null(ws);
    bool twice = false;
    while (!twice) { /* the first lookup is given up, a second one is under way */
        poll_for(ws);
        assert_int_equal(kiln_ws_step(ws), KILN_WS_CONNECTING);
        pthread_mutex_lock(&names.lock);
        twice = names.waiting >= 2;
        pthread_mutex_unlock(&names.lock);
    }
    names_set(true, true);
    for (int i = 0; i < 20; i++) {
        poll_for(ws);
        assert_int_equal(kiln_ws_step(ws), KILN_WS_CONNECTING);
    }
    assert_int_equal(kiln_ws_close(ws, 1000, NULL), KILN_OK);
    assert_int_equal(kiln_ws_step(ws), KILN_WS_CLOSED);
    kiln_ws_free(ws);
}

static void test_pauses_double_up_to_the_longest(void **state)
{
    (void)state;
    enum { TIMES = 6 };
    kiln_ws_listener *listener = kiln_ws_listen(&(kiln_ws_listen_options){.address = "127.0.0.1"});
    kiln_ws *ws = kiln_ws_open(url_of(listener, "ws"),
                               &(kiln_ws_options){.reconnect = TIMES - 1, .reconnect_min = 20, .reconnect_max = 80});
    assert_non_null(ws);
    int accepted = 0;
    uint64_t at[TIMES] = {0};
    while (kiln_ws_step(ws) != KILN_WS_CLOSED) {
        int fd = accept4(kiln_ws_listener_fd(listener), NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0) {
            assert_true(accepted < TIMES);
            at[accepted++] = now_ms();
            close(fd);
        }
        struct pollfd fds[2] = {{kiln_ws_fd(ws), POLLIN, 0}, {kiln_ws_listener_fd(listener), POLLIN, 0}};
        int ms = kiln_ws_timeout(ws);
        poll(fds, 2, ms >= 0 && ms < 100 ? ms : 100);
    }
    assert_int_equal(accepted, TIMES);
    static const unsigned least[TIMES] = {0, 10, 20, 40, 40, 40}; /* half of the pause, at least */
    for (int i = 1; i < TIMES; i++) {
        assert_true(at[i] - at[i - 1] + 1 >= least[i]);
    }
    assert_int_equal(kiln_ws_connections(ws), 0);
    assert_int_equal(kiln_ws_close_code(ws), 1006);
    kiln_ws_free(ws);
    kiln_ws_listener_free(listener);
}

int main(int count, char **arguments)
{
    if (count == 2) {
        return begin_and_end(arguments[1]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_name_that_comes_too_late_finds_nobody),
        cmocka_unit_test(test_a_descriptor_that_a_child_still_holds_is_forgotten),
        cmocka_unit_test(test_a_listener_without_descriptors_waits),
        cmocka_unit_test(test_a_closed_listener_is_not_ready_for_ever),
        cmocka_unit_test(test_nothing_is_added_to_a_loop_that_ends),
        cmocka_unit_test(test_what_a_callback_gathers_is_sent_before_it_is_too_much),
        cmocka_unit_test(test_reconnection_goes_on_in_the_loop),
        cmocka_unit_test(test_many_names_are_looked_up_by_few_threads),
        cmocka_unit_test(test_a_child_of_fork_looks_up_names_again),
        cmocka_unit_test(test_the_end_of_a_program_waits_for_no_name),
        cmocka_unit_test(test_one_that_sends_without_end_does_not_keep_others_waiting),
        cmocka_unit_test(test_slow_names_and_reconnection),
        cmocka_unit_test(test_pauses_double_up_to_the_longest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
