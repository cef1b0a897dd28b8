"""The SDK: waiting, leaving, memory, helpers and sessions. Each endpoint runs three times: see sdk_endpoint.py."""

import re
import socket
import struct
import threading

import pytest

from kiln_server import exchange, read_all, wait_for


# ---- waiting, leaving, cleaning up ---------------------------------------------------------------------------


def test_sleeping_requests_share_a_thread(endpoint):
    """200 requests that sleep half a second each are over long before 200 half seconds."""
    kiln = endpoint("return kiln_sleep(ctx, 500) ? 500 : kiln_puts(ctx, \"ok\");", config={"Threads": 1, "PoolThreads": 256})
    kiln.get("/e")
    sockets = [kiln.connect() for _ in range(200)]
    for s in sockets:
        s.sendall(b"GET /e HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    for s in sockets:
        assert read_all(s).endswith(b"\r\n\r\nok")
        s.close()


DRIP = """#include <kiln.h>
static volatile int drops;
int kiln_run(kiln_context *ctx, const char *path)
{
    if (*kiln_path_info(ctx) == 0) {
        return kiln_printf(ctx, "%d", drops);
    }
    while (kiln_puts(ctx, "x") == KILN_OK && kiln_flush(ctx) == KILN_OK) {
        drops++;
    }
    return 0;
}
"""


def test_one_that_flushes_without_having_to_wait_lets_others_have_their_turn(server):
    """Its drops have much room in the kernel. Another connection of the same loop is served in between."""
    kiln = server(config={"Threads": 1, "OptimizeEndpoints": False}, files={"drip._c": DRIP}).start()
    client = kiln.client()
    for _ in range(20):  # quick, so that it runs on the loop
        assert exchange(client, "GET", "/drip").text == "0"
    with kiln.connect() as s:
        s.sendall(b"GET /drip/now HTTP/1.1\r\nHost: x\r\n\r\n")
        seen = set()
        wait_for(lambda: len(seen.add(exchange(client, "GET", "/drip").text) or seen) > 5, "several turns of others")
    client.close()


def test_wait_fd(endpoint):
    kiln = endpoint(
        r"""
        int p[2], s[2];
        if (pipe(p) != 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, s) != 0) return 500;
        int none = kiln_wait_fd(ctx, p[0], KILN_READ, 20);
        int can_write = kiln_wait_fd(ctx, p[1], KILN_WRITE, -1);
        if (write(p[1], "x", 1) != 1) return 500;
        int can_read = kiln_wait_fd(ctx, p[0], KILN_READ, -1);
        close(s[1]);
        int hangup = kiln_wait_fd(ctx, s[0], KILN_READ, -1);
        int file = kiln_wait_fd(ctx, open("/etc/passwd", O_RDONLY), KILN_READ, 1000);
        kiln_printf(ctx, "%d %d %d %d %d %d %d", none, can_write, can_read, (hangup & KILN_READ) != 0, file,
            kiln_wait_fd(ctx, -1, KILN_READ, 0), kiln_wait_fd(ctx, p[0], 8, 0));
        close(p[0]), close(p[1]), close(s[0]);
        return 0;""",
        before="#include <unistd.h>\n#include <fcntl.h>\n#include <sys/socket.h>",
    )
    assert kiln.get("/e").text == "-2 2 1 1 -5 -5 -5"


def test_offload_blocks_nobody_and_may_use_the_context(endpoint):
    kiln = endpoint(
        r"""
        if (kiln_query_get(ctx, "fast")) return kiln_puts(ctx, "fast");
        int result = kiln_offload(ctx, work, ctx);
        kiln_printf(ctx, " %d", result);
        return 0;""",
        before=r"""
        #include <unistd.h>
        static void work(void *arg)
        {
            kiln_context *ctx = arg;
            kiln_log(ctx, KILN_LOG_NOTICE, "blocking now");
            size_t length = 0;
            const char *body = kiln_body(ctx, &length);
            kiln_printf(ctx, "%.*s", (int)length, body ? body : "");
            kiln_sleep(ctx, 10);
            while (access("/proc/self/fd/0", F_OK) == 0 && access(kiln_sprintf(ctx, "%s/.go", kiln_directory(ctx)), F_OK) != 0)
                usleep(1000);
        }""",
        config={"Threads": 1},
    )
    answers = []
    thread = threading.Thread(target=lambda: answers.append(kiln.post("/e", b"body").text))
    thread.start()
    kiln.wait_log("blocking now")
    assert kiln.get("/e?fast=1").text == "fast"
    (kiln.www / ".go").write_text("")
    thread.join()
    assert answers == ["body 0"]


LEAVE = r"""
    kiln_defer(ctx, note, "second");
    kiln_defer(ctx, note, "first");
    kiln_log(NULL, KILN_LOG_NOTICE, "begun");
    const char *how = kiln_query_get(ctx, "how");
    int result = KILN_OK;
    char buffer[10000];
    memset(buffer, 'x', sizeof buffer);
    if (strcmp(how, "sleep") == 0) result = kiln_sleep(ctx, 3600000);
    if (strcmp(how, "fd") == 0) result = kiln_wait_fd(ctx, kiln_atomic_load_int(&never[0]), KILN_READ, -1);
    if (strcmp(how, "body") == 0) { const char *b = kiln_body(ctx, NULL); result = b ? 1 : kiln_last_result(ctx); }
    if (strcmp(how, "stream") == 0) result = (int)kiln_body_read(ctx, buffer, sizeof buffer), result = result > 0 ? (int)kiln_body_read(ctx, buffer, sizeof buffer) : 1;
    if (strcmp(how, "write") == 0) while (result == KILN_OK) result = kiln_write(ctx, buffer, sizeof buffer);
    if (strcmp(how, "sse") == 0) { result = kiln_sse_begin(ctx); while (result == KILN_OK) { result = kiln_sse_ping(ctx); if (result == KILN_OK) result = kiln_sleep(ctx, 5); } }
    kiln_log(NULL, KILN_LOG_NOTICE, "woken %d gone %d write %d", result, kiln_is_gone(ctx), kiln_puts(ctx, "x"));
    return result;"""


@pytest.mark.parametrize("how", ["sleep", "fd", "body", "stream", "write", "sse"])
def test_the_client_leaves_in_the_middle(endpoint, how):
    kiln = endpoint(
        LEAVE,
        before=r"""
        #include <unistd.h>
        static int never[2];
        int kiln_load(kiln_module *module) { (void)module; return pipe(never); }
        void kiln_unload(kiln_module *module) { (void)module; close(never[0]); close(never[1]); }
        static void note(void *arg) { kiln_log(NULL, KILN_LOG_NOTICE, "deferred %s", (const char *)arg); }""",
    )
    body = how in ("body", "stream")
    with kiln.connect() as s:
        method, length = ("POST", b"Content-Length: 100\r\n") if body else ("GET", b"")
        s.sendall(f"{method} /e?how={how} HTTP/1.1\r\nHost: x\r\n".encode() + length + b"\r\n" + (b"half" if body else b""))
        kiln.wait_log("begun")
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    kiln.wait_log(r"woken -1 gone 1 write -1(?s:.)*deferred first(?s:.)*deferred second")
    assert kiln.get("/e?how=none").status == 200


def test_deferred_clean_ups_run_before_the_module_goes(endpoint):
    """Their code is in the module: it stays mapped until they have run."""
    kiln = endpoint(
        'kiln_defer(ctx, note, "x"); return kiln_puts(ctx, "ok");',
        before='static void note(void *arg) { kiln_log(NULL, KILN_LOG_NOTICE, "deferred %s", (const char *)arg); }\n'
        'void kiln_unload(kiln_module *m) { kiln_log(NULL, KILN_LOG_NOTICE, "unloaded %s", kiln_module_file(m)); }',
    )
    assert kiln.get("/e").text == "ok"
    source = kiln.www / "e._c"
    changed = source.read_text().replace('"ok"', '"changed"')
    source.with_name("e.tmp").write_text(changed)
    source.with_name("e.tmp").rename(source)
    wait_for(lambda: kiln.get("/e").text == "changed", "the new version")
    kiln.wait_log(r"deferred x(?s:.)*unloaded " + re.escape(str(source)))


# ---- memory, helpers, statics ------------------------------------------------------------------------------------


def test_memory_and_helpers(endpoint):
    kiln = endpoint(
        r"""
        int bad = 0;
        char *a = kiln_alloc(ctx, 10), *z = kiln_zalloc(ctx, 1000);
        bad += ((size_t)a & 15) != 0 || ((size_t)z & 15) != 0 || z[999] != 0;
        bad += strcmp(kiln_sprintf(ctx, "%s-%d-%.1f", "a", 7, 1.5), "a-7-1.5") != 0;
        bad += strcmp(kiln_strndup(ctx, "abcdef", 3), "abc") != 0 || strcmp(kiln_strdup(ctx, "x"), "x") != 0;
        bad += kiln_alloc(ctx, (size_t)1 << 40) != NULL || kiln_last_result(ctx) != KILN_NO_MEMORY;
        bad += strcmp(kiln_html_escape(ctx, "<a href='x'>"), "&lt;a href=&#39;x&#39;&gt;") != 0 || strcmp(kiln_html_escape(ctx, ""), "") != 0;
        bad += strcmp(kiln_url_encode(ctx, "a b/\xc3\xa4~"), "a%20b%2F%C3%A4~") != 0;
        size_t length;
        bad += strcmp(kiln_url_decode(ctx, "a%20b%2f+", &length), "a b/+") != 0 || length != 5;
        bad += kiln_url_decode(ctx, "%4", NULL) != NULL || kiln_last_result(ctx) != KILN_INVALID;
        char *r = kiln_random_text(ctx, 100), *s = kiln_random_text(ctx, 100);
        bad += strlen(r) != 100 || strcmp(r, s) == 0 || strspn(r, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789") != 100;
        int64_t n = 5;
        void *p = NULL;
        int i = 1;
        bad += kiln_atomic_add(&n, 2) != 7 || kiln_atomic_exchange(&n, 1) != 7 || kiln_atomic_load(&n) != 1;
        bad += !kiln_atomic_compare_exchange(&n, 1, 3) || kiln_atomic_compare_exchange(&n, 1, 4) || n != 3;
        bad += !kiln_atomic_compare_exchange_pointer(&p, NULL, &n) || kiln_atomic_load_pointer(&p) != &n;
        kiln_atomic_store(&n, 9), kiln_atomic_store_int(&i, 4), kiln_atomic_store_pointer(&p, NULL);
        bad += n != 9 || kiln_atomic_add_int(&i, -1) != 3 || kiln_atomic_load_int(&i) != 3 || p != NULL;
        bad += strlen(kiln_version()) == 0 || kiln_sdk_version() != (KILN_SDK_MAJOR << 16 | KILN_SDK_MINOR);
        kiln_log(ctx, KILN_LOG_WARNING, "two\nlines %d", bad);
        kiln_printf(ctx, "%d", bad);
        return 0;"""
    )
    assert kiln.get("/e").text == "0"
    kiln.wait_log(r"warning .*/e: two lines 0")


def test_a_static_counts_every_request_of_every_thread(endpoint):
    kiln = endpoint('static int n; kiln_printf(ctx, "%d", kiln_atomic_add_int(&n, 1)); return 0;')
    kiln.get("/e")
    seen = []

    def ask():
        client = kiln.client()
        seen.extend(int(exchange(client, "GET", "/e").text) for _ in range(100))
        client.close()

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(2, 602))


def test_one_value_per_thread(endpoint):
    """Set once per thread, found again, destroyed when the module goes."""
    kiln = endpoint(
        r"""
        int *mine = kiln_local_get(local);
        if (mine == NULL) {
            mine = calloc(1, sizeof *mine);
            kiln_atomic_add_int(&made, 1);
            if (mine == NULL || kiln_local_set(local, mine) != KILN_OK) return 500;
        }
        kiln_printf(ctx, "%d %d", ++*mine, kiln_atomic_load_int(&made));
        return 0;""",
        before=r"""
        static kiln_local *local;
        static int made, ended;
        static void end(void *value) { free(value); kiln_atomic_add_int(&ended, 1); }
        int kiln_load(kiln_module *m) { (void)m; local = kiln_local_create(end); return local == NULL; }
        void kiln_unload(kiln_module *m) { (void)m; kiln_local_delete(local); kiln_log(NULL, KILN_LOG_NOTICE, "made %d ended %d", made, ended); }""",
        config={"Threads": 2, "PoolThreads": 2},
    )
    total = 0
    for _ in range(20):
        count, made = map(int, kiln.get("/e").text.split())
        total += 1
        assert made <= 2 + 2 and count <= total  # loops, and the pool for the first ones
    source = kiln.www / "e._c"
    source.with_name("e.tmp").write_text("#include <kiln.h>\nint kiln_run(kiln_context *c, const char *p) { return kiln_puts(c, p); }")
    source.with_name("e.tmp").rename(source)
    wait_for(lambda: kiln.get("/e").text == "/e", "the new version")
    line = kiln.wait_log(r"made (\d) ended (\d)")
    assert line.group(1) == line.group(2)


# ---- sessions -----------------------------------------------------------------------------------------------------


def session_id(answer):
    found = re.match(r"SSID=(\w+); Path=/; Max-Age=\d+; HttpOnly; SameSite=Lax$", answer.headers["Set-Cookie"] or "")
    return found.group(1) if found else None


def test_sessions(endpoint):
    kiln = endpoint(
        r"""
        const char *what = kiln_query_get(ctx, "do");
        int result = KILN_OK;
        int64_t sum = -1;
        cJSON *tree = NULL;
        if (strcmp(what, "set") == 0) {
            tree = cJSON_CreateObject();
            cJSON_AddStringToObject(tree, "x", "y");
            result = kiln_session_set(ctx, "name", "A\"\xc3\xa4") | kiln_session_set_int(ctx, "n", 9007199254740993) | kiln_session_set_json(ctx, "tree", tree);
            cJSON_Delete(tree);
        }
        if (strcmp(what, "add") == 0) result = kiln_session_increment(ctx, "count", 2, &sum);
        if (strcmp(what, "conflict") == 0) result = kiln_session_increment(ctx, "name", 1, NULL);
        if (strcmp(what, "remove") == 0) result = kiln_session_remove(ctx, "name") | kiln_session_remove(ctx, "never");
        if (strcmp(what, "login") == 0) result = kiln_session_renew(ctx);
        if (strcmp(what, "logout") == 0) result = kiln_session_destroy(ctx);
        if (strcmp(what, "late") == 0) { kiln_flush(ctx); result = kiln_session_set(ctx, "a", "b"); }
        const char *name = kiln_session_get(ctx, "name");
        int why = kiln_last_result(ctx);
        tree = kiln_session_get_json(ctx, "tree");
        cJSON *all = kiln_session_get_all(ctx);
        kiln_printf(ctx, "%d|%lld|%s|%d|%lld|%d|%d|%s", result, (long long)sum, name ? name : "-", name ? 0 : why,
            (long long)kiln_session_get_int(ctx, "n", -7), tree && strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(tree, "x")), "y") == 0,
            all ? cJSON_GetArraySize(all) : -1, kiln_session_id(ctx) ? kiln_session_id(ctx) : "-");
        return 0;""",
        before='#include <cjson/cJSON.h>\n#pragma comment(lib, "cjson")',
    )

    def ask(what, cookie=None):
        return kiln.get(f"/e?do={what}", {"Cookie": f"a=b; SSID={cookie}"} if cookie else {})

    none = ask("read")
    assert none.text == "0|-1|-|-6|-7|0|-1|-" and none.headers["Set-Cookie"] is None
    begun = ask("set")
    one = session_id(begun)
    assert begun.text == f'0|-1|A"ä|0|9007199254740993|1|3|{one}' and begun.headers["Cache-Control"] == "no-store"
    again = ask("read", one)
    assert again.text == begun.text and again.headers["Set-Cookie"] is None
    assert ask("read", "planted" + one[7:]).text.endswith("|-")
    assert ask("add", one).text.startswith("0|2|") and ask("add", one).text.startswith("0|4|")
    assert ask("conflict", one).text.startswith("-5|")
    login = ask("login", one)
    two = session_id(login)
    assert two not in (None, one) and login.text.endswith(f"|4|{two}")
    assert ask("read", one).text.endswith("|-1|-")
    assert ask("remove", two).text.startswith("0|-1|-|-6|")
    logout = ask("logout", two)
    assert "SSID=;" in logout.headers["Set-Cookie"] and "Max-Age=0" in logout.headers["Set-Cookie"]
    assert ask("read", two).text.endswith("|-1|-")
    assert ask("late").text.startswith("-7|")


def test_parallel_requests_of_one_session_lose_nothing(endpoint):
    kiln = endpoint('int64_t n; int r = kiln_session_increment(ctx, "n", 1, &n); kiln_printf(ctx, "%lld", (long long)n); return r;')
    first = kiln.get("/e")
    cookie = {"Cookie": f"SSID={session_id(first)}"}
    seen = []

    def ask():
        client = kiln.client()
        seen.extend(int(exchange(client, "GET", "/e", headers=cookie).text) for _ in range(50))
        client.close()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(2, 202))
