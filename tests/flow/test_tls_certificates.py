"""Certificates of HTTPS: which one is shown, how they are reloaded, listed and stapled."""

import hashlib
import os
import re
import signal
import socket
import ssl
import stat
import subprocess
import threading

import pytest

from certificates import client_context, openssl, serial_of, write_pair
from https import anyone, connect, curl, fetch, s_client, serial, serial_in
from kiln_server import PATIENCE, build_dir, free_port, wait_for


# ---- certificates ----------------------------------------------------------------------------------


def test_a_certificate_for_localhost_is_made_at_the_first_start(https, tmp_path):
    kiln = https(install=False)
    made = tmp_path / "certs" / "localhost"
    assert stat.S_IMODE((made / "privkey.pem").stat().st_mode) == 0o600
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert "self-signed" in kiln.log()
    url = f"https://localhost:{kiln.tls_port}/"
    assert curl(kiln, "--cacert", made / "fullchain.pem", "--resolve", f"localhost:{kiln.tls_port}:127.0.0.1", url).stdout == b"hello"
    context = client_context(made / "fullchain.pem")
    for name in ("localhost", "127.0.0.1"):
        with connect(kiln, context, name) as s:
            assert fetch(s).endswith(b"hello")
    before = (made / "fullchain.pem").read_bytes()
    kiln.stop()
    kiln.start()
    assert (made / "fullchain.pem").read_bytes() == before  # whoever trusts it is not asked again


def test_no_certificate_is_made_where_there_is_one(https, tmp_path):
    kiln = https()
    assert os.listdir(tmp_path / "certs") == ["localhost"] and "self-signed" not in kiln.log()


def test_names_choose_certificates(https, ca, tmp_path):
    certs = tmp_path / "certs"
    one, _ = ca.install(certs, "example.com", "example.com", "www.example.com")
    wild, _ = ca.install(certs, "wild", "*.example.com")
    other, _ = ca.install(certs, "example.org")
    kiln = https()
    context = ca.context()
    assert serial(kiln, context, "example.com") == serial_in(one)
    assert serial(kiln, context, "WWW.Example.COM") == serial_in(one)  # an exact name before a wildcard
    assert serial(kiln, context, "shop.example.com") == serial_in(wild)
    assert serial(kiln, context, "example.org") == serial_in(other)
    for name in ("a.b.example.com", "com"):  # a wildcard stands for one label
        assert serial(kiln, anyone(), name) == serial(kiln, anyone(), None)


def test_unknown_names_get_the_default(https, ca, tmp_path):
    first, _ = ca.install(tmp_path / "certs", "a.example")
    second, _ = ca.install(tmp_path / "certs", "b.example")
    kiln = https()
    assert serial(kiln, anyone(), "unknown.example") == serial_in(first)
    assert serial(kiln, anyone(), None) == serial_in(first)
    kiln.write_config(DefaultCertificate="b.example")
    kiln.reload()
    wait_for(lambda: serial(kiln, anyone(), "unknown.example") == serial_in(second), "the other default")
    default, _ = ca.install(tmp_path / "certs", "default", "c.example")
    kiln.write_config(DefaultCertificate="")
    kiln.reload()
    wait_for(lambda: serial(kiln, anyone(), "unknown.example") == serial_in(default), "the directory default/")


def test_unknown_names_are_refused_by_an_alert(https, ca):
    kiln = https(UnknownNames="refuse")
    with pytest.raises(ssl.SSLError, match="TLSV1_UNRECOGNIZED_NAME"):
        connect(kiln, anyone(), "unknown.example")
    with connect(kiln, ca.context()) as s:
        assert fetch(s).endswith(b"hello")
    assert serial(kiln, anyone(), None)  # who names none is served


def test_rsa_and_ecdsa_side_by_side(https, ca, tmp_path):
    certs = tmp_path / "certs"
    ecdsa, _ = ca.install(certs, "localhost", kind="ec")
    rsa, _ = ca.install(certs, "localhost", kind="rsa", suffix="-rsa")
    other_ecdsa, _ = ca.install(certs, "example.com", kind="ec")
    other_rsa, _ = ca.install(certs, "example.com-rsa", "example.com", kind="rsa")
    kiln = https(install=False)
    for name, chains in (("localhost", (ecdsa, rsa)), ("example.com", (other_ecdsa, other_rsa))):
        for ciphers, chain in (("ECDHE-ECDSA-AES128-GCM-SHA256", chains[0]), ("ECDHE-RSA-AES128-GCM-SHA256", chains[1])):
            context = ca.context(version=ssl.TLSVersion.TLSv1_2)
            context.set_ciphers(ciphers)
            assert serial(kiln, context, name) == serial_in(chain)
        assert serial(kiln, ca.context(), name) == serial_in(chains[0])  # ECDSA when the client takes both
        result = s_client(kiln, "-servername", name, "-sigalgs", "RSA-PSS+SHA256", "-CAfile", ca.cert)
        assert re.search(rb"Peer signature type: (RSA-PSS|rsa_pss_rsae_sha256)", result.stdout)  # OpenSSL before 3.5, and since


def test_certbots_layout(https, ca, tmp_path):
    """live/<domain>/ holds links into archive/; a renewal writes there and moves new links into place."""
    archive, live = tmp_path / "archive" / "localhost", tmp_path / "live" / "localhost"
    archive.mkdir(parents=True)
    live.mkdir(parents=True)
    (live.parent / "README").write_text("nothing of ours")

    def renew(number, chain, key):
        for name, text in (("privkey", key), ("fullchain", chain)):
            (archive / f"{name}{number}.pem").write_text(text)
            link = live / f"{name}.pem"
            if link.is_symlink():
                link.unlink()
            link.symlink_to(f"../../archive/localhost/{name}{number}.pem")

    first, second = ca.pair("localhost"), ca.pair("localhost")
    renew(1, *first)
    kiln = https(install=False, CertDir=str(tmp_path / "live"))
    assert serial(kiln, ca.context()) == serial_in(first[0])
    renew(2, *second)
    wait_for(lambda: serial(kiln, ca.context()) == serial_in(second[0]), "the renewed certificate")
    third = ca.pair("localhost")
    (archive / "privkey2.pem").write_text(third[1])  # in place: no event in live/
    (archive / "fullchain2.pem").write_text(third[0])
    wait_for(lambda: serial(kiln, ca.context()) == serial_in(third[0]), "what the links lead to")


@pytest.mark.parametrize("link", ["live", "live/localhost", "current"])
def test_links_on_the_way_are_exchanged(https, ca, tmp_path, link):
    """The files stay, and none of their directories changes: another link takes the place of the first."""
    first, second = (ca.install(tmp_path / name, "localhost")[0] for name in ("one", "two"))
    targets = {"live": ("one", "two"), "live/localhost": ("../one/localhost", "../two/localhost"), "current": ("one", "two")}[link]
    if link == "current":
        (tmp_path / "live/localhost").mkdir(parents=True)
        for name in ("fullchain.pem", "privkey.pem"):
            (tmp_path / "live/localhost" / name).symlink_to(f"../../current/localhost/{name}")
    (tmp_path / link).parent.mkdir(exist_ok=True)
    (tmp_path / link).symlink_to(targets[0])
    kiln = https(install=False, CertDir=str(tmp_path / "live"))
    assert serial(kiln, ca.context()) == serial_in(first)
    (tmp_path / "fresh").symlink_to(targets[1])
    os.rename(tmp_path / "fresh", tmp_path / link)
    # Once a minute all is looked at anyhow: sooner it is by the event.
    wait_for(lambda: serial(kiln, ca.context()) == serial_in(second), "what the new link leads to", 30)


def test_of_two_for_a_name_the_valid_one_is_shown(https, ca, tmp_path):
    ca.install(tmp_path / "certs", "a", "two.example", dates=TO_COME)
    good, _ = ca.install(tmp_path / "certs", "b", "two.example")
    ca.install(tmp_path / "certs", "c", "two.example", dates=ENDED)
    kiln = https()
    assert serial(kiln, ca.context(), "two.example") == serial_in(good)
    assert "certificate a is not valid before 2090-01-01" in kiln.log() and "certificate c has ended" in kiln.log()


# ---- reload ------------------------------------------------------------------------------------------


def test_a_new_pair_is_taken_over_and_connections_stay(https, ca, tmp_path):
    kiln = https()
    before = serial(kiln, ca.context())
    with connect(kiln, ca.context()) as s:
        fetch(s)
        chain, _ = ca.install(tmp_path / "certs", "localhost")
        wait_for(lambda: serial(kiln, ca.context()) == serial_in(chain), "the new certificate")
        assert serial_of(s.getpeercert(binary_form=True)) == before
        assert fetch(s).endswith(b"hello")
    new, _ = ca.install(tmp_path / "certs", "new.example")
    wait_for(lambda: "certificate new.example loaded" in kiln.log(), "the added one")
    wait_for(lambda: serial(kiln, anyone(), "new.example") == serial_in(new), "the added one")


ENDED, TO_COME = ("20200101000000Z", "20210101000000Z"), ("20900101000000Z", "20910101000000Z")
BROKEN = {
    "another key": (lambda ca, pair: (pair[0], ca.pair("localhost")[1]), "does not belong to the certificate"),
    "no certificate": (lambda ca, pair: ("", pair[1]), "no certificate in it"),
    "half a certificate": (lambda ca, pair: (pair[0][:400], pair[1]), "no certificate in it"),
    "half a chain": (lambda ca, pair: (pair[0][:-300], pair[1]), "certificate 2 in it cannot be read"),
    "no key": (lambda ca, pair: (pair[0], "nothing\n"), "no private key"),
    "half a key": (lambda ca, pair: (pair[0], pair[1][:100]), "no private key"),
    "no file": (lambda ca, pair: (pair[0], None), "privkey.pem cannot be read"),
    "ended": (lambda ca, pair: ca.pair("localhost", dates=ENDED), "it has ended, on 2021-01-01"),
    "of the future": (lambda ca, pair: ca.pair("localhost", dates=TO_COME), "it is not valid before 2090-01-01"),
    "another name": (lambda ca, pair: ca.pair("other.example"), "it is not for localhost"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_pair_keeps_the_old(https, ca, tmp_path, kind):
    make, why = BROKEN[kind]
    kiln = https()
    good = serial(kiln, ca.context())
    chain, key = make(ca, ca.pair("localhost"))
    write_pair(tmp_path / "certs", "localhost", chain, key or "")
    if key is None:
        (tmp_path / "certs/localhost/privkey.pem").unlink()
    kiln.wait_log(f"error .*certificate localhost not taken: .*{why}.*the one before stays in use")
    assert serial(kiln, ca.context()) == good
    table = subprocess.run([build_dir() / "kiln", "listcerts", f"--PidFile={kiln.pid_file}"], capture_output=True, text=True)
    assert re.search(f"not taken  .*{why}", table.stdout), table
    kiln.signal(signal.SIGHUP)
    kiln.wait_log("config reloaded")
    assert serial(kiln, ca.context()) == good
    chain, _ = ca.install(tmp_path / "certs", "localhost")
    wait_for(lambda: serial(kiln, ca.context()) == serial_in(chain), "the repaired pair")


def test_a_key_with_a_passphrase_is_named(https, ca, tmp_path):
    chain, key = ca.pair("example.com")
    locked = openssl("pkey", "-aes256", "-passout", "pass:secret", data=key.encode()).decode()
    write_pair(tmp_path / "certs", "example.com", chain, locked)
    kiln = https()
    assert "certificate example.com not taken: the private key has a passphrase" in kiln.log()
    assert "secret" not in kiln.log()


def test_a_certificate_that_is_gone_is_no_longer_used(https, ca, tmp_path):
    ca.install(tmp_path / "certs", "example.com")
    kiln = https(UnknownNames="refuse")
    assert serial(kiln, ca.context(), "example.com")
    for file in ("privkey.pem", "fullchain.pem"):
        (tmp_path / "certs" / "example.com" / file).unlink()
    kiln.wait_log("certificate example.com is gone")

    def refused():
        try:
            return not serial(kiln, ca.context(), "example.com")
        except ssl.SSLError:
            return True

    wait_for(refused, "the alert")


def test_https_comes_and_goes_with_the_config(server, ca, tmp_path):
    ca.install(tmp_path / "certs", "localhost")
    kiln = server(files={"index.html": "hello"}).start()
    kiln.tls_port = free_port()
    kiln.write_config(HttpsPorts=[kiln.tls_port])
    kiln.reload("config reloaded")

    def speaks():
        try:
            with connect(kiln, ca.context()) as s:
                return fetch(s).endswith(b"hello")
        except OSError:
            return False

    wait_for(speaks, "an answer on the new port")
    kiln.write_config(HttpsPorts=[])
    kiln.reload("config reloaded")

    def closed():
        try:
            socket.create_connection(("127.0.0.1", kiln.tls_port), timeout=PATIENCE).close()
            return False
        except ConnectionRefusedError:
            return True

    wait_for(closed, "the port closed")


def test_port_and_directory_from_the_command_line(server, ca, tmp_path):
    ca.install(tmp_path / "elsewhere", "localhost")
    port = free_port()
    kiln = server(files={"index.html": "hello"}, args=[f"--httpsPort={port}", f"--certPath={tmp_path / 'elsewhere'}"]).start()
    kiln.tls_port = port
    with connect(kiln, ca.context()) as s:
        assert fetch(s).endswith(b"hello")


def kiln_says(*arguments, cwd=None) -> subprocess.CompletedProcess:
    return subprocess.run([build_dir() / "kiln", *map(str, arguments)], capture_output=True, text=True, cwd=cwd, timeout=60)


def test_listcerts_of_a_directory(ca, tmp_path):
    certs = tmp_path / "certs"
    ca.install(certs, "example.com", "example.com", "*.example.com", days=200)
    ca.install(certs, "soon.example", days=10, kind="rsa")
    run = lambda *a: kiln_says("listcerts", *a, cwd=tmp_path)
    text = run(certs).stdout
    assert "names    example.com, *.example.com" in text and "ECDSA, 256 bits" in text
    assert re.search(r"in (199|200) days\n", text) and re.search(r"in (9|10) days: RENEW IT\n", text)
    assert "RSA, 2048 bits" in text
    assert "issuer   Kiln Test CA" in text
    (tmp_path / "www").mkdir()
    without_days = lambda table: re.sub(r"in \d+ days", "", table)  # which may pass in between
    assert without_days(run("--certPath=certs").stdout) == without_days(text)  # no server runs here
    assert "no certificates in" in run(ca.directory).stdout
    assert "cannot be read" in run(tmp_path / "nowhere").stdout
    assert run("a", "b").returncode == 2


def days_of(table: str, directory: str) -> int:
    """Until the certificate ends, as listcerts says."""
    entry = table[table.index(directory + "\n") :]
    return int(re.search(r"expires  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, in (\d+) days", entry)[1])


def test_the_commands_of_a_running_server(https, ca, tmp_path):
    """listcerts tells what is in use, loadcerts reads all anew at once, clearcerts forgets what cannot be read now."""
    certs = tmp_path / "certs"
    kiln = https()
    run = lambda command: kiln_says(command, f"--PidFile={kiln.pid_file}", cwd=tmp_path)
    listed = run("listcerts")
    assert listed.returncode == 0 and days_of(listed.stdout, "localhost") in (89, 90), listed
    before = serial(kiln, ca.context())

    chain, _ = ca.install(certs, "localhost", "localhost", days=40)
    loaded = run("loadcerts")
    assert loaded.returncode == 0 and days_of(loaded.stdout, "localhost") in (39, 40)
    assert serial(kiln, ca.context()) == serial_in(chain) != before  # the answer came when the worker used it

    ca.install(certs, "soon.example", days=5)
    with connect(kiln, ca.context()) as open_one:
        write_pair(certs, "localhost", ca.pair("localhost")[0], ca.pair("localhost")[1])  # do not belong together
        broken = run("loadcerts")
        assert broken.returncode == 1 and "not taken  the key does not belong" in re.sub(r"private ", "", broken.stdout), broken
        assert days_of(broken.stdout, "localhost") in (39, 40)
        assert days_of(broken.stdout, "soon.example") in (4, 5) and "RENEW IT" in broken.stdout
        assert serial(kiln, ca.context()) == serial_in(chain)

        cleared = run("clearcerts")
        assert cleared.returncode == 1 and "not used" in cleared.stdout
        assert serial(kiln, anyone()) != serial_in(chain)
        assert fetch(open_one).endswith(b"hello")
    chain, _ = ca.install(certs, "localhost", "localhost")
    assert run("clearcerts").returncode == 0
    assert serial(kiln, ca.context()) == serial_in(chain)


def test_commands_find_the_server_that_took_over(https, tmp_path):
    kiln = https()
    elder = kiln.pid
    kiln.upgrade()
    assert kiln.pid != elder
    assert "localhost" in kiln_says("listcerts", f"--PidFile={kiln.pid_file}", cwd=tmp_path).stdout


def test_loadcerts_waits_for_the_worker(https, ca, tmp_path):
    """And says so when that goes on for too long, as with one that hangs."""
    kiln = https()
    worker = kiln.worker_pid()
    chain, _ = ca.install(tmp_path / "certs", "localhost", "localhost", days=40)
    os.kill(worker, signal.SIGSTOP)
    try:
        hung = kiln_says("loadcerts", f"--PidFile={kiln.pid_file}", cwd=tmp_path)
    finally:
        os.kill(worker, signal.SIGCONT)
    assert hung.returncode == 1 and days_of(hung.stdout, "localhost") in (39, 40), hung
    assert "a worker does not use them yet" in hung.stdout
    loaded = kiln_says("loadcerts", f"--PidFile={kiln.pid_file}", cwd=tmp_path)
    assert loaded.returncode == 0 and "a worker" not in loaded.stdout, loaded
    assert serial(kiln, ca.context()) == serial_in(chain)
    # One that is gone keeps nobody waiting.
    os.kill(worker, signal.SIGSTOP)
    asking = subprocess.Popen([build_dir() / "kiln", "loadcerts", f"--PidFile={kiln.pid_file}"], cwd=tmp_path, stdout=subprocess.PIPE)
    wait_for(lambda: kiln.log().count("certificates are read again, by command") == 3, "the command")
    os.kill(worker, signal.SIGKILL)
    assert asking.wait(timeout=PATIENCE) == 0 and b"does not use them" not in asking.stdout.read()
    asking.stdout.close()
    wait_for(lambda: kiln.worker_pid() not in (None, worker), "a new worker")


def test_commands_that_reach_nobody(server, tmp_path):
    nobody = kiln_says("loadcerts", f"--PidFile={tmp_path / 'kiln.pid'}", cwd=tmp_path)
    assert nobody.returncode == 1 and "no server runs here" in nobody.stderr
    (tmp_path / "old.pid").write_text(f"{os.getpid()}\n")
    gone = kiln_says("clearcerts", f"--PidFile={tmp_path / 'old.pid'}", cwd=tmp_path)
    assert gone.returncode == 1 and f"no server runs as process {os.getpid()}" in gone.stderr
    assert kiln_says("loadcerts", "certs", cwd=tmp_path).returncode == 2
    kiln = server(files={"index.html": "hello"}).start()
    plain = kiln_says("loadcerts", f"--PidFile={kiln.pid_file}", cwd=tmp_path)
    assert plain.returncode == 1 and "this server has no HTTPS" in plain.stdout


def test_expiry_is_warned_of(https, ca, tmp_path):
    ca.install(tmp_path / "certs", "soon.example", days=29)
    ca.install(tmp_path / "certs", "later.example", days=32)
    kiln = https()
    assert re.search(r"warning .*certificate soon.example ends in (28|29) days: renew", kiln.log())
    assert "later.example ends" not in kiln.log()


# ---- exchanging certificates under load ---------------------------------------------------------------------


def test_certificates_change_under_load_without_a_failed_handshake(https, ca, tmp_path):
    kiln = https(HandshakeRate=0)
    seen, failures, stop = set(), [], threading.Event()

    def load():
        context = ca.context()
        while not stop.is_set():
            try:
                with connect(kiln, context) as s:
                    assert fetch(s).endswith(b"hello")
                    seen.add(serial_bytes(s))
            except Exception as error:
                failures.append(repr(error))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: seen, "the first certificate")
        for _ in range(6):
            before = set(seen)
            ca.install(tmp_path / "certs", "localhost")
            wait_for(lambda: seen - before, "the next certificate")
        kiln.signal(signal.SIGHUP)
        kiln.wait_log("config reloaded")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures and len(seen) >= 7


def serial_bytes(s):
    return hashlib.sha256(s.getpeercert(binary_form=True)).hexdigest()


# ---- OCSP ---------------------------------------------------------------------------------------------------


class Responder:
    """`openssl ocsp` as the authority's responder."""

    def __init__(self, ca, directory):
        self.ca, self.port, self.index, self.process = ca, free_port(), directory / "index.txt", None

    def extension(self):
        return f"tlsfeature=status_request\nauthorityInfoAccess=OCSP;URI:http://127.0.0.1:{self.port}/"

    def start(self, chain, state="V\t491231235959Z\t"):
        number = f"{serial_in(chain):02X}"
        self.index.write_text(f"{state}\t{number}\tunknown\t/CN=localhost\n")
        self.process = subprocess.Popen(
            ["openssl", "ocsp", "-index", self.index, "-port", str(self.port), "-rsigner", self.ca.cert, "-rkey", self.ca.key,
             "-CA", self.ca.cert, "-ndays", "1"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def responder(ca, tmp_path):
    one = Responder(ca, tmp_path)
    yield one
    one.stop()


def stapled(kiln, ca) -> bool:
    text = s_client(kiln, "-status", "-servername", "localhost", "-CAfile", ca.cert).stdout
    return b"OCSP Response Status: successful" in text and b"Cert Status: good" in text


def test_what_a_certificate_asks_for_is_stapled(https, ca, responder, tmp_path):
    chain, _ = ca.install(tmp_path / "certs", "localhost", extra=responder.extension())
    responder.start(chain)
    kiln = https(install=False)
    wait_for(lambda: stapled(kiln, ca), "the staple")
    responder.stop()  # the next worker has it from the supervisor
    worker = kiln.worker_pid()
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: kiln.worker_pid() != worker, "a new worker")
    assert stapled(kiln, ca)


def test_a_revoked_certificate_is_told_and_not_stapled(https, ca, responder, tmp_path):
    chain, _ = ca.install(tmp_path / "certs", "localhost", extra=responder.extension())
    responder.start(chain, "R\t491231235959Z\t251130000000Z")
    kiln = https(install=False)
    kiln.wait_log("no OCSP answer to staple for localhost: (the certificate was revoked|it does not answer)")
    assert not stapled(kiln, ca)
    with connect(kiln, ca.context()) as s:
        assert fetch(s).endswith(b"hello")


def test_nobody_is_asked_for_certificates_that_do_not_want_it(https, ca, responder, tmp_path):
    """Though they say who could be. The other one is fetched later, so its answer shows that the time was there."""
    chain, _ = ca.install(tmp_path / "certs", "localhost", extra=responder.extension())
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        extra = f"authorityInfoAccess=OCSP;URI:http://127.0.0.1:{nobody.getsockname()[1]}/"
        ca.install(tmp_path / "certs", "a.example", extra=extra)
        responder.start(chain)
        kiln = https(install=False)
        wait_for(lambda: stapled(kiln, ca), "the other's staple")
        assert b"OCSP response: no response sent" in s_client(kiln, "-status", "-servername", "a.example").stdout
        nobody.setblocking(False)
        with pytest.raises(BlockingIOError):
            nobody.accept()
