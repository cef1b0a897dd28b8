/* What only the LMDB store promises: outliving the process, two workers at once, and waiting
 * without blocking a loop. Damaged files and full disks: test_lmdb_files.c. */
#include "tests/unit/sessions/lmdb_support.h"

#include "loop/coroutine.h"
#include "loop/loop.h"
#include "observe/log.h"

#include <fcntl.h>
#include <lmdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

/* In a child process: a store that nobody closes. */
static void open_or_exit(struct fixture *f)
{
    struct buffer error = BUFFER_EMPTY;
    f->store = f->ops->open(&f->options, &error);
    if (f->store == NULL) {
        fprintf(stderr, "child: %.*s\n", STR_ARG(buffer_str(&error)));
        _exit(3);
    }
}

static void wait_exit(pid_t child, int expected)
{
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), expected);
}

static void wait_killed(pid_t child)
{
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGKILL);
}

/* ---- kill -9 ---------------------------------------------------------------------------------------- */

enum { WRITERS = 4 };

struct answer {
    int writer;
    int64_t sum;
};

struct writer {
    struct fixture *f;
    int index;
    int pipe;
};

static void *answer_for_ever(void *arg)
{
    struct writer *w = arg;
    char key[16];
    snprintf(key, sizeof key, "n%d", w->index);
    for (;;) {
        struct answer answer = {.writer = w->index};
        if (do_increment(w->f, "id", key, 1, &answer.sum) != STORE_OK ||
            write(w->pipe, &answer, sizeof answer) != sizeof answer) {
            _exit(4);
        }
    }
}

static pid_t start_writers(struct fixture *f, int *from)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(stdout);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0) {
        close(ends[1]);
        *from = ends[0];
        return child;
    }
    close(ends[0]);
    open_or_exit(f);
    struct writer writers[WRITERS];
    pthread_t thread;
    for (int i = 0; i < WRITERS; i++) {
        writers[i] = (struct writer){f, i, ends[1]};
        pthread_create(&thread, NULL, answer_for_ever, &writers[i]);
    }
    pthread_join(thread, NULL);
    _exit(0);
}

static void kill_and_check(struct fixture *f, unsigned answers)
{
    int from;
    int64_t last[WRITERS] = {0};
    struct answer answer;
    pid_t child = start_writers(f, &from);
    for (unsigned i = 0; i < answers; i++) {
        assert_int_equal(read(from, &answer, sizeof answer), sizeof answer);
        last[answer.writer] = answer.sum;
    }
    assert_int_equal(kill(child, SIGKILL), 0);
    while (read(from, &answer, sizeof answer) == sizeof answer) {
        last[answer.writer] = answer.sum;
    }
    close(from);
    wait_killed(child);
    fixture_open(f);
    for (int i = 0; i < WRITERS; i++) {
        char key[16];
        int64_t sum;
        snprintf(key, sizeof key, "n%d", i);
        assert_int_equal(do_increment(f, "id", key, 0, &sum), STORE_OK);
        assert_true(sum == last[i] || sum == last[i] + 1 || last[i] == 0);
    }
    fixture_close(f);
}

static void what_was_answered_outlives_kill(void **state)
{
    struct fixture *f = *state;
    f->options.sync_ms = 60000; /* nothing reaches saved.mdb while they run */
    fixture_open(f);
    assert_int_equal(do_create(f, "id", 1000), STORE_OK);
    fixture_close(f);
    for (unsigned round = 0; round < 12; round++) {
        kill_and_check(f, 1 + round * 97);
    }
    f->options.strict = true;
    kill_and_check(f, 100);
}

static void a_killed_worker_leaves_nothing_undone(void **state)
{
    struct fixture *f = *state;
    f->options.sync_ms = 60000;
    fixture_open(f);
    assert_int_equal(do_create(f, "id", 1000), STORE_OK);
    fixture_close(f);
    kill_and_check(f, 300); /* closes in order, after the kill: carries over what the killed one left */
    f->options.boot_id = "boot-2";
    fixture_open(f);
    assert_non_null(do_get(f, "id", "n0", 1));
    int64_t sum;
    assert_int_equal(do_increment(f, "id", "n0", 0, &sum), STORE_OK);
    assert_true(sum > 0);
}

/* ---- the machine restarts ------------------------------------------------------------------------------ */

static void a_restart_continues_from_what_was_saved(void **state)
{
    struct fixture *f = *state;
    fixture_open(f);
    assert_int_equal(do_create(f, "id", 1000), STORE_OK);
    assert_int_equal(do_set(f, "id", "k", "\"kept\"", 1), STORE_OK);
    fixture_close(f);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        f->options.sync_ms = 60000;
        open_or_exit(f);
        do_set(f, "id", "k", "\"too late\"", 1);
        kill(getpid(), SIGKILL);
    }
    wait_killed(child);
    struct buffer live = BUFFER_EMPTY;
    file_load(f, "live.mdb", &live);
    /* The same run of the machine: the answered value is there. */
    struct buffer boot = BUFFER_EMPTY;
    file_load(f, "boot", &boot);
    assert_true(str_eq(buffer_str(&boot), STR("boot-1\n")));
    /* Another one: what had been saved. */
    f->options.boot_id = "boot-2";
    fixture_open(f);
    assert_string_equal(do_get(f, "id", "k", 1), "\"kept\"");
    assert_int_equal(do_set(f, "id", "k", "\"new\"", 1), STORE_OK);
    fixture_close(f);
    /* And again the first: its live.mdb is gone, not mistaken for a current one. */
    f->options.boot_id = "boot-1";
    fixture_open(f);
    assert_string_equal(do_get(f, "id", "k", 1), "\"new\"");
    buffer_free(&live);
    buffer_free(&boot);
}

/* A copy of saved.mdb as it is now, opened elsewhere: has it the value? */
static bool saved_has(const struct fixture *f, const char *id, const char *key)
{
    struct buffer bytes = BUFFER_EMPTY;
    file_load(f, "saved.mdb", &bytes);
    struct fixture *copy = fixture_make(&store_lmdb);
    file_store(copy, "saved.mdb", bytes.data, bytes.len);
    copy->options.boot_id = "elsewhere";
    fixture_open(copy);
    bool has = do_get(copy, id, key, 1) != NULL;
    fixture_free(copy);
    buffer_free(&bytes);
    return has;
}

static void grouped_changes_are_saved_without_being_asked(void **state)
{
    struct fixture *f = *state;
    f->options.sync_ms = 10;
    fixture_open(f);
    assert_int_equal(do_create(f, "id", 1000), STORE_OK);
    assert_int_equal(do_set(f, "id", "k", "1", 1), STORE_OK);
    time_t give_up = time(NULL) + 30;
    while (!saved_has(f, "id", "k")) {
        assert_true(time(NULL) < give_up);
        usleep(5000);
    }
    assert_int_equal(do_remove(f, "id", "k", 1), STORE_OK);
    while (saved_has(f, "id", "k")) {
        assert_true(time(NULL) < give_up);
        usleep(5000);
    }
}

/* ---- two workers ------------------------------------------------------------------------------------------ */

static pid_t start_counter(struct fixture *f, int times, bool strict)
{
    fflush(stdout);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0) {
        return child;
    }
    f->options.strict = strict;
    f->options.sync_ms = 3;
    open_or_exit(f);
    for (int i = 0; i < times; i++) {
        if (do_increment(f, "id", "n", 1, NULL) != STORE_OK) {
            _exit(4);
        }
    }
    f->ops->close(f->store);
    _exit(0);
}

static void two_workers_share_the_files(void **state)
{
    struct fixture *f = *state;
    fixture_open(f);
    assert_int_equal(do_create(f, "id", 1000), STORE_OK);
    fixture_close(f);
    pid_t a = start_counter(f, 400, false);
    pid_t b = start_counter(f, 400, false);
    pid_t c = start_counter(f, 50, true);
    pid_t victim = start_counter(f, 1000000, false);
    usleep(20000); /* not a wait for anything: any moment is as good for the kill */
    kill(victim, SIGKILL);
    wait_exit(a, 0);
    wait_exit(b, 0);
    wait_exit(c, 0);
    wait_killed(victim);
    int64_t sum;
    int64_t saved;
    fixture_open(f);
    assert_int_equal(do_increment(f, "id", "n", 0, &sum), STORE_OK);
    assert_true(sum >= 850);
    fixture_close(f);
    f->options.boot_id = "boot-2"; /* and saved.mdb says the same */
    fixture_open(f);
    assert_int_equal(do_increment(f, "id", "n", 0, &saved), STORE_OK);
    assert_int_equal(saved, sum);
}

static void a_worker_follows_a_map_that_grew(void **state)
{
    struct fixture *f = *state;
    char value[60001];
    memset(value, 'v', 60000);
    value[0] = value[59999] = '"';
    value[60000] = '\0';
    f->options.max_bytes = 1 << 20;
    int go[2];
    assert_int_equal(pipe(go), 0);
    fflush(stdout);
    pid_t child = fork(); /* before there are threads */
    if (child == 0) {
        char byte;
        if (read(go[0], &byte, 1) != 1) {
            _exit(5);
        }
        struct fixture *other = calloc(1, sizeof *other);
        *other = *f;
        other->out = BUFFER_EMPTY;
        other->options.max_bytes = 200 << 20;
        open_or_exit(other);
        char id[16];
        for (int i = 0; i < 1500; i++) {
            snprintf(id, sizeof id, "big%d", i);
            struct store_op op = {
                .kind = STORE_CREATE, .id = str_of(id), .expires = 1000, .key = STR("v"), .json = str_of(value)};
            if (store_run(other->ops, other->store, &op) != STORE_OK) {
                _exit(4);
            }
        }
        other->ops->close(other->store);
        _exit(0);
    }
    fixture_open(f);
    assert_int_equal(do_create(f, "small", 1000), STORE_OK);
    assert_int_equal(write(go[1], "x", 1), 1);
    close(go[0]);
    close(go[1]);
    wait_exit(child, 0);
    assert_string_equal(do_get(f, "big1499", "v", 1), value);
    assert_int_equal(f->ops->count(f->store), 1501);
    assert_int_equal(do_increment(f, "small", "n", 1, NULL), STORE_FULL); /* its own limit is smaller */
    assert_int_equal(do_destroy(f, "big0"), STORE_OK);
    assert_int_equal(do_touch(f, "small", 1, 2000), STORE_OK);
}

/* ---- waiting ------------------------------------------------------------------------------------------------- */

struct counted {
    struct store_op op;
    _Atomic unsigned *done;
    unsigned order;
};

static void count_done(struct store_op *op)
{
    struct counted *c = op->context;
    c->order = atomic_fetch_add(c->done, 1);
}

static void submitted_operations_are_answered_in_order(void **state)
{
    enum { MANY = 2000 };
    struct fixture *f = *state;
    static struct counted many[MANY];
    _Atomic unsigned done = 0;
    fixture_open(f);
    assert_int_equal(do_create(f, "id", 1000), STORE_OK);
    for (unsigned i = 0; i < MANY; i++) {
        many[i] = (struct counted){.op = {.kind = STORE_INCREMENT,
                                          .id = STR("id"),
                                          .key = STR("n"),
                                          .number = 1,
                                          .done = count_done,
                                          .context = &many[i]},
                                   .done = &done};
        f->ops->submit(f->store, &many[i].op);
    }
    fixture_close(f); /* answers what was submitted before */
    assert_int_equal(done, MANY);
    for (unsigned i = 0; i < MANY; i++) {
        assert_int_equal(many[i].op.result, STORE_OK);
        assert_int_equal(many[i].op.number, i + 1);
        assert_int_equal(many[i].order, i);
    }
}

struct on_loop {
    struct fixture *f;
    struct loop *loop;
    unsigned running;
    unsigned waiting; /* coroutines that wait for the store now */
    unsigned most_waiting;
    unsigned failures;
    struct task start;
};

static void store_coroutine(void *arg)
{
    struct on_loop *on = arg;
    for (int i = 0; i < 50; i++) {
        on->waiting++;
        on->most_waiting = on->waiting > on->most_waiting ? on->waiting : on->most_waiting;
        on->failures += do_increment(on->f, "id", "n", 1, NULL) != STORE_OK;
        on->waiting--;
    }
    if (--on->running == 0) {
        loop_stop(on->loop);
    }
}

static void start_coroutines(struct task *task)
{
    struct on_loop *on = CONTAINER_OF(task, struct on_loop, start);
    for (int i = 0; i < 10; i++) {
        on->running++;
        if (!coroutine_start(on->loop, store_coroutine, on)) {
            on->failures++;
            on->running--;
        }
    }
}

static void coroutines_wait_without_blocking_their_loop(void **state)
{
    struct fixture *f = *state;
    f->options.strict = true;
    fixture_open(f);
    assert_int_equal(do_create(f, "id", 1000), STORE_OK);
    struct on_loop on = {.f = f, .loop = loop_create(0), .start.run = start_coroutines};
    assert_non_null(on.loop);
    loop_post(on.loop, &on.start);
    loop_run(on.loop);
    coroutine_pool_trim(on.loop, 0);
    loop_destroy(on.loop);
    assert_int_equal(on.failures, 0);
    assert_int_equal(on.most_waiting, 10);
    assert_string_equal(do_get(f, "id", "n", 1), "500");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_was_answered_outlives_kill),
        TEST(a_killed_worker_leaves_nothing_undone),
        TEST(a_restart_continues_from_what_was_saved),
        TEST(grouped_changes_are_saved_without_being_asked),
        TEST(two_workers_share_the_files),
        TEST(a_worker_follows_a_map_that_grew),
        TEST(submitted_operations_are_answered_in_order),
        TEST(coroutines_wait_without_blocking_their_loop),
    };
    log_level_set(LOG_ERROR + 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
