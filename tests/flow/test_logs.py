"""Log files: the access log, the error log, opened anew by SIGHUP."""

import json
import os
import re
import signal

import pytest
from kiln_server import PATIENCE, exchange, free_port, wait_for
from process_facts import PAGE, lines_of


def test_access_log_combined(server, tmp_path):
    log = tmp_path / "access.log"
    with server(files=PAGE, config={"Logging": True, "AccessLog": str(log)}) as kiln:
        answer = kiln.get('/?q="x"', headers={"User-Agent": 'evil" "\\', "Referer": "http://here/"})
        wait_for(lambda: lines_of(log), "a line in the access log")
    (line,) = lines_of(log)
    assert re.fullmatch(
        r'127\.0\.0\.1 - - \[\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}\] "GET /\?q=\S*x\S* HTTP/1\.1" '
        + str(answer.status)
        + r' \d+ "http://here/" "evil\\" \\"\\\\"',
        line,
    ), line


def test_access_log_json_cannot_be_forged(server, tmp_path):
    log = tmp_path / "access.log"
    config = {"Logging": True, "AccessLog": str(log), "AccessLogFormat": "JSON"}
    with server(files=PAGE, config=config) as kiln:
        kiln.raw(b'GET /a HTTP/1.1\r\nHost: h\r\nUser-Agent: a"},\xff{"\tb\r\nConnection: close\r\n\r\n')
        wait_for(lambda: lines_of(log), "a line in the access log")
    (line,) = lines_of(log)
    entry = json.loads(line)
    assert entry["user_agent"] == 'a"},\ufffd{"\tb'
    assert entry["target"] == "/a" and entry["host"] == "h" and entry["method"] == "GET"
    assert entry["client"] == "127.0.0.1" and entry["protocol"] == "HTTP/1.1"
    assert isinstance(entry["status"], int) and isinstance(entry["bytes"], int)


def test_last_lines_are_written_at_the_end(server, tmp_path):
    log = tmp_path / "access.log"
    with server(files=PAGE, config={"Logging": True, "AccessLog": str(log)}) as kiln:
        client = kiln.client()
        for i in range(500):
            exchange(client, "GET", f"/{i}")
        client.close()
    assert [re.search(r'"GET /(\d+) ', line)[1] for line in lines_of(log)] == [str(i) for i in range(500)]


def test_logs_are_reopened_after_a_rename(server, tmp_path):
    access, errors = tmp_path / "access.log", tmp_path / "error.log"
    config = {"Logging": True, "AccessLog": str(access), "ErrorLog": str(errors)}
    with server(files=PAGE, config=config) as kiln:
        kiln.get("/before")
        wait_for(lambda: lines_of(access), "a line in the access log")
        access.rename(tmp_path / "access.log.1")
        errors.rename(tmp_path / "error.log.1")
        kiln.signal(signal.SIGHUP)
        wait_for(lambda: errors.exists() and "config reloaded" in errors.read_text(), "the new error log")
        kiln.get("/after")
        wait_for(lambda: lines_of(access), "a line in the new access log")
    wait_for(lambda: "stopped" in errors.read_text(), "the last line")
    assert "/before" in (tmp_path / "access.log.1").read_text()
    assert "/after" not in (tmp_path / "access.log.1").read_text()
    assert "/after" in access.read_text()
    assert "serving" in (tmp_path / "error.log.1").read_text()
    assert "stopped" in errors.read_text()


def test_logging_is_switched_on_by_reload(server, tmp_path):
    log = tmp_path / "access.log"
    with server(files=PAGE) as kiln:
        kiln.get("/silent")
        kiln.write_config(Logging=True, AccessLog=str(log))
        kiln.reload(r"notice \[\d+\] config reloaded")
        kiln.get("/heard")
        wait_for(lambda: lines_of(log), "a line in the access log")
    assert "/silent" not in log.read_text() and "/heard" in log.read_text()


def test_logging_is_switched_off_by_reload_and_the_last_lines_stay_in_the_file(server, tmp_path):
    log = tmp_path / "access.log"
    with server(files=PAGE, config={"Logging": True, "AccessLog": str(log)}) as kiln:
        kiln.get("/last")
        kiln.write_config(Logging=False)
        kiln.reload(r"notice \[\d+\] config reloaded")
        kiln.get("/silent")
    assert "/last" in log.read_text() and "/silent" not in log.read_text()
    assert "GET /" not in kiln.log()


def test_log_file_that_cannot_be_opened_is_explained(server, tmp_path):
    config = {"ErrorLog": str(tmp_path / "none" / "error.log"), "HttpPorts": [free_port()]}
    kiln = server(files=PAGE, config=config).start(wait=False)
    assert kiln.process.wait(timeout=PATIENCE) == 1
    assert "cannot open ErrorLog" in kiln.log() and "create its directory first" in kiln.log()
    kiln.kill()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_full_disk_is_survived_and_said_once(server):
    with server(files=PAGE, config={"Logging": True, "AccessLog": "/dev/full"}) as kiln:
        kiln.get("/")
        kiln.wait_log("the access log cannot be written: No space left on device")
        kiln.get("/")  # its line is tried at the end, at the latest
    assert kiln.log().count("the access log cannot be written") == 1
