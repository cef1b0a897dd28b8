/* Records of TLS behind the handshake, from a client that has the keys and writes what the input says: data, alerts,
 * changes of keys, anything of any type, with padding, forged, cut short, or bytes that are no record. They arrive
 * in pieces and all at once, which must come to the same. Held against it: what is handed out is what the client
 * wrote, from its beginning, all that came before the first doubtful record and nothing of what came after a forged one; what
 * the server puts out are whole records with the right keys, and nothing follows its fatal alert. */
#include "fuzz.h"

#include "tests/support/tls_peers.h"

enum { SMALL = 24, SHORT = 64, STEPS = 400, MOST_PIECES = 500 };

enum step {
    STEP_DATA,
    STEP_LONG_DATA,
    STEP_PADDED,
    STEP_ALERT,
    STEP_UPDATE,
    STEP_ANY,
    STEP_FORGED,
    STEP_RAW,
    STEP_KINDS,
};

struct story {
    struct peers *p;
    const uint8_t *input;
    size_t left;
    size_t wire_len;
    size_t wire_cap;
    uint8_t *wire; /* what the client sends */
    uint64_t data; /* bytes that it wrote, as long as the server may hand them out */
    uint64_t sure; /* ... and must */
    unsigned quiet; /* records in a row without data */
    bool doubt; /* the server may have ended the connection */
    bool over; /* nothing of what follows may be handed out */
};

struct outcome {
    uint64_t taken;
    bool failed;
    bool ended;
    size_t out_len;
    uint32_t out; /* digest */
};

static uint8_t next(struct story *s)
{
    if (s->left == 0) {
        return 0;
    }
    s->left--;
    return *s->input++;
}

/* The byte of the client's data at this place. */
static uint8_t written(uint64_t at)
{
    return (uint8_t)(at * 31 + (at >> 8));
}

static uint8_t *room(struct story *s, size_t len)
{
    if (s->wire_len + len > s->wire_cap) {
        s->wire_cap = 2 * (s->wire_len + len);
        s->wire = realloc(s->wire, s->wire_cap);
        CHECK(s->wire != NULL);
    }
    return s->wire + s->wire_len;
}

static size_t seal(struct story *s, uint8_t type, const uint8_t *data, size_t len)
{
    struct iovec vector = {(void *)(uintptr_t)data, len};
    uint8_t *to = room(s, len + RECORD_AROUND);
    size_t made = record_seal(&s->p->out, s->p->tls.format, type, &vector, len, to);
    CHECK(made > len && made <= len + RECORD_AROUND);
    s->wire_len += made;
    return made;
}

static void count(struct story *s, size_t data)
{
    s->quiet = data > 0 ? 0 : s->quiet + 1;
    if (s->quiet > TLS_NOTHINGS) {
        s->doubt = true;
    }
    if (!s->over) {
        s->data += data;
    }
    if (!s->doubt) {
        s->sure = s->data;
    }
}

/* Of TLS 1.3 `padding` zeros are put behind the type. */
static void write_data(struct story *s, size_t len, size_t padding)
{
    static uint8_t bytes[RECORD_MAX];
    bool padded = padding > 0 && s->p->tls.format->tls13;
    for (size_t i = 0; i < len; i++) {
        bytes[i] = written(s->data + i);
    }
    if (padded) { /* the last of the zeros is where record_seal() puts a type */
        bytes[len] = RECORD_DATA;
        memset(bytes + len + 1, 0, padding - 1);
        seal(s, 0, bytes, len + padding);
    } else {
        seal(s, RECORD_DATA, bytes, len);
    }
    count(s, len);
}

static void write_alert(struct story *s)
{
    const uint8_t alert[] = {next(s), next(s)};
    bool harmless = s->p->tls.format->tls13 ? alert[1] == ALERT_USER_CANCELED : alert[0] == 1;
    seal(s, RECORD_ALERT, alert, sizeof alert);
    s->over = s->over || alert[1] == ALERT_CLOSE_NOTIFY || !harmless;
    s->doubt = s->doubt || s->over;
    count(s, 0);
}

/* KeyUpdate, whole or in two records; what follows has new keys. */
static void write_update(struct story *s)
{
    uint8_t how = next(s);
    const uint8_t update[] = {24, 0, 0, 1, how & 1};
    size_t first = 1 + (how >> 1) % sizeof update;
    seal(s, RECORD_HANDSHAKE, update, first);
    count(s, 0);
    if (first < sizeof update) {
        seal(s, RECORD_HANDSHAKE, update + first, sizeof update - first);
        count(s, 0);
    }
    CHECK(!s->p->tls.format->tls13 || tls_keys_update(&s->p->out, s->p->tls.format, true));
}

static void write_any(struct story *s)
{
    uint8_t bytes[SMALL];
    uint8_t type = next(s) % 32;
    size_t len = next(s) % SMALL;
    type = type == RECORD_DATA ? RECORD_DATA + 1 : type; /* written() would know nothing of it */
    for (size_t i = 0; i < len; i++) {
        bytes[i] = type != 0 ? next(s) : 0; /* in front of zeros a byte is a type */
    }
    s->doubt = true;
    seal(s, type, bytes, len);
    s->quiet++;
}

/* A record of which one bit was turned, or a byte left out; in its head as well. */
static void write_forged(struct story *s)
{
    uint8_t bytes[SMALL] = {0};
    size_t made = seal(s, RECORD_DATA, bytes, next(s) % SMALL);
    uint8_t *record = s->wire + s->wire_len - made;
    size_t at = next(s) % made;
    uint8_t how = next(s);
    if (how < 250) {
        record[at] ^= (uint8_t)(1u << (how & 7));
    } else {
        memmove(record + at, record + at + 1, made - at - 1);
        s->wire_len--;
    }
    s->over = true; /* of TLS 1.3 the second byte of the version means nothing, but is authenticated */
    s->doubt = true;
}

static void write_raw(struct story *s)
{
    size_t len = 1 + next(s) % SHORT;
    uint8_t *to = room(s, len);
    for (size_t i = 0; i < len; i++) {
        to[i] = next(s);
    }
    s->wire_len += len;
    s->over = true;
    s->doubt = true;
}

static void write_step(struct story *s)
{
    uint8_t what = next(s);
    switch ((enum step)(what % STEP_KINDS)) {
    case STEP_DATA: write_data(s, what / STEP_KINDS, 0); break;
    case STEP_LONG_DATA: write_data(s, (size_t)next(s) * SHORT + what / STEP_KINDS, 0); break;
    case STEP_PADDED: write_data(s, what / STEP_KINDS, 1 + (size_t)next(s) * (SHORT - 1)); break;
    case STEP_ALERT: write_alert(s); break;
    case STEP_UPDATE: write_update(s); break;
    case STEP_ANY: write_any(s); break;
    case STEP_FORGED: write_forged(s); break;
    case STEP_RAW:
    case STEP_KINDS:
    default: write_raw(s); break;
    }
}

/* ---- the server's side ------------------------------------------------------------------------------------ */

static void take(struct peers *p, struct outcome *o)
{
    for (size_t i = 0; i < p->used; i++) {
        CHECK(p->to[i] == written(o->taken + i));
    }
    o->taken += p->used;
    p->used = 0;
}

/* What it put out, as the client reads it. */
static void read_output(struct peers *p, struct outcome *o)
{
    static uint8_t opened[TLS_RECORD_ROOM];
    const uint8_t *at = p->shared->out;
    size_t left = p->shared->out_len;
    bool fatal = false;
    while (left > 0) {
        enum tls_alert alert;
        size_t len;
        uint8_t type;
        CHECK(left >= RECORD_HEAD && !fatal);
        size_t record = record_length(p->tls.format, at, &alert);
        CHECK(record > 0 && record <= left);
        CHECK(record_open(&p->in, p->tls.format, at, record, opened, &len, &type) == ALERT_NONE);
        if (type == RECORD_HANDSHAKE) {
            CHECK(len == sizeof tls_key_update && memcmp(opened, tls_key_update, len) == 0);
            CHECK(tls_keys_update(&p->in, p->tls.format, false));
        } else {
            CHECK(type == RECORD_ALERT && len == 2);
            fatal = opened[0] == 2;
        }
        at += record;
        left -= record;
    }
    CHECK(!fatal || o->failed);
    for (size_t i = 0; i < p->shared->out_len; i++) {
        o->out = (o->out ^ p->shared->out[i]) * 16777619u;
    }
    o->out_len = p->shared->out_len;
}

static struct outcome serve(const struct story *s, size_t suite, uint32_t largest)
{
    struct outcome o = {0};
    struct peers *p = peers_begin(suite);
    bool goes_on = true;
    for (size_t at = 0; at < s->wire_len && goes_on && !p->tls.ended;) {
        size_t n = largest < TLS_RECEIVE_BYTES ? 1 + s->wire_len / MOST_PIECES + fuzz_roll(largest) : TLS_RECEIVE_BYTES;
        n = n < s->wire_len - at ? n : s->wire_len - at;
        goes_on = peers_arrive(p, s->wire + at, n);
        CHECK((!goes_on || p->shared->in_left == 0) && p->tls.partial_len < TLS_RECORD_ROOM);
        CHECK(goes_on != p->tls.failed && (p->tls.partial == NULL || goes_on));
        take(p, &o);
        at += n;
    }
    o.failed = p->tls.failed;
    o.ended = p->tls.ended;
    read_output(p, &o);
    peers_end(p);
    return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4) {
        return 0;
    }
    tls_keys_begin();
    fuzz_dice = (uint32_t)data[2] | (uint32_t)data[3] << 8;
    size_t suite = data[0] % PEERS_SUITES;
    struct story s = {.p = peers_begin(suite), .input = data + 4, .left = size - 4};
    for (unsigned i = 0; i < STEPS && s.left > 0; i++) {
        write_step(&s);
    }
    struct outcome whole = serve(&s, suite, UINT32_MAX);
    struct outcome pieces = serve(&s, suite, fuzz_largest_piece(data[1] & 3));
    CHECK(whole.taken == pieces.taken && whole.failed == pieces.failed && whole.ended == pieces.ended);
    CHECK(whole.out_len == pieces.out_len && whole.out == pieces.out);
    CHECK(whole.taken >= s.sure && whole.taken <= s.data);
    CHECK(s.doubt || (!whole.failed && !whole.ended && whole.taken == s.data));
    free(s.wire);
    peers_end(s.p);
    return 0;
}
