"""HTTP/1.1 as bytes on a socket: RFC 9110/9112, request smuggling, framing. Cases and the rules by which an
outcome is judged; test_http1.py runs them.

An outcome is written as the statuses of every response in order, then C (the peer closed), R (reset)
or O (still open after the idle wait); +S when a request hidden in a body or header (/SMUG) was
answered. The server runs tests/plugins/echo._c for every path.
kind 'rej': the RFC wants 4xx/5xx and a close; 'acc': a valid request that must work; 'any': each of the
listed outcomes conforms."""

import re
import socket
import threading
import time

from kiln_server import PATIENCE

CASES = []
H = b'Host: x\r\n'
NX = b'GET /NEXT HTTP/1.1\r\nHost: x\r\n\r\n'
SM = b'GET /SMUG HTTP/1.1\r\nHost: x\r\n\r\n'
def b(s): return s.encode('latin-1') if isinstance(s, str) else s
def case(name, ref, data, kind, expect, lax=None, body=None, echo=None, heads=(), note='', steps=None, half=False):
    CASES.append(dict(name=name, ref=ref, data=data, kind=kind, expect=expect, lax=lax, body=body, echo=echo, heads=heads, note=note, steps=steps, half=half))
REJ = r'[45]\d\d [CR]'
def rej(name, ref, data, expect=REJ, **k): case(name, ref, b(data), 'rej', expect, **k)
def acc(name, ref, data, expect=r'200 O', **k): case(name, ref, b(data), 'acc', expect, **k)
def anyof(name, ref, data, expect, **k): case(name, ref, b(data), 'any', expect, **k)
def get(line, hdrs=b'', host=H, tail=b''): return b(line) + b'\r\n' + host + b(hdrs) + b'\r\n' + b(tail)
def post(hdrs, body=b'', host=H, ver=b'1.1'): return b'POST /p HTTP/' + ver + b'\r\n' + host + b(hdrs) + b'\r\n' + b(body)
CH = 'Transfer-Encoding: chunked\r\n'
def chunked(body, extra=''): return post(CH + extra, body)

# ---- request line ------------------------------------------------------------------------
anyof('rl-lowercase-method', '9110 9.1 case-sensitive', get('get / HTTP/1.1'), r'(400|405|501) [COR]', lax='app')
rej('rl-method-badchar', '9112 3.1 token', get('GE(T / HTTP/1.1'))
rej('rl-tabs', '9112 3', get('GET\t/\tHTTP/1.1'))
rej('rl-double-space', '9112 3 SHOULD', get('GET  / HTTP/1.1'))
rej('rl-double-space2', '9112 3', get('GET /  HTTP/1.1'))
rej('rl-trailing-space', '9112 3', get('GET / HTTP/1.1 '))
rej('rl-space-in-target', '9112 3.2', get('GET /a b HTTP/1.1'))
rej('rl-space-in-target-smug', '9112 3.2', get('GET /a HTTP/1.1 HTTP/1.0'))
anyof('rl-leading-3lf', '9112 2.2', b'\n\n\n' + get('GET / HTTP/1.1'), r'(200 O|400 C)')
rej('rl-leading-space', '9112 3', b' ' + get('GET / HTTP/1.1'))
rej('rl-leading-nul-line', '9112 2.2', b'\0junk\r\n' + get('GET / HTTP/1.1'))
rej('rl-no-version', '9112 3', get('GET /'), expect=r'(400 C|C)')
rej('rl-http09v', '9110 2.5', get('GET / HTTP/0.9'))
rej('rl-lower-http', '9112 2.3', get('GET / http/1.1'))
rej('rl-ver-110', '9112 2.3', get('GET / HTTP/1.10'))
rej('rl-ver-011', '9112 2.3', get('GET / HTTP/01.1'))
rej('rl-ver-junk', '9112 2.3', get('GET / HTTP/1.1x'))
rej('rl-ver-comma', '9112 2.3', get('GET / HTTP/1,1'))
rej('rl-h2-preface', '9113 3.4', b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0', expect=r'(400|505)? ?[CR]')
acc('rl-absolute', '9112 3.2.2', get('GET http://x/a?b HTTP/1.1'))
anyof('rl-absolute-otherhost', '9112 3.2.2 Host ignored', get('GET http://other/a HTTP/1.1'), r'(200 O|400 C)')
anyof('rl-absolute-ftp', '9112 3.2.2', get('GET ftp://x/a HTTP/1.1'), r'(200 O|4\d\d [CO])')
acc('rl-options-star', '9112 3.2.4', get('OPTIONS * HTTP/1.1'), expect=r'(200|204|405) [OC]')
rej('rl-get-star', '9112 3.2.4', get('GET * HTTP/1.1'))
rej('rl-get-authority', '9112 3.2.3', get('GET x:80 HTTP/1.1'))
rej('rl-fragment', '9112 3.2', get('GET /a#b HTTP/1.1'))
rej('rl-target-nul', '9112 3.2', get(b'GET /a\0b HTTP/1.1'))
rej('rl-target-highbyte', '9112 3.2', get(b'GET /\xe9 HTTP/1.1'))
rej('rl-target-bare-cr', '9112 2.2', get(b'GET /a\rb HTTP/1.1'))
rej('rl-target-del', '9112 3.2', get(b'GET /a\x7f HTTP/1.1'))
anyof('rl-target-badchars', '3986', get('GET /a"<>^`{|}\\ HTTP/1.1'), r'(400 C|200 O|404 O)')
rej('rl-pct-short', '3986', get('GET /% HTTP/1.1'), expect=r'(400|404) [CO]')
rej('rl-pct-nul', '3986', get('GET /a%00b HTTP/1.1'), expect=r'(400|404) [CO]')
acc('rl-pct-kept', '3986', get('GET /a%2Fb%2e%2E/%41?x=%26 HTTP/1.1'), echo=r'target=\[/a%2Fb%2e%2E/%41\?x=%26\]')
acc('rl-slashes', '3986', get('GET //a///b HTTP/1.1'), echo=r'target=\[//a///b\]')
anyof('rl-dots', '3986', get('GET /../../etc/passwd HTTP/1.1'), r'(400 C|200 O|404 O)')
acc('rl-uri-7900', '9112 3 >=8000 SHOULD', get('GET /' + 'a' * 7900 + ' HTTP/1.1'))
rej('rl-method-40k', '9112 3', get('A' * 40000 + ' / HTTP/1.1'), expect=r'((400|414|501) [CR]|R|C)')
# ---- Host -----------------------------------------------------------------------------------
rej('host-missing', '9112 3.2 MUST', get('GET / HTTP/1.1', host=b''))
rej('host-dup', '9112 3.2 MUST', get('GET / HTTP/1.1', 'Host: y\r\n'))
rej('host-dup-same', '9112 3.2 MUST', get('GET / HTTP/1.1', 'Host: x\r\n'))
rej('host-slash', '9112 3.2 MUST', get('GET / HTTP/1.1', host=b'Host: a/b\r\n'))
rej('host-at', '9110 7.2', get('GET / HTTP/1.1', host=b'Host: a@b\r\n'))
rej('host-comma', '9112 3.2', get('GET / HTTP/1.1', host=b'Host: a,b\r\n'))
rej('host-port-junk', '9110 7.2', get('GET / HTTP/1.1', host=b'Host: a:b\r\n'))
# ---- header syntax --------------------------------------------------------------------------
rej('hdr-tab-colon', '9112 5.1 MUST', get('GET / HTTP/1.1', 'X\t: y\r\n'))
anyof('hdr-obsfold', '9112 5.2', get('GET / HTTP/1.1', 'X-A: b\r\n c\r\n'), r'400 C', lax='fold', note='200 only if the value became "b c"')
rej('hdr-first-ws2', '9112 2.2', get('GET / HTTP/1.1', host=b' X: y\r\nHost: x\r\n'), expect=r'(400 C|200 O)')
rej('hdr-ws-only-line', '9112 2.2', get('GET / HTTP/1.1', ' \r\n'), expect=r'400 C')
rej('hdr-empty-name-first', '9112 5', get('GET / HTTP/1.1', host=b': x\r\nHost: x\r\n'))
rej('hdr-empty-name', '9112 5', get('GET / HTTP/1.1', 'A: b\r\n: x\r\nC: d\r\n'))
rej('hdr-colon-line-smug', '9112 5', get('GET / HTTP/1.1', b'A: b\r\n:\r\n' + SM))
rej('hdr-colon-x-smug', '9112 5', get('GET / HTTP/1.1', b'A: b\r\n: GET /x\r\nGET /SMUG HTTP/1.1\r\nHost: x\r\n'))
rej('hdr-nul-line-smug', '9110 5.5 MUST', get('GET / HTTP/1.1', b'A: b\r\n\0zzz\r\n' + SM))
rej('hdr-nul-line1-smug', '9110 5.5 MUST', b'GET / HTTP/1.1\r\nHost: x\r\n\0: b\r\nGET /SMUG HTTP/1.1\r\nHost: x\r\n\r\n')
rej('hdr-cr-value', '9110 5.5 MUST', get('GET / HTTP/1.1', b'X: a\rb\r\n'), expect=r'(400 C)')
rej('hdr-cr-line', '9112 2.2 MUST', get('GET / HTTP/1.1', b'X: a\rY: b\r\n'))
rej('hdr-crcrlf', '9112 2.2', get('GET / HTTP/1.1', b'X: a\r\r\n'))
rej('hdr-cr-end-smug', '9112 2.2', b'GET / HTTP/1.1\r\nHost: x\r\n\r\r\n' + SM, expect=r'400 C')
rej('hdr-name-paren', '9110 5.1', get('GET / HTTP/1.1', 'X(Y): b\r\n'))
rej('hdr-name-at', '9110 5.1', get('GET / HTTP/1.1', 'X@Y: b\r\n'))
rej('hdr-name-space-mid', '9110 5.1', get('GET / HTTP/1.1', 'X Y: b\r\n'))
acc('hdr-value-high', '9110 5.5 obs-text', get(b'GET / HTTP/1.1', b'X: \xe9\xff\r\n'))
acc('hdr-value-ows', '9110 5.5', get('GET / HTTP/1.1', 'X-W: \t a b \t \r\n'), echo=r'H\[X-W\]=\[a b\]', note='OWS must be stripped')
anyof('hdr-lf-inject-te', '9112 2.2 MAY', post(b'X: y\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n', b'0\r\n\r\n' ), r'400 C')
acc('hdr-value-7k', '9110 5.4', get('GET / HTTP/1.1', 'X: ' + 'v' * 7000 + '\r\n'))
rej('hdr-value-100k', '9110 5.4', get('GET / HTTP/1.1', 'X: ' + 'v' * 100000 + '\r\n'), expect=r'((431|400|494) [CR]|R)')
rej('hdr-name-100k', '9110 5.4', get('GET / HTTP/1.1', 'X' * 100000 + ': v\r\n'), expect=r'((431|400|494) [CR]|R)')
rej('hdr-cookie-big', '9110', get('GET / HTTP/1.1', 'Cookie: ' + 'a=b; ' * 2500 + '\r\n'), expect=r'(200 O|4\d\d [CR]|R)')
# ---- Content-Length ---------------------------------------------------------------------------
acc('cl-none', '9112 6.3', post('', NX), expect=r'200 200 O', body=0)
acc('cl-get-body', '9110 9.3.1', get('GET / HTTP/1.1', 'Content-Length: 5\r\n', tail=b'hello' + NX), expect=r'(200 200 O|400 C|200 C)', body=5)
acc('cl-leading-zero', '9110 8.6', post('Content-Length: 0005\r\n', b'hello' + NX), expect=r'200 200 O', body=5)
acc('cl-trailing-ows', '9110 5.5', post('Content-Length: 5 \t\r\n', b'hello' + NX), expect=r'200 200 O', body=5)
rej('cl-dup-differ', '9112 6.3 MUST', post('Content-Length: 5\r\nContent-Length: 6\r\n', b'hello' + NX))
rej('cl-dup-smug', '9112 6.3 MUST', post(('Content-Length: 0\r\nContent-Length: %d\r\n' % len(SM)), SM))
rej('cl-dup-smug2', '9112 6.3 MUST', post(('Content-Length: %d\r\nContent-Length: 0\r\n' % len(SM)), SM), expect=REJ)
anyof('cl-list-same', '9110 8.6', post('Content-Length: 5, 5\r\n', b'hello' + NX), r'(400 C|200 200 O)')
rej('cl-list-differ', '9112 6.3 MUST', post('Content-Length: 5, 6\r\n', b'hello' + NX))
for n, v in [('plus', '+5'), ('minus', '-5'), ('hex', '0x5'), ('space-mid', '5 5'), ('empty', ''), ('semi', '5;x'), ('exp', '1e1'), ('under', '5_0'), ('float', '5.0'), ('vt', '\x0b5'), ('quote', '"5"'), ('overflow', '18446744073709551616'), ('wrap', '18446744073709551621'), ('huge', '9' * 60), ('comma', ',5'), ('junk', '5abc')]:
    rej('cl-' + n, '9112 6.3 MUST', post('Content-Length: %s\r\n' % v, b'hello' + NX))
anyof('cl-2^64-1', '9110 8.6', post('Content-Length: 18446744073709551615\r\n', b'hello'), r'((413|400) [CR])', note='no sane server accepts')
anyof('cl-2^63', '9110 8.6', post('Content-Length: 9223372036854775808\r\n', b'hello'), r'((413|400) [CR])')
rej('cl-space-colon-smug', '9112 5.1 MUST', post('Content-Length : %d\r\n' % len(SM), SM))
rej('cl-nul', '9110 5.5', post(b'Content-Length: 5\0\r\n', b'hello' + NX))
rej('cl-cr', '9112', post(b'Content-Length: 5\r0\r\n', b'hello' + NX))
rej('cl-obsfold2', '9112 5.2', post('Content-Length: 5\r\n 0\r\n', b'hello' + NX), expect=REJ)
# ---- Transfer-Encoding ------------------------------------------------------------------------
acc('te-ok', '9112 7.1', chunked(b'5\r\nhello\r\n0\r\n\r\n' + NX), expect=r'200 200 O', body=5)
acc('te-upper', '9112 7', post('Transfer-Encoding: CHUNKED\r\n', b'5\r\nhello\r\n0\r\n\r\n' + NX), expect=r'200 200 O', body=5)
BODY = b'0\r\n\r\n' + SM
CLB = 'Content-Length: %d\r\n' % len(BODY)
anyof('te-cl', '9112 6.1 MUST close', post(CH + CLB, BODY), r'(400 C|200 C)')
anyof('te-cl-rev', '9112 6.1 MUST close', post(CLB + CH, BODY), r'(400 C|200 C)')
for n, v in [('x', 'xchunked'), ('identity', 'identity'), ('gzip-chunked', 'gzip, chunked'), ('identity-chunked', 'identity, chunked'), ('chunked-identity', 'chunked, identity'), ('chunked-chunked', 'chunked, chunked'), ('param', 'chunked;q=1'), ('quoted', '"chunked"'), ('vt', '\x0bchunked'), ('empty', ''), ('comma', ', chunked'), ('comma2', 'chunked,'), ('cow', 'cow'), ('nbsp', 'chunked\xa0'), ('split', 'chun ked'), ('cr', '\rchunked'), ('crend', 'chunked\r')]:
    rej('te-' + n, '9112 6.1/6.3 MUST', post(('Transfer-Encoding: %s\r\n' % v) + CLB, BODY))
rej('te-x-nocl', '9112 6.3 MUST 400', post('Transfer-Encoding: xchunked\r\n', BODY))
acc('te-leading-tab', '9110 5.5 OWS', post('Transfer-Encoding:\tchunked\r\n', b'5\r\nhello\r\n0\r\n\r\n' + NX), expect=r'(200 200 O)', body=5)
rej('te-space-colon', '9112 5.1 MUST', post('Transfer-Encoding : chunked\r\n' + CLB, BODY))
rej('te-space-colon-cl0', '9112 5.1 MUST', post('Transfer-Encoding : chunked\r\nContent-Length: 4\r\n', b'%x\r\n' % len(SM) + SM + b'\r\n0\r\n\r\n'))
rej('te-dup', '9112 6.1', post(CH + CH, b'5\r\nhello\r\n0\r\n\r\n' + NX))
rej('te-dup-identity', '9112 6.1', post('Transfer-Encoding: identity\r\n' + CH, b'5\r\nhello\r\n0\r\n\r\n' + NX))
rej('te-dup-identity2', '9112 6.1', post(CH + 'Transfer-Encoding: identity\r\n', b'0\r\n\r\n' + SM), expect=REJ)
rej('te-dup-x-cl', '9112 6.1', post(CH + 'Transfer-Encoding: x\r\n' + CLB, BODY))
rej('te-obsfold', '9112 5.2', post('Transfer-Encoding:\r\n chunked\r\n' + 'Content-Length: 4\r\n', b'%x\r\n' % len(SM) + SM + b'\r\n0\r\n\r\n'))
rej('te-obsfold-tail', '9112 5.2', post('X: y\r\n Transfer-Encoding: chunked\r\n' + CLB, BODY), expect=r'(400 C)')
rej('te-foldname', '9112 5.2', post('Transfer-: chunked\r\n Encoding\r\n' + CLB, BODY), note='fold glued to the NAME makes Transfer-Encoding: chunked appear')
rej('te-name-nul', '9110 5.5', post(b'Transfer-Encoding\0: chunked\r\n' + b(CLB), BODY))
rej('te-cr-hidden', '9112 2.2', post(b'X: y\rTransfer-Encoding: chunked\r\n' + b(CLB), BODY))
anyof('te-underscore', '9110', post('Transfer_Encoding: chunked\r\n' + CLB, BODY), r'(400 C|200 O)')
rej('te-colon-nl', '9112 5', post('Transfer-Encoding\r\n: chunked\r\n' + CLB, BODY))
# ---- chunked body -----------------------------------------------------------------------------
acc('ch-upper-hex', '9112 7.1', chunked(b'A\r\n0123456789\r\n0\r\n\r\n' + NX), expect=r'200 200 O', body=10)
acc('ch-lead-zero', '9112 7.1', chunked(b'0005\r\nhello\r\n000\r\n\r\n' + NX), expect=r'200 200 O', body=5)
anyof('ch-ext-bws', '9112 7.1.1 BWS', chunked(b'5 ; a=b\r\nhello\r\n0\r\n\r\n' + NX), r'(200 200 O|400 C)')
rej('ch-size-leadsp', '9112 7.1', chunked(b' 5\r\nhello\r\n0\r\n\r\n' + NX))
for n, v in [('0x', b'0x5'), ('plus', b'+5'), ('minus', b'-5'), ('empty', b''), ('g', b'g'), ('junk', b'5xyz'), ('under', b'5_'), ('dot', b'5.0'), ('2^64+5', b'10000000000000005'), ('long', b'f' * 40), ('nul', b'5\0'), ('comma', b'5,')]:
    rej('ch-size-' + n, '9112 7.1 MUST', chunked(v + b'\r\nhello\r\n0\r\n\r\n' + NX))
rej('ch-size-2^64-2', '9112 7.1', chunked(b'FFFFFFFFFFFFFFFE\r\nhello\r\n0\r\n\r\n' + NX), expect=r'(400|413) [CR]')
rej('ch-lf-data', '9112 7.1', chunked(b'5\r\nhello\n0\r\n\r\n' + NX))
rej('ch-lf-all', '9112 7.1', chunked(b'5\nhello\n0\n\n' + NX))
rej('ch-lf-last', '9112 7.1', chunked(b'5\r\nhello\r\n0\n\r\n' + NX))
# TERM.EXT: a peer that ends the size line only at CRLF reads "2;\nxx" as ext
rej('ch-ext-lf (TERM.EXT)', '9112 7.1.1', chunked(b'2;\nxx\r\n%x\r\n0\r\n\r\n' % len(b'0\r\n\r\n' + SM) + SM + b'\r\n0\r\n\r\n'))
rej('ch-ext-lf2', '9112 7.1.1', chunked(b'5;a\nhello\r\n0\r\n\r\n' + NX))
rej('ch-ext-cr', '9112 7.1.1', chunked(b'5;a\rb\r\nhello\r\n0\r\n\r\n' + NX))
rej('ch-size-cr-junk', '9112 7.1', chunked(b'5\rX\nhello\r\n0\r\n\r\n' + NX))
rej('ch-ext-100k', '9112 7.1.1 SHOULD limit', chunked(b'5;' + b'a' * 100000 + b'\r\nhello\r\n0\r\n\r\n' + NX), expect=r'(4\d\d [CR]|[CR])')
rej('ch-spill', '9112 7.1', chunked(b'5\r\nhelloXX0\r\n\r\n' + NX))
rej('ch-data-cr-only', '9112 7.1', chunked(b'5\r\nhello\rX0\r\n\r\n' + NX))
acc('ch-trailer', '9112 7.1.2', chunked(b'5\r\nhello\r\n0\r\nX-T: 1\r\n\r\n' + NX), expect=r'200 200 O', body=5)
rej('ch-trailer-nocolon', '9112 5', chunked(b'5\r\nhello\r\n0\r\nbad\r\n\r\n' + NX))
rej('ch-trailer-req', '9112 7.1.2', chunked(b'0\r\n' + SM))
rej('ch-trailer-colon-smug', '9112 5', chunked(b'0\r\nA: b\r\n:\r\n' + SM))
rej('ch-trailer-nul-smug', '9112 5', chunked(b'0\r\nA: b\r\n\0x: y\r\n' + SM))
rej('ch-trailer-100k', '9110', chunked(b'0\r\nX: ' + b'a' * 100000 + b'\r\n\r\n'), expect=r'(4\d\d [CR]|[CR])')
rej('ch-trailer-lf', '9112 2.2', chunked(b'0\r\nX: a\n\r\n' + NX), expect=r'(400 C|200 200 O)')
acc('ch-2000x1', '9112 7.1', chunked(b'1\r\nx\r\n' * 2000 + b'0\r\n\r\n' + NX), expect=r'200 200 O', body=2000)
# ---- connection, semantics --------------------------------------------------------------------
acc('head', '9110 9.3.2', get('HEAD / HTTP/1.1', tail=NX), expect=r'200 200 O', heads=(0,))
acc('304-chunked', '9110 15.4.5', get('GET /c304 HTTP/1.1', tail=NX), expect=r'304 200 O')
acc('204', '9110 15.3.5', get('GET /204 HTTP/1.1', tail=NX), expect=r'204 200 O')
acc('304', '9110 15.4.5', get('GET /304 HTTP/1.1', tail=NX), expect=r'304 200 O')
acc('http10-keepalive', '9112 9.3', get('GET / HTTP/1.0', 'Connection: keep-alive\r\n', tail=NX), expect=r'200 200 O')
acc('conn-close-second', '9110 5.3', get('GET / HTTP/1.1', 'Connection: keep-alive\r\nConnection: close\r\n', tail=NX), expect=r'200 C')
acc('conn-closed-token', '9110 7.6.1', get('GET / HTTP/1.1', 'Connection: closed\r\n', tail=NX), expect=r'200 200 O')
acc('expect-100', '9110 10.1.1', None, expect=r'100 200 O', steps=[(post('Expect: 100-continue\r\nContent-Length: 5\r\n'), .25), (b'hello', 0)], body=5)
acc('expect-100-case', '9110 10.1.1', None, expect=r'100 200 O', steps=[(post('Expect: 100-Continue\r\nContent-Length: 5\r\n'), .25), (b'hello', 0)], body=5)
acc('expect-100-nobody', '9110 10.1.1', get('GET / HTTP/1.1', 'Expect: 100-continue\r\n', tail=NX), expect=r'200 200 O', lax=r'100 200 200 O')
anyof('early-small', '9112 9.3', get('POST /early HTTP/1.1', 'Content-Length: %d\r\n' % len(SM), tail=SM + NX), r'413 (C|R|200 O)')
case('early-1M', '9112 9.6 lingering', get('POST /early HTTP/1.1', 'Content-Length: 1000000\r\n', tail=b'x' * 1000000), 'any', r'413 [CO]')
acc('upgrade-unknown', '9110 7.8', get('GET / HTTP/1.1', 'Connection: Upgrade\r\nUpgrade: foo\r\n', tail=NX), expect=r'200 200 O')
acc('upgrade-h2c', '7540 3.2', get('GET / HTTP/1.1', 'Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n', tail=NX), expect=r'200 200 O')
acc('pipeline-bodies', '9112 9.3.2', post('Content-Length: 5\r\n', b'hello') + chunked(b'3\r\nabc\r\n0\r\n\r\n') + get('HEAD /h HTTP/1.1') + NX, expect=r'200 200 200 200 O', heads=(2,))
rej('half-close-trunc', '9112 8', post('Content-Length: 50\r\n', b'hello'), expect=r'((400|408) C|C)', half=True)
acc('split-crlf', '9112', None, expect=r'200 O', steps=[(b'GET / HTTP/1.1\r', .05), (b'\nHost: x\r', .05), (b'\n\r', .05), (b'\n', 0)])
acc('slow-body', '9112', None, expect=r'200 O', steps=[(post('Content-Length: 10\r\n', b'he'), .1), (b'llo', .1), (b'world', 0)], body=10)
acc('10MB-body', '9112 6', None, expect=r'200 200 O', steps=[(post('Content-Length: 10000000\r\n'), 0), (b'z' * 10000000, 0), (NX, 0)], body=10000000)

# ---- runner ------------------------------------------------------------------------------------


class Runner:
    def __init__(self, port, idle=0.5):
        self.port = port
        self.idle = idle

    def connect(self):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s

    def run(self, c):
        """(outcome, responses) of one case."""
        s = self.connect()

        def write():
            try:
                for data, pause in c["steps"] or [(c["data"], 0)]:
                    s.sendall(data)
                    time.sleep(pause)
                if c["half"]:
                    s.shutdown(socket.SHUT_WR)
            except OSError:
                pass

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        end = ""
        received = bytearray()
        began = time.monotonic()
        s.settimeout(self.idle)
        while not end:
            try:
                data = s.recv(262144)
                received += data
                end = "" if data else "C"
            except TimeoutError:
                # Idle: the end, if this is what was wanted, or after some patience with a busy machine.
                so_far = outcome_of(parse(bytes(received), c["heads"]), "O")
                wanted = re.fullmatch(c["expect"], so_far) and not writer.is_alive()
                end = "O" if wanted or time.monotonic() - began > PATIENCE / 2 else ""
            except OSError:
                end = "R"
        s.close()
        writer.join(1)
        responses = parse(bytes(received), c["heads"])
        return outcome_of(responses, end), responses

    def verdict(self, c):
        """("PASS", "") or what is wrong: UNSAFE, HANG, WRONG, LAX, SILENT, OTHER, and why."""
        outcome, responses = self.run(c)
        first = next((r for r in responses if isinstance(r[0], int) and r[0] >= 200), None)
        answered = first is not None and first[0] == 200
        why = f"got {outcome[:60]!r}, wanted {c['expect']!r} ({c['ref']})"
        if re.fullmatch(c["expect"], outcome):
            if answered and c["body"] is not None and b"bodylen=%d\n" % c["body"] not in first[2]:
                return "WRONG", f"length of the body: {first[2][:200]!r}"
            if answered and c["echo"] and not re.search(c["echo"].encode(), first[2]):
                return "WRONG", f"no {c['echo']!r} in {first[2]!r}"
            return "PASS", ""
        if outcome.endswith("+S"):
            return "UNSAFE", why
        if outcome == "O":
            return "HANG", why
        if "RAW" in outcome or "TRUNC" in outcome:
            return "WRONG", why
        if c["kind"] in ("rej", "any"):
            if outcome in ("C", "R"):
                return "SILENT", why
            return ("LAX" if first and first[0] < 300 else "OTHER"), why
        if c["lax"] and re.fullmatch(c["lax"], outcome):
            return "PASS", ""
        return "WRONG", why


def outcome_of(responses, end):
    smuggled = any(r[0] == 200 and b"/SMUG" in r[2].split(b"\n")[0] for r in responses)
    return " ".join([str(r[0]) for r in responses] + [end]) + ("+S" if smuggled else "")


def parse(buf, heads):
    """[(status, headers, body)]; status "RAW" for what is no response, "TRUNC" for one that is cut."""
    out = []
    i = 0
    n = 0
    while i < len(buf):
        m = re.match(rb"HTTP/1\.[01] (\d\d\d)[^\r\n]*\r\n", buf[i : i + 200])
        e = buf.find(b"\r\n\r\n", i)
        if not m or e < 0:
            out.append(("TRUNC" if m else "RAW", {}, buf[i:]))
            break
        status = int(m.group(1))
        headers = {}
        for line in buf[i:e].split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            name = name.strip().lower().decode("latin-1")
            value = value.strip().decode("latin-1")
            headers[name] = f"{headers[name]},{value}" if name in headers else value
        i = e + 4
        if 100 <= status < 200:
            out.append((status, headers, b""))
            continue
        if n in heads or status in (204, 304):
            body = b""
        elif "chunked" in headers.get("transfer-encoding", ""):
            body = b""
            while True:
                x = buf.find(b"\r\n", i)
                if x < 0:
                    break
                size = int(buf[i:x].split(b";")[0] or b"0", 16)
                body += buf[x + 2 : x + 2 + size]
                i = x + 2 + size + 2
                if size == 0:
                    break
        elif "content-length" in headers:
            size = int(headers["content-length"].split(",")[0])
            body = buf[i : i + size]
            if len(body) < size:
                out.append((status, headers, body))
                out.append(("TRUNC", {}, b""))
                break
            i += size
        else:
            body = buf[i:]
            i = len(buf)
        out.append((status, headers, body))
        n += 1
    return out
