"""The command line: help, version, kiln config, and what is said about mistakes."""

import json
import os
import pty
import re
import shutil
import subprocess

import pytest
from kiln_server import ROOT, build_dir

SEED = ROOT / "tests/support/JonCsWebConfig.json"


@pytest.fixture
def kiln(tmp_path):
    """kiln(*arguments) runs the program to its end in an empty directory."""

    def run(*arguments, **more):
        program = str(build_dir() / "kiln")
        return subprocess.run(
            [program, *map(str, arguments)], cwd=tmp_path, capture_output=True, text=True, timeout=60, **more
        )

    return run


def without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.strip().startswith("//"))


def test_version(kiln):
    for flag in ("--version", "-V"):
        result = kiln(flag)
        assert result.returncode == 0
        assert re.fullmatch(r"kiln \d+\.\d+\.\d+\n", result.stdout)


def test_help_teaches(kiln):
    result = kiln("--help")
    assert result.returncode == 0 and result.stderr == ""
    for part in ("Usage", "Examples", "kiln [OPTIONS] DIR", "--backend=DIR", "#include <kiln.h>", "Exit codes"):
        assert part in result.stdout
    headings = re.findall(r"^([A-Z][a-z ]+)(?: \(.*\))?$", result.stdout, re.MULTILINE)
    wanted = ["Listening", "Sites", "Limits", "Timeouts", "Static files", "Endpoints", "Sessions", "Logging", "Process", "Admin", "Later"]
    assert [h for h in headings if h in wanted] == wanted
    assert "\033" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 110


def on_terminal(*arguments, **environment):
    """What the program prints when its output is a terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(build_dir() / "kiln", ["kiln", *arguments], {**os.environ, "TERM": "xterm", **environment})
    output = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            break
        if not piece:
            break
        output += piece
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return output.decode()


def test_help_has_colour_on_a_terminal_only():
    assert "\033[1mUsage\033[0m" in on_terminal("--help", NO_COLOR="")
    assert "\033" not in on_terminal("--help", NO_COLOR="1")
    assert "\033" not in on_terminal("--help", NO_COLOR="", TERM="dumb")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--httpPrt=80", "."], "--httpPrt: unknown option; did you mean --HttpPorts?"),
        (["--hlep"], "--hlep: unknown option; did you mean --help?"),
        (["--zzzzzzzz"], "--zzzzzzzz: unknown option; kiln --help lists them all"),
        (["--threads", "."], "--threads: the value is missing; write --threads=VALUE"),
        (["-x"], "-x: unknown option"),
        (["a", "b"], "b: one directory at a time, please; a was named first"),
        (["a", "--backend=b"], "a: the site is named twice"),
        (["--webPath=a", "--backend=b"], "--BackendDir: the site is named twice; --WWWdir came first"),
        (["--help=yes"], "--help takes no value"),
        (["config"], "config: what about it?"),
        (["config", "--defualts"], "--defualts: unknown option; did you mean --defaults?"),
        (["--config="], "--config: the file is missing"),
    ],
)
def test_wrong_arguments(kiln, arguments, message):
    result = kiln(*arguments)
    assert result.returncode == 2
    assert "kiln: " + message in result.stderr
    assert "kiln --help tells more" in result.stderr
    assert result.stdout == ""


def test_several_mistakes_are_told_together(kiln):
    lines = kiln("--a=1", "--b=2", "x", "y").stderr.splitlines()
    assert len(lines) == 4


def test_default_file_is_commented_and_has_no_mistake(kiln, tmp_path):
    result = kiln("config", "--defaults")
    assert result.returncode == 0
    (tmp_path / "kiln.json").write_text(result.stdout)
    (tmp_path / "www").mkdir()
    values = json.loads(without_comments(result.stdout))
    assert values["HttpPorts"] == [8080] and values["MaxRequestBodySize"] == 8000000000
    check = kiln("config", "--check")
    assert (check.returncode, check.stdout, check.stderr) == (0, "kiln.json: no mistakes found\n", "")
    printed = json.loads(kiln("config", "--print").stdout)
    (tmp_path / "kiln.json").write_text("{}")
    assert json.loads(kiln("config", "--print").stdout) == printed
    # Every key is in the file, the inactive ones as comments.
    for key in printed:
        assert re.search(rf'^    (// )?"{key}": ', result.stdout, re.MULTILINE)


def test_the_earlier_servers_file_loads(kiln, tmp_path):
    shutil.copy(SEED, tmp_path)
    (tmp_path / "www").mkdir()
    result = kiln("config", "--check", SEED.name)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{SEED.name}: no mistakes found\n"
    assert f'{SEED.name}:6: "EnableHtaccess": accepted, but not active in this version' in result.stderr
    # One warning for each inactive key, nothing else.
    assert all("accepted, but not active" in line for line in result.stderr.splitlines())


def test_check_finds_every_mistake(kiln, tmp_path):
    (tmp_path / "kiln.json").write_text('{\n  "MaxDirDepht": 3,\n  "Threads": 1000,\n  "Logging": "yes"\n}\n')
    result = kiln("config", "--check")
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr.splitlines() == [
        'kiln: kiln.json:2: "MaxDirDepht": unknown key; did you mean "MaxDirDepth"?',
        'kiln: kiln.json:3: "Threads": expected a whole number from 0 to 64; found 1000',
        'kiln: kiln.json:4: "Logging": expected true or false; found "yes"',
        "kiln: 3 problems in the settings",
    ]


def test_mistakes_without_end_are_told_up_to_a_hundred(kiln, tmp_path):
    (tmp_path / "kiln.json").write_text('{"HttpPorts": [' + ",\n".join(["80"] * 60000) + "]}")
    result = kiln("config", "--check")
    assert result.returncode == 1
    assert result.stderr.count("each port once") == 100
    (tmp_path / "kiln.json").write_text('{"HttpPorts": [' + ",".join(["0"] * 3000000) + "]}")
    assert "not so many ports" in kiln("config", "--check").stderr


def test_check_needs_a_file(kiln):
    result = kiln("config", "--check", "absent.json")
    assert result.returncode == 1
    assert "absent.json: cannot be read: No such file or directory" in result.stderr


def test_no_start_with_mistakes(kiln, tmp_path):
    (tmp_path / "kiln.json").write_text('{"Threads": true}')
    (tmp_path / "www").mkdir()
    for arguments in ([], ["www"], ["--config=kiln.json", "www"]):
        result = kiln(*arguments)
        assert result.returncode == 1
        assert 'kiln.json:1: "Threads": expected a whole number from 0 to 64; found true' in result.stderr


def test_no_start_without_a_directory(kiln):
    result = kiln()
    assert result.returncode == 1
    assert re.search(r"BackendDir /.*/www: No such file or directory; name the directory to serve: kiln DIR", result.stderr)
    result = kiln("absent")
    assert result.returncode == 1
    assert re.search(r"directory /.*/absent: No such file or directory", result.stderr)


def test_no_start_with_a_wrong_value_on_the_command_line(kiln, tmp_path):
    (tmp_path / "www").mkdir()
    result = kiln("--httpPort=80,http", "--loglevel=loud", "www")
    assert result.returncode == 1
    assert '--HttpPorts: expected a list of ports from 0 to 65535 (0: the system chooses); found "http"' in result.stderr
    assert '--LogLevel: expected one of "debug", "info", "notice", "warning" or "error"; found "loud"' in result.stderr


def test_command_line_stands_above_the_file(kiln, tmp_path):
    (tmp_path / "kiln.json").write_text('{"Threads": 1, "HttpPorts": [80], "WWWdir": "www"}')
    (tmp_path / "www").mkdir()
    (tmp_path / "other").mkdir()
    printed = json.loads(kiln("config", "--print", "--threads=2", "--backend=other", "--FILECACHESIZE=1M").stdout)
    assert printed["Threads"] == 2
    assert printed["HttpPorts"] == [80]
    assert printed["FileCacheSize"] == 1048576
    assert printed["WWWdir"] == "" and printed["BackendDir"] == str(tmp_path / "other")


def test_help_fails_when_it_cannot_be_written():
    with open("/dev/full", "w") as full:
        result = subprocess.run([build_dir() / "kiln", "--help"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 1
    assert "No space left on device" in result.stderr


def test_accounts_that_do_not_exist_are_mistakes(kiln, tmp_path):
    (tmp_path / "kiln.json").write_text('{"BackendDir": ".", "User": "no-such-user", "Group": "no-such-group"}')
    result = kiln("config", "--check")
    assert result.returncode == 1
    assert 'User "no-such-user" does not exist' in result.stderr
    assert 'Group "no-such-group" does not exist' in result.stderr
    (tmp_path / "kiln.json").write_text('{"BackendDir": ".", "User": "root", "Group": "0"}')
    assert kiln("config", "--check").returncode == 0
