"""Endpoints that use the SDK wrongly: they get errors, and the worker that serves everybody goes on."""

import pytest

from kiln_server import exchange, wait_for


@pytest.fixture
def survivor(endpoint):
    """As endpoint(); at the end the first worker must still be the one that serves."""
    made = []

    def make(body, **more):
        kiln = endpoint(body, **more)
        made.append((kiln, kiln.worker_pid()))
        return kiln

    yield make
    for kiln, worker in made:
        assert kiln.get("/e?end").status
        assert kiln.worker_pid() == worker


def test_a_strange_return_value_is_no_crash(survivor):
    kiln = survivor("return atoi(kiln_query(ctx));")
    for value in (-2147483648, 2147483647, -9, 600, 199):
        answer = kiln.get(f"/e?{value}")
        assert answer.status == 500
        assert b"crash" not in answer.body
        if value != -2147483648:
            kiln.wait_log(f"kiln_run returned {value}, which is no HTTP status")


def test_the_minus_one_of_a_failed_read_sends_no_memory(survivor):
    kiln = survivor('kiln_printf(ctx, "%d", kiln_write(ctx, "x", (size_t)-1)); return 0;')
    assert kiln.get("/e").body == b"-5"


def test_nothing_to_defer_is_refused(survivor):
    kiln = survivor('kiln_printf(ctx, "%d", kiln_defer(ctx, NULL, NULL)); return 0;')
    assert kiln.get("/e").body == b"-5"


def test_a_deferred_function_that_kept_the_context_gets_errors(survivor):
    before = """
        #include <unistd.h>
        static void nothing(void *arg) { (void)arg; }
        static void late(void *arg)
        {
            char byte;
            kiln_log(NULL, KILN_LOG_NOTICE, "late: %d %d %d %d %d %d %d %d", kiln_puts(arg, "x"), kiln_flush(arg),
                     kiln_sleep(arg, 60000), kiln_wait_fd(arg, 0, KILN_READ, 60000), kiln_offload(arg, nothing, NULL),
                     kiln_session_set(arg, "a", "b"), (int)kiln_body_read(arg, &byte, 1), kiln_defer(arg, nothing, NULL));
        }
    """
    kiln = survivor('kiln_defer(ctx, late, ctx); kiln_puts(ctx, "ok"); return 0;', before=before)
    client = kiln.client()
    for _ in range(2):
        assert exchange(client, "POST", "/e", b"abc").body == b"ok"
    client.close()
    wait_for(lambda: kiln.log().count("late: -7 -7 -1 -1 -7 -7 -7 -7") >= 2, "the calls were refused")
