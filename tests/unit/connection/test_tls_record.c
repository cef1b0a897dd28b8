/* Records of TLS: RFC 8448's trace, all formats, what is refused, and what is no data. */
#include "connection/hex.h"
#include "tests/support/tls_peers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

/* RFC 8448, 3: the client's first application data. */
static void as_in_rfc_8448(void **state)
{
    (void)state;
    const struct record_format *format = record_format_find(NID_aes_128_gcm, true);
    uint8_t key[16];
    uint8_t iv[RECORD_IV];
    uint8_t expected[72];
    uint8_t data[50];
    uint8_t out[sizeof data + RECORD_AROUND];
    struct record_way way = {0};
    assert_true(hex_read(STR("17422dda596ed5d9acd890e3c63f5051"), key));
    assert_true(hex_read(STR("5b78923dee08579033e523d9"), iv));
    assert_true(hex_read(
        STR("1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b46b395bd54a9a20441e2b6297"
            "4e1f5a6292a2977014bd1e3deae63aeebb21694915e4"),
        expected));
    for (uint8_t i = 0; i < sizeof data; i++) {
        data[i] = i;
    }
    assert_true(record_way_set(&way, format, key, iv, true));
    assert_int_equal(peers_seal(&way, format, RECORD_DATA, data, sizeof data, out), sizeof expected);
    assert_memory_equal(out, expected, sizeof expected);
    record_way_free(&way);
}

static void every_format_opens_what_it_sealed(void **state)
{
    (void)state;
    static uint8_t data[RECORD_MAX];
    static uint8_t record[RECORD_MAX + RECORD_AROUND];
    static uint8_t opened[RECORD_MAX + RECORD_AROUND];
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (uint8_t)(i * 31);
    }
    for (size_t s = 0; s < PEERS_SUITES; s++) {
        const struct record_format *format = record_format_find(peers_suites[s].nid, peers_suites[s].tls13);
        struct record_way out = {0};
        struct record_way in = {0};
        peers_set(&out, format, true);
        peers_set(&in, format, false);
        static const size_t sizes[] = {0, 1, 15, 16, 17, 1369, 4096, RECORD_MAX};
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            size_t half = sizes[i] / 3;
            struct iovec pieces[] = {{data, half}, {data, 0}, {data + half, sizes[i] - half}};
            size_t len = record_seal(&out, format, RECORD_DATA, pieces, sizes[i], record);
            size_t opened_len;
            uint8_t type;
            assert_true(len > 0);
            assert_int_equal(record_open(&in, format, record, len, opened, &opened_len, &type), ALERT_NONE);
            assert_int_equal(type, RECORD_DATA);
            assert_int_equal(opened_len, sizes[i]);
            assert_memory_equal(opened, data, sizes[i]);
        }
        record_way_free(&out);
        record_way_free(&in);
    }
}

static void what_was_touched_does_not_open(void **state)
{
    (void)state;
    uint8_t record[64 + RECORD_AROUND];
    uint8_t opened[64 + RECORD_AROUND];
    uint8_t data[64] = {0};
    for (size_t s = 0; s < PEERS_SUITES; s++) {
        const struct record_format *format = record_format_find(peers_suites[s].nid, peers_suites[s].tls13);
        struct record_way out = {0};
        struct record_way in = {0};
        peers_set(&out, format, true);
        size_t len = peers_seal(&out, format, RECORD_DATA, data, sizeof data, record);
        for (size_t at = 0; at < len; at++) {
            bool counted = at != 3 && at != 4; /* of the length the caller made use */
            size_t opened_len;
            uint8_t type;
            peers_set(&in, format, false);
            in.sequence = 0;
            record[at] ^= 1;
            if (counted) {
                assert_int_equal(record_open(&in, format, record, len, opened, &opened_len, &type),
                                 ALERT_BAD_RECORD_MAC);
            }
            record[at] ^= 1;
        }
        size_t opened_len;
        uint8_t type;
        in.sequence = 1; /* out of its turn */
        assert_int_equal(record_open(&in, format, record, len, opened, &opened_len, &type), ALERT_BAD_RECORD_MAC);
        record_way_free(&out);
        record_way_free(&in);
    }
}

static void lengths_and_types_have_bounds(void **state)
{
    (void)state;
    static const struct {
        bool tls13;
        uint8_t head[RECORD_HEAD];
        enum tls_alert alert;
    } cases[] = {
        {true, {23, 3, 3, 0, 17}, ALERT_NONE},
        {true, {23, 3, 3, 0, 16}, ALERT_BAD_RECORD_MAC},
        {true, {23, 3, 1, 0, 17}, ALERT_NONE}, /* the version is to be ignored */
        {true, {23, 3, 3, 0x41, 0}, ALERT_NONE},
        {true, {23, 3, 3, 0x41, 1}, ALERT_RECORD_OVERFLOW},
        {true, {20, 3, 3, 0, 1}, ALERT_UNEXPECTED_MESSAGE},
        {true, {21, 3, 3, 0, 2}, ALERT_UNEXPECTED_MESSAGE},
        {true, {22, 3, 3, 0, 40}, ALERT_UNEXPECTED_MESSAGE},
        {true, {'G', 'E', 'T', ' ', '/'}, ALERT_UNEXPECTED_MESSAGE},
        {false, {23, 3, 3, 0, 24}, ALERT_NONE},
        {false, {23, 3, 3, 0, 23}, ALERT_BAD_RECORD_MAC},
        {false, {23, 3, 3, 0x48, 0}, ALERT_NONE},
        {false, {23, 3, 3, 0x48, 1}, ALERT_RECORD_OVERFLOW},
        {false, {24, 3, 3, 0, 40}, ALERT_UNEXPECTED_MESSAGE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        enum tls_alert alert;
        size_t len = record_length(record_format_find(NID_aes_128_gcm, cases[i].tls13), cases[i].head, &alert);
        assert_int_equal(alert, cases[i].alert);
        assert_int_equal(len, alert == ALERT_NONE ? RECORD_HEAD + (cases[i].head[3] << 8 | cases[i].head[4]) : 0);
    }
}

/* ---- a connection behind its handshake ------------------------------------------------------------------ */

static bool give(struct peers *p, uint8_t type, const void *data, size_t len)
{
    uint8_t record[256 + RECORD_AROUND];
    return peers_arrive(p, record, peers_seal(&p->out, p->tls.format, type, data, len, record));
}

/* What the server has put out: an alert's description; -1 when there is something else or nothing. */
static int alert_of(struct peers *p)
{
    uint8_t opened[256];
    size_t len;
    uint8_t type;
    if (p->shared->out_len == 0 ||
        record_open(&p->in, p->tls.format, p->shared->out, p->shared->out_len, opened, &len, &type) != ALERT_NONE ||
        type != RECORD_ALERT || len != 2) {
        return -1;
    }
    p->shared->out_len = 0;
    return opened[1];
}

static void records_come_in_any_pieces(void **state)
{
    (void)state;
    for (size_t s = 0; s < PEERS_SUITES; s++) {
        struct peers *p = peers_begin(s);
        uint8_t wire[4 * (100 + RECORD_AROUND)];
        size_t len = 0;
        char data[100];
        memset(data, 'x', sizeof data);
        for (int i = 0; i < 4; i++) {
            len += peers_seal(&p->out, p->tls.format, RECORD_DATA, data, sizeof data, wire + len);
        }
        for (size_t at = 0; at < len; at++) {
            assert_true(peers_arrive(p, wire + at, 1));
        }
        assert_int_equal(p->used, 4 * sizeof data);
        assert_null(p->tls.partial);
        peers_end(p);
    }
}

static void alerts(void **state)
{
    (void)state;
    static const uint8_t close[] = {1, 0};
    static const uint8_t canceled[] = {1, 90};
    static const uint8_t fatal[] = {2, 40};
    for (size_t s = 0; s < PEERS_SUITES; s++) {
        struct peers *p = peers_begin(s);
        assert_true(give(p, RECORD_ALERT, canceled, 2));
        assert_true(give(p, RECORD_DATA, "hello", 5));
        assert_int_equal(p->used, 5);
        assert_true(give(p, RECORD_ALERT, close, 2));
        assert_true(p->tls.ended);
        assert_true(give(p, RECORD_DATA, "more", 4)); /* nobody reads on */
        assert_int_equal(p->used, 5);
        peers_end(p);
        p = peers_begin(s);
        assert_false(give(p, RECORD_ALERT, fatal, 2));
        assert_int_equal(p->shared->out_len, 0); /* no answer */
        peers_end(p);
        p = peers_begin(s);
        assert_false(give(p, RECORD_ALERT, fatal, 1));
        assert_int_equal(alert_of(p), ALERT_DECODE_ERROR);
        peers_end(p);
    }
}

static void what_has_no_place_ends_the_connection(void **state)
{
    (void)state;
    for (size_t s = 0; s < PEERS_SUITES; s++) {
        struct peers *p = peers_begin(s);
        assert_false(give(p, RECORD_CHANGE_CIPHER, "\1", 1));
        assert_int_equal(alert_of(p), ALERT_UNEXPECTED_MESSAGE);
        peers_end(p);
    }
    struct peers *p = peers_begin(0);
    uint8_t forged[40] = {23, 3, 3, 0, 35};
    assert_false(peers_arrive(p, forged, sizeof forged));
    assert_int_equal(alert_of(p), ALERT_BAD_RECORD_MAC);
    peers_end(p);
    p = peers_begin(0);
    assert_false(give(p, 0, "", 0)); /* zeros alone */
    assert_int_equal(alert_of(p), ALERT_UNEXPECTED_MESSAGE);
    peers_end(p);
}

static void renegotiation_is_declined(void **state)
{
    (void)state;
    struct peers *p = peers_begin(3);
    static const uint8_t hello[] = {1, 0, 0, 0};
    assert_true(give(p, RECORD_HANDSHAKE, hello, sizeof hello));
    assert_int_equal(alert_of(p), ALERT_NO_RENEGOTIATION);
    assert_true(give(p, RECORD_DATA, "on", 2));
    assert_int_equal(p->used, 2);
    peers_end(p);
}

static void nothing_for_long_ends_the_connection(void **state)
{
    (void)state;
    for (size_t s = 0; s < PEERS_SUITES; s++) {
        struct peers *p = peers_begin(s);
        for (int round = 0; round < 3; round++) {
            for (int i = 0; i < TLS_NOTHINGS; i++) {
                assert_true(give(p, RECORD_DATA, "", 0));
            }
            assert_true(give(p, RECORD_DATA, "x", 1));
        }
        for (int i = 0; i < TLS_NOTHINGS; i++) {
            assert_true(give(p, RECORD_DATA, "", 0));
        }
        assert_false(give(p, RECORD_DATA, "", 0));
        assert_int_equal(alert_of(p), ALERT_UNEXPECTED_MESSAGE);
        peers_end(p);
    }
}

static void keys_are_updated(void **state)
{
    (void)state;
    static const uint8_t update[] = {24, 0, 0, 1, 0};
    static const uint8_t both[] = {24, 0, 0, 1, 1};
    for (size_t s = 0; s < 3; s++) {
        struct peers *p = peers_begin(s);
        const struct record_format *format = p->tls.format;
        /* tls_keys_take() made the KDFs; without a handshake they are made here. */
        tls_keys_begin();
        assert_true(give(p, RECORD_HANDSHAKE, update, sizeof update));
        assert_int_equal(p->shared->out_len, 0);
        assert_true(tls_keys_update(&p->out, format, true));
        assert_true(give(p, RECORD_DATA, "new", 3));
        for (size_t i = 0; i < sizeof both; i++) { /* byte by byte, in records of their own */
            assert_true(give(p, RECORD_HANDSHAKE, both + i, 1));
        }
        assert_true(tls_keys_update(&p->out, format, true));
        assert_true(give(p, RECORD_DATA, "newer", 5));
        assert_int_equal(p->used, 8);
        uint8_t opened[64];
        size_t len;
        uint8_t type;
        assert_int_equal(record_open(&p->in, format, p->shared->out, p->shared->out_len, opened, &len, &type),
                         ALERT_NONE);
        assert_int_equal(type, RECORD_HANDSHAKE);
        assert_int_equal(len, sizeof update);
        assert_memory_equal(opened, update, sizeof update);
        p->shared->out_len = 0;
        assert_true(tls_keys_update(&p->in, format, false));
        assert_true(tls_put(&p->tls, RECORD_DATA, "ours", 4));
        assert_int_equal(record_open(&p->in, format, p->shared->out, p->shared->out_len, opened, &len, &type),
                         ALERT_NONE);
        assert_int_equal(len, 4);
        peers_end(p);
    }
}

/* ---- a client that sends and does not read ------------------------------------------------------------- */

enum { FLOOD = 5000, HELD_MOST = 4 * (RECORD_AROUND + 16) };

struct wire {
    struct conn conn;
    int client;
    uint8_t came[262144];
    size_t len;
    size_t at;
};

static struct wire *lay(struct peers *p)
{
    struct wire *w = calloc(1, sizeof *w);
    int ends[2];
    assert_non_null(w);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    w->conn.watch.fd = ends[0];
    w->conn.transport_state = &p->tls;
    w->client = ends[1];
    p->tls.magic = TLS_MAGIC;
    return w;
}

static void cut(struct wire *w)
{
    close(w->conn.watch.fd);
    close(w->client);
    free(w);
}

/* The client reads until the server holds nothing back. */
static void read_all(struct peers *p, struct wire *w)
{
    enum tls_sent sent;
    do {
        sent = tls_flush(&w->conn, false);
        assert_int_not_equal(sent, TLS_FAILED);
        ssize_t n;
        while ((n = recv(w->client, w->came + w->len, sizeof w->came - w->len, 0)) > 0) {
            w->len += (size_t)n;
        }
    } while (sent == TLS_BLOCKED);
    assert_null(p->tls.held);
}

static uint8_t next_record(struct peers *p, struct wire *w, uint8_t opened[64], size_t *len)
{
    enum tls_alert alert;
    uint8_t type = 0;
    size_t record = record_length(p->tls.format, w->came + w->at, &alert);
    assert_true(record > 0 && w->at + record <= w->len);
    assert_int_equal(record_open(&p->in, p->tls.format, w->came + w->at, record, opened, len, &type), ALERT_NONE);
    w->at += record;
    return type;
}

static void one_that_takes_nothing_is_answered_once(void **state)
{
    (void)state;
    static const uint8_t both[] = {24, 0, 0, 1, 1};
    static const uint8_t hello[] = {1, 0, 0, 0};
    tls_keys_begin();
    for (size_t s = 0; s < PEERS_SUITES; s++) {
        struct peers *p = peers_begin(s);
        struct wire *w = lay(p);
        bool tls13 = p->tls.format->tls13;
        uint8_t opened[64];
        size_t len;
        for (int i = 0; i < FLOOD; i++) {
            assert_true(give(p, RECORD_HANDSHAKE, tls13 ? both : hello, tls13 ? sizeof both : sizeof hello));
            assert_true(!tls13 || tls_keys_update(&p->out, p->tls.format, true));
            assert_true(give(p, RECORD_DATA, "x", 1));
            assert_int_not_equal(tls_flush(&w->conn, false), TLS_FAILED);
            assert_true(p->tls.held_len <= HELD_MOST);
        }
        assert_non_null(p->tls.held);
        read_all(p, w);
        assert_true(tls_put(&p->tls, RECORD_DATA, "ours", 4));
        read_all(p, w);
        uint8_t type;
        while ((type = next_record(p, w, opened, &len)) != RECORD_DATA) {
            assert_int_equal(type, tls13 ? RECORD_HANDSHAKE : RECORD_ALERT);
            assert_true(!tls13 || tls_keys_update(&p->in, p->tls.format, false));
        }
        assert_int_equal(len, 4);
        assert_memory_equal(opened, "ours", 4);
        assert_int_equal(w->at, w->len);
        cut(w);
        peers_end(p);
    }
}

/* The alert that ends a connection is the last record, whatever else was to be said. */
static void nothing_follows_the_last_word(void **state)
{
    (void)state;
    static const uint8_t both[] = {24, 0, 0, 1, 1};
    struct peers *p = peers_begin(0);
    struct wire *w = lay(p);
    uint8_t opened[64];
    size_t len;
    tls_keys_begin();
    while (p->tls.held == NULL) {
        assert_true(tls_put(&p->tls, RECORD_DATA, "data", 4));
        assert_int_not_equal(tls_flush(&w->conn, false), TLS_FAILED);
    }
    assert_true(give(p, RECORD_HANDSHAKE, both, sizeof both));
    assert_int_not_equal(tls_flush(&w->conn, false), TLS_FAILED);
    assert_true(p->tls.update_waits);
    tls_put_alert(&p->tls, ALERT_CLOSE_NOTIFY);
    read_all(p, w);
    while (next_record(p, w, opened, &len) == RECORD_DATA) {
    }
    assert_int_equal(opened[1], ALERT_CLOSE_NOTIFY);
    assert_int_equal(w->at, w->len);
    cut(w);
    peers_end(p);
}

static void broken_key_updates(void **state)
{
    (void)state;
    static const struct {
        size_t len;
        uint8_t bytes[6];
        enum tls_alert alert;
    } cases[] = {
        {5, {24, 0, 0, 1, 2}, ALERT_ILLEGAL_PARAMETER},
        {5, {24, 0, 0, 2, 0}, ALERT_DECODE_ERROR},
        {6, {24, 0, 0, 1, 0, 24}, ALERT_UNEXPECTED_MESSAGE},
        {4, {1, 0, 0, 0}, ALERT_UNEXPECTED_MESSAGE}, /* another message */
        {0, {0}, ALERT_UNEXPECTED_MESSAGE}, /* RFC 8446, 5.1: no empty ones */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct peers *p = peers_begin(0);
        assert_false(give(p, RECORD_HANDSHAKE, cases[i].bytes, cases[i].len));
        assert_int_equal(alert_of(p), cases[i].alert);
        peers_end(p);
    }
    struct peers *p = peers_begin(0); /* data in the midst of one */
    assert_true(give(p, RECORD_HANDSHAKE, "\30", 1));
    assert_false(give(p, RECORD_DATA, "x", 1));
    assert_int_equal(alert_of(p), ALERT_UNEXPECTED_MESSAGE);
    peers_end(p);
}

/* TLS 1.2: the nonce goes on from the one in OpenSSL's Finished. */
static void finished_is_seen_among_what_is_sent(void **state)
{
    (void)state;
    uint8_t flight[] = {22, 3, 3, 0, 2,  4,    0, /* a ticket, in the clear */
                        20, 3, 3, 0, 1,  1, /* ChangeCipherSpec */
                        22, 3, 3, 0, 10, 0xff, 0, 0, 0, 0, 0, 1, 2, 0xaa, 0xbb};
    struct tls_opening opening = {0};
    tls_keys_see_sent(&opening, flight, 7);
    assert_false(opening.finished_sent);
    tls_keys_see_sent(&opening, flight, sizeof flight);
    assert_true(opening.finished_sent);
    assert_true(opening.finished_iv == 0xff00000000000102);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_in_rfc_8448),
        cmocka_unit_test(every_format_opens_what_it_sealed),
        cmocka_unit_test(what_was_touched_does_not_open),
        cmocka_unit_test(lengths_and_types_have_bounds),
        cmocka_unit_test(records_come_in_any_pieces),
        cmocka_unit_test(alerts),
        cmocka_unit_test(what_has_no_place_ends_the_connection),
        cmocka_unit_test(renegotiation_is_declined),
        cmocka_unit_test(nothing_for_long_ends_the_connection),
        cmocka_unit_test(keys_are_updated),
        cmocka_unit_test(one_that_takes_nothing_is_answered_once),
        cmocka_unit_test(nothing_follows_the_last_word),
        cmocka_unit_test(broken_key_updates),
        cmocka_unit_test(finished_is_seen_among_what_is_sent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
