#include "sessions/session.h"

#include "base/check.h"
#include "config/config.h"
#include "observe/log.h"
#include "request/cookie.h"

#include <openssl/sha.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

/* Cookies of one name that are tried: a browser sends several when they were set for
 * different paths or by a parent domain, and the first need not be ours. */
enum { CANDIDATES = 4, SWEEP_SLICE = 256 };

struct sessions {
    const struct store_ops *ops;
    struct store *store;
    struct str cookie_name;
    struct session_alphabet alphabet;
    int64_t timeout;
    double sweep_minutes;
    bool sweeping;
    pthread_t sweeper;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stopping;
};

/* ---- the service ---------------------------------------------------------------------------- */

void session_settings_of(const struct config *config, struct session_settings *settings)
{
    *settings = (struct session_settings){
        .ops = config->session_store == SESSION_STORE_MEMORY ? &store_memory : &store_lmdb,
        .store =
            {
                .directory = config->sessions_dir.ptr,
                .strict = config->session_sync == SESSION_SYNC_STRICT,
                .sync_ms = (unsigned)config->session_sync_ms,
                .max_value = (size_t)config->session_max_value,
                .max_session = (size_t)config->session_max_size,
                .max_bytes = (uint64_t)config->session_store_size,
            },
        .cookie_name = config->session_cookie_name,
        .alphabet = config->rand_alphabet,
        .timeout = (int64_t)config->session_timeout,
        .sweep_minutes = config->clear_sess_every_x_min,
    };
}

uint64_t sessions_count(struct sessions *sessions)
{
    return sessions->ops->count(sessions->store);
}

uint64_t sessions_sweep(struct sessions *sessions, int64_t now)
{
    uint64_t removed = 0;
    for (;;) {
        struct store_op op = {.kind = STORE_SWEEP, .now = now, .number = SWEEP_SLICE};
        if (store_run(sessions->ops, sessions->store, &op) != STORE_OK) {
            return removed;
        }
        removed += (uint64_t)op.number;
        if (op.number < SWEEP_SLICE) {
            return removed;
        }
    }
}

/* False when the service is closing. */
static bool wait_for_sweep(struct sessions *sessions)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    double seconds = sessions->sweep_minutes * 60;
    until.tv_sec += (time_t)seconds;
    until.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&sessions->lock);
    while (!sessions->stopping && pthread_cond_timedwait(&sessions->wake, &sessions->lock, &until) == 0) {
    }
    bool go_on = !sessions->stopping;
    pthread_mutex_unlock(&sessions->lock);
    return go_on;
}

static void *sweeper_main(void *arg)
{
    struct sessions *sessions = arg;
    while (wait_for_sweep(sessions)) {
        uint64_t removed = sessions_sweep(sessions, time(NULL));
        if (removed > 0) {
            log_info("sessions: removed %llu that ended", (unsigned long long)removed);
        }
    }
    return NULL;
}

static bool start_sweeper(struct sessions *sessions)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&sessions->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&sessions->lock, NULL);
    if (sessions->sweep_minutes <= 0) {
        return true;
    }
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the threads that expect them */
    sessions->sweeping = pthread_create(&sessions->sweeper, NULL, sweeper_main, sessions) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return sessions->sweeping;
}

struct sessions *sessions_open(const struct session_settings *settings, struct buffer *error)
{
    struct sessions *sessions = calloc(1, sizeof *sessions);
    if (sessions == NULL) {
        buffer_append_z(error, "sessions: no memory");
        return NULL;
    }
    sessions->ops = settings->ops;
    sessions->cookie_name = settings->cookie_name;
    sessions->timeout = settings->timeout;
    sessions->sweep_minutes = settings->sweep_minutes;
    if (!session_alphabet_init(&sessions->alphabet, settings->alphabet)) {
        buffer_printf(error, "sessions: Rand_Alphabet needs %d or more different characters that may stand in a cookie",
                      SESSION_ALPHABET_MIN);
        free(sessions);
        return NULL;
    }
    sessions->store = sessions->ops->open(&settings->store, error);
    if (sessions->store == NULL) {
        free(sessions);
        return NULL;
    }
    if (!start_sweeper(sessions)) {
        buffer_append_z(error, "sessions: cannot start a thread");
        sessions_close(sessions);
        return NULL;
    }
    return sessions;
}

void sessions_close(struct sessions *sessions)
{
    if (sessions->sweeping) {
        pthread_mutex_lock(&sessions->lock);
        sessions->stopping = true;
        pthread_cond_signal(&sessions->wake);
        pthread_mutex_unlock(&sessions->lock);
        pthread_join(sessions->sweeper, NULL);
    }
    sessions->ops->close(sessions->store);
    pthread_cond_destroy(&sessions->wake);
    pthread_mutex_destroy(&sessions->lock);
    free(sessions);
}

/* ---- the session of one request --------------------------------------------------------------- */

void session_init(struct session *s, struct sessions *service, struct str cookies, bool secure, int64_t now)
{
    *s = (struct session){.service = service, .cookies = cookies, .secure = secure, .now = now < 0 ? 0 : now};
}

static struct str digest_of(const struct session *s)
{
    return (struct str){(const char *)s->digest, SESSION_DIGEST};
}

static void digest_make(const char *id, size_t len, uint8_t digest[SESSION_DIGEST])
{
    unsigned char whole[SHA256_DIGEST_LENGTH];
    SHA256((const unsigned char *)id, len, whole);
    memcpy(digest, whole, SESSION_DIGEST);
}

static enum store_result run(struct session *s, struct store_op *op)
{
    op->now = s->now;
    return store_run(s->service->ops, s->service->store, op);
}

static void forget(struct session *s)
{
    s->id[0] = '\0';
    memset(s->digest, 0, sizeof s->digest);
}

static enum session_result translate(enum store_result result)
{
    switch (result) {
    case STORE_OK: return SESSION_OK;
    case STORE_NOT_FOUND: return SESSION_NONE;
    case STORE_CONFLICT: return SESSION_CONFLICT;
    case STORE_INVALID: return SESSION_INVALID;
    case STORE_TOO_LARGE: return SESSION_TOO_LARGE;
    case STORE_FULL: return SESSION_FULL;
    case STORE_FAILED: break;
    }
    return SESSION_FAILED;
}

/* The store says that the session is no more, though this request had seen it. */
static enum session_result lose(struct session *s)
{
    forget(s);
    s->lost = true;
    s->cookie = SESSION_COOKIE_NONE; /* the browser may hold a newer id by now */
    return SESSION_GONE;
}

/* Moves the end when enough of the life has passed; false when the session ended meanwhile. */
static bool slide(struct session *s, int64_t expires)
{
    int64_t wanted = s->now + s->service->timeout;
    bool due = expires > wanted || wanted - expires > s->service->timeout / 100;
    if (!due || s->head_sent) {
        return true;
    }
    struct store_op op = {.kind = STORE_TOUCH, .id = digest_of(s), .expires = wanted};
    enum store_result result = run(s, &op);
    if (result == STORE_OK) {
        s->cookie = SESSION_COOKIE_SET;
    }
    return result != STORE_NOT_FOUND; /* anything else: it lives on, only not longer */
}

static enum session_result look(struct session *s)
{
    if (s->looked) {
        return s->id[0] != '\0' ? SESSION_OK : s->lost ? SESSION_GONE : SESSION_NONE;
    }
    struct str rest = s->cookies;
    struct str value;
    unsigned tried = 0;
    while (tried < CANDIDATES && session_cookie_next(&rest, s->service->cookie_name, &value)) {
        if (!session_id_is_valid(&s->service->alphabet, value)) {
            continue;
        }
        tried++;
        digest_make(value.ptr, value.len, s->digest);
        struct store_op op = {.kind = STORE_EXISTS, .id = digest_of(s)};
        enum store_result result = run(s, &op);
        if (result == STORE_FAILED) {
            forget(s);
            return SESSION_FAILED;
        }
        if (result == STORE_OK && slide(s, op.expires)) {
            memcpy(s->id, value.ptr, value.len);
            s->id[value.len] = '\0';
            s->looked = true;
            return SESSION_OK;
        }
    }
    forget(s);
    s->looked = true;
    return SESSION_NONE;
}

/* A new session, with a first value when there is a key. */
static enum session_result begin(struct session *s, struct str key, struct str json)
{
    if (s->head_sent) {
        return SESSION_LATE;
    }
    char id[SESSION_ID_MAX + 1];
    if (!session_id_make(&s->service->alphabet, id)) {
        log_error("sessions: the kernel gives no random bytes");
        return SESSION_FAILED;
    }
    digest_make(id, s->service->alphabet.length, s->digest);
    struct store_op op = {
        .kind = STORE_CREATE, .id = digest_of(s), .expires = s->now + s->service->timeout, .key = key, .json = json};
    enum store_result result = run(s, &op);
    if (result != STORE_OK) {
        forget(s);
        return translate(result);
    }
    memcpy(s->id, id, sizeof id);
    s->looked = true;
    s->cookie = SESSION_COOKIE_SET;
    return SESSION_OK;
}

static bool key_is_valid(struct str key)
{
    return key.len > 0 && key.len <= SESSION_KEY_MAX;
}

/* An operation for which STORE_NOT_FOUND can only mean the session. */
static enum session_result change(struct session *s, struct store_op *op)
{
    enum store_result result = run(s, op);
    return result == STORE_NOT_FOUND ? lose(s) : translate(result);
}

enum session_result session_id(struct session *s, const char **id)
{
    enum session_result result = look(s);
    *id = s->id;
    return result == SESSION_FAILED ? SESSION_FAILED : SESSION_OK;
}

enum session_result session_get(struct session *s, struct str key, struct buffer *json)
{
    if (!key_is_valid(key)) {
        return SESSION_INVALID;
    }
    enum session_result result = look(s);
    if (result != SESSION_OK) {
        return result;
    }
    struct store_op op = {.kind = STORE_GET, .id = digest_of(s), .key = key, .out = json};
    return translate(run(s, &op));
}

enum session_result session_get_all(struct session *s, struct buffer *json)
{
    enum session_result result = look(s);
    if (result != SESSION_OK) {
        return result;
    }
    struct store_op op = {.kind = STORE_GET_ALL, .id = digest_of(s), .out = json};
    return change(s, &op);
}

enum session_result session_set(struct session *s, struct str key, struct str json)
{
    if (!key_is_valid(key)) {
        return SESSION_INVALID;
    }
    enum session_result result = look(s);
    if (result == SESSION_NONE) {
        return begin(s, key, json);
    }
    if (result != SESSION_OK) {
        return result;
    }
    struct store_op op = {.kind = STORE_SET, .id = digest_of(s), .key = key, .json = json};
    return change(s, &op);
}

enum session_result session_increment(struct session *s, struct str key, int64_t by, int64_t *sum)
{
    if (!key_is_valid(key)) {
        return SESSION_INVALID;
    }
    enum session_result result = look(s);
    if (result == SESSION_NONE) {
        result = begin(s, STR_NONE, STR_NONE);
    }
    if (result != SESSION_OK) {
        return result;
    }
    struct store_op op = {.kind = STORE_INCREMENT, .id = digest_of(s), .key = key, .number = by};
    result = change(s, &op);
    if (result == SESSION_OK && sum != NULL) {
        *sum = op.number;
    }
    return result;
}

enum session_result session_remove(struct session *s, struct str key)
{
    if (!key_is_valid(key)) {
        return SESSION_INVALID;
    }
    enum session_result result = look(s);
    if (result != SESSION_OK) {
        return result == SESSION_NONE ? SESSION_OK : result;
    }
    struct store_op op = {.kind = STORE_REMOVE, .id = digest_of(s), .key = key};
    result = translate(run(s, &op));
    return result == SESSION_NONE ? SESSION_OK : result;
}

enum session_result session_renew(struct session *s)
{
    if (s->head_sent) {
        return SESSION_LATE;
    }
    enum session_result result = look(s);
    if (result == SESSION_NONE) {
        return begin(s, STR_NONE, STR_NONE);
    }
    if (result != SESSION_OK) {
        return result;
    }
    char id[SESSION_ID_MAX + 1];
    uint8_t digest[SESSION_DIGEST];
    if (!session_id_make(&s->service->alphabet, id)) {
        log_error("sessions: the kernel gives no random bytes");
        return SESSION_FAILED;
    }
    digest_make(id, s->service->alphabet.length, digest);
    struct store_op op = {.kind = STORE_RENAME,
                          .id = digest_of(s),
                          .new_id = {(const char *)digest, sizeof digest},
                          .expires = s->now + s->service->timeout};
    result = change(s, &op);
    if (result == SESSION_OK) {
        memcpy(s->id, id, sizeof id);
        memcpy(s->digest, digest, sizeof digest);
        s->cookie = SESSION_COOKIE_SET;
    }
    return result;
}

enum session_result session_destroy(struct session *s)
{
    enum session_result result = look(s);
    if (result != SESSION_OK) {
        return result == SESSION_FAILED ? SESSION_FAILED : SESSION_OK;
    }
    struct store_op op = {.kind = STORE_DESTROY, .id = digest_of(s)};
    result = translate(run(s, &op));
    if (result == SESSION_OK) {
        forget(s);
        s->cookie = SESSION_COOKIE_DELETE;
    }
    return result;
}

bool session_cookie(const struct session *s, struct buffer *out)
{
    if (s->cookie == SESSION_COOKIE_NONE) {
        return false;
    }
    bool set = s->cookie == SESSION_COOKIE_SET;
    struct set_cookie cookie = {
        .name = s->service->cookie_name,
        .value = str_of(set ? s->id : ""),
        .max_age = set ? s->service->timeout : -1,
        .same_site = COOKIE_LAX,
        .secure = s->secure,
        .http_only = true,
    };
    return set_cookie_format(out, &cookie) == COOKIE_OK;
}
