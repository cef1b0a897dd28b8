"""Sessions through a running server: what a browser sees of them, and what outlives a kill."""

import os
import re
import signal
import threading

import pytest

from kiln_server import wait_for

ENDPOINT = r"""
#include <kiln.h>
#include <string.h>

int kiln_run(kiln_context *ctx, const char *path)
{
    const char *what = kiln_query_get(ctx, "do");
    const char *key = kiln_query_get(ctx, "key");
    const char *value = kiln_query_get(ctx, "value");
    int result = KILN_OK;
    (void)path;
    kiln_content_type(ctx, "text/plain");
    if (strcmp(what, "add") == 0) {
        int64_t sum = 0;
        result = kiln_session_increment(ctx, key, 1, &sum);
        kiln_printf(ctx, "%lld", (long long)sum);
    } else if (strcmp(what, "set") == 0) {
        result = kiln_session_set(ctx, key, value);
    } else if (strcmp(what, "get") == 0) {
        const char *text = kiln_session_get(ctx, key);
        kiln_printf(ctx, "%s", text != NULL ? text : "(none)");
    } else if (strcmp(what, "all") == 0) {
        kiln_json_send(ctx, kiln_session_get_all(ctx));
    } else if (strcmp(what, "renew") == 0) {
        result = kiln_session_renew(ctx);
    } else if (strcmp(what, "destroy") == 0) {
        result = kiln_session_destroy(ctx);
    }
    if (result != KILN_OK) {
        return kiln_error(ctx, 500, kiln_sprintf(ctx, "result %d", result));
    }
    return 0;
}
"""


class Browser:
    """Keeps the one cookie."""

    def __init__(self, kiln, cookie=None):
        self.kiln, self.cookie = kiln, cookie

    def ask(self, what, key="k", value=""):
        headers = {"Cookie": self.cookie} if self.cookie else {}
        answer = self.kiln.get(f"/s?do={what}&key={key}&value={value}", headers)
        set_cookie = answer.headers.get("Set-Cookie")
        if set_cookie:
            self.cookie = None if "Max-Age=0" in set_cookie else set_cookie.split(";")[0]
        assert answer.status == 200, answer
        self.last = answer
        return answer.text


@pytest.fixture
def kiln(server):
    def start(**config):
        return server(config=config, files={"s._c": ENDPOINT})

    return start


def test_a_browser_gets_one_cookie_with_the_right_words(kiln):
    with kiln() as running:
        browser = Browser(running)
        assert browser.ask("get") == "(none)"
        assert browser.cookie is None, "reading begins no session"
        browser.ask("set", value="one")
        assert re.fullmatch(
            r"SSID=[A-Za-z0-9]{22}; Path=/; Max-Age=2592000; HttpOnly; SameSite=Lax", browser.last.headers["Set-Cookie"]
        )
        assert browser.ask("get") == "one"
        assert "Set-Cookie" not in browser.last.headers
        browser.ask("set", "other", "two")
        assert running.get("/s?do=all&key=k", {"Cookie": browser.cookie}).json() == {"k": "one", "other": "two"}
        old = browser.cookie
        browser.ask("destroy")
        assert browser.cookie is None
        assert Browser(running, old).ask("get") == "(none)"


def test_the_cookie_has_the_name_and_letters_of_the_config(kiln):
    with kiln(SessionCookieName="visit", Rand_Alphabet="0123456789abcdef", SessionTimeout=600) as running:
        browser = Browser(running)
        browser.ask("set", value="one")
        assert re.fullmatch(r"visit=[0-9a-f]{32}; Path=/; Max-Age=600; HttpOnly; SameSite=Lax", browser.last.headers["Set-Cookie"])
        assert browser.ask("get") == "one"


@pytest.mark.parametrize(
    "planted", ["A" * 22, "../../etc/passwd", "..%2f..%2fetc%2fpasswd.....", "", "A" * 5000, "\x80" * 22, '"' + "A" * 22 + '"']
)
def test_an_id_from_outside_is_never_used(kiln, planted):
    with kiln() as running:
        browser = Browser(running, f"SSID={planted}")
        browser.ask("set", value="mine")
        assert re.fullmatch(r"SSID=[A-Za-z0-9]{22}", browser.cookie)
        assert planted.strip('"') not in browser.cookie or planted == ""
        assert Browser(running, f"SSID={planted}").ask("get") == "(none)"
        names = {path.name for path in (running.base / "sess").iterdir()}
        assert names == {"live.mdb", "live.mdb-lock", "saved.mdb", "saved.mdb-lock", "boot", "lock"}


def test_a_login_makes_the_old_id_worthless(kiln):
    with kiln() as running:
        browser = Browser(running)
        browser.ask("set", value="cart")
        planted = browser.cookie
        browser.ask("renew")
        assert browser.cookie != planted
        browser.ask("set", "user", "ada")
        assert browser.ask("get") == "cart"
        thief = Browser(running, planted)
        assert thief.ask("get", "user") == "(none)" and thief.ask("get") == "(none)"


@pytest.mark.parametrize("config", [{}, {"SessionSync": "strict"}, {"SessionStore": "memory"}], ids=["grouped", "strict", "memory"])
def test_parallel_requests_lose_nothing(kiln, config):
    with kiln(**config) as running:
        first = Browser(running)
        first.ask("add")
        errors = []

        def work(number):
            try:
                browser = Browser(running, first.cookie)
                for _ in range(20):
                    browser.ask("add")
                    browser.ask("set", f"own{number}", "done")
            except Exception as error:  # shown below
                errors.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert first.ask("get") == str(1 + 12 * 20)
        values = running.get("/s?do=all&key=k", {"Cookie": first.cookie}).json()
        assert [values[f"own{i}"] for i in range(12)] == ["done"] * 12


def test_what_was_answered_outlives_kill_9_of_the_worker(kiln):
    with kiln(SessionSyncMs=60000) as running:
        browser = Browser(running)
        for round_number in range(1, 4):
            for _ in range(10):
                last = int(browser.ask("add"))
            worker = running.worker_pid()
            os.kill(worker, signal.SIGKILL)
            wait_for(lambda: running.worker_pid() != worker, "a new worker")
            browser = Browser(running, browser.cookie)
            assert browser.ask("get") == str(last) == str(10 * round_number)
        running.wait_log("worker")


def test_what_was_answered_outlives_kill_9_of_everything_in_mid_work(kiln):
    running = kiln(SessionSyncMs=60000).start()
    browser = Browser(running)
    browser.ask("add")
    answered = []

    def work():
        try:
            mine = Browser(running, browser.cookie)
            while True:
                answered.append(int(mine.ask("add")))
        except Exception:  # the end of the server
            return

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(answered) > 200, "work under way")
    os.killpg(running.pid, signal.SIGKILL)
    for thread in threads:
        thread.join()
    running.kill()
    with running:
        now = int(Browser(running, browser.cookie).ask("get"))
    assert max(answered) <= now <= max(answered) + 4, "answered and lost, or never sent"
    assert len(answered) == len(set(answered)), "no sum was given out twice"


def test_a_session_ends_and_is_removed(kiln):
    with kiln(SessionTimeout=1, ClearSessEveryXMin=0.01, LogLevel="info") as running:
        browser = Browser(running)
        browser.ask("set", value="short")
        running.wait_log("sessions: removed 1 that ended")
        assert browser.ask("get") == "(none)"


def test_sessions_survive_a_restart_and_a_change_of_the_store_options(kiln):
    running = kiln()
    with running:
        browser = Browser(running)
        browser.ask("set", value="kept")
    running.write_config(SessionSync="strict", SessionStoreSize="2G")
    with running:
        assert Browser(running, browser.cookie).ask("get") == "kept"


def test_a_store_that_cannot_be_used_is_refused_with_advice(kiln):
    running = kiln()
    with running:
        Browser(running).ask("set", value="x")
    store = running.base / "sess" / "live.mdb"
    store.write_bytes(b"not a store" * 1000)
    running.start(wait=False)
    running.process.wait(60)
    assert running.process.returncode != 0
    text = running.log()
    assert "live.mdb" in text and "Move live.mdb away" in text
    running.process = None
    assert store.read_bytes() == b"not a store" * 1000
    store.unlink()
    with running:
        Browser(running).ask("set", value="x")
