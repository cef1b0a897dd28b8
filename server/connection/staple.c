#include "connection/staple.h"

#include "base/check.h"
#include "base/epoch.h"
#include "observe/log.h"

#include <openssl/err.h>
#include <openssl/http.h>
#include <openssl/ocsp.h>
#include <pthread.h>
#include <stdlib.h>

enum {
    FETCH_SECONDS = 5,
    RESPONSE_MAX = 65536,
    CLOCK_SKEW = 300,
    RETRY_FIRST = 30,
    RETRY_MOST = 3600,
    RENEW_MOST = 6 * 3600,
};

/* ---- on the pair -------------------------------------------------------------------------------- */

bool staple_set(struct cert_pair *pair, const void *der, size_t len, time_t until, time_t renew)
{
    struct staple *staple = malloc(sizeof *staple + len);
    if (staple == NULL) {
        return false;
    }
    *staple = (struct staple){.until = until, .renew = renew, .len = len};
    memcpy(staple->der, der, len);
    struct staple *before = atomic_exchange_explicit(&pair->staple, staple, memory_order_acq_rel);
    if (before != NULL) {
        epoch_retire(free, before);
    }
    return true;
}

void staple_free(struct cert_pair *pair)
{
    free(atomic_load_explicit(&pair->staple, memory_order_acquire));
}

int staple_callback(SSL *ssl, void *arg)
{
    (void)arg;
    const struct cert_pair *pair = cert_pair_of(SSL_get_certificate(ssl));
    const struct staple *staple = pair != NULL ? atomic_load_explicit(&pair->staple, memory_order_acquire) : NULL;
    if (staple == NULL || staple->until <= time(NULL)) {
        return SSL_TLSEXT_ERR_NOACK;
    }
    unsigned char *copy = OPENSSL_memdup(staple->der, staple->len);
    if (copy == NULL || SSL_set_tlsext_status_ocsp_resp(ssl, copy, (long)staple->len) != 1) {
        OPENSSL_free(copy);
        return SSL_TLSEXT_ERR_NOACK;
    }
    return SSL_TLSEXT_ERR_OK;
}

/* ---- one fetch ------------------------------------------------------------------------------------ */

struct fetch {
    X509 *issuer;
    OCSP_CERTID *id;
    BIO *answer;
    OCSP_RESPONSE *response;
    OCSP_BASICRESP *basic;
    X509_STORE *store;
    time_t until;
    time_t from;
};

static void end_fetch(struct fetch *f)
{
    OCSP_CERTID_free(f->id);
    BIO_free_all(f->answer);
    OCSP_RESPONSE_free(f->response);
    OCSP_BASICRESP_free(f->basic);
    X509_STORE_free(f->store);
    ERR_clear_error();
}

static const char *ask(struct fetch *f, const char *url)
{
    char *host = NULL;
    char *port = NULL;
    char *path = NULL;
    int use_ssl = 0;
    OCSP_REQUEST *request = OCSP_REQUEST_new();
    OCSP_CERTID *id = OCSP_CERTID_dup(f->id);
    if (request == NULL || id == NULL || OCSP_request_add0_id(request, id) == NULL) {
        OCSP_CERTID_free(id);
        OCSP_REQUEST_free(request);
        return "out of memory";
    }
    BIO *body = BIO_new(BIO_s_mem());
    const char *why = "its address cannot be understood";
    if (body != NULL && i2d_OCSP_REQUEST_bio(body, request) == 1 &&
        OSSL_HTTP_parse_url(url, &use_ssl, NULL, &host, &port, NULL, &path, NULL, NULL) == 1 && use_ssl == 0) {
        f->answer = OSSL_HTTP_transfer(NULL, host, port, path, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL,
                                       "application/ocsp-request", body, "application/ocsp-response", 1, RESPONSE_MAX,
                                       FETCH_SECONDS, 0);
        why = f->answer == NULL ? "it does not answer" : NULL;
    }
    OPENSSL_free(host);
    OPENSSL_free(port);
    OPENSSL_free(path);
    BIO_free(body);
    OCSP_REQUEST_free(request);
    return why;
}

static time_t to_time(const ASN1_GENERALIZEDTIME *time)
{
    struct tm tm = {0};
    return time != NULL && ASN1_TIME_to_tm(time, &tm) == 1 ? timegm(&tm) : 0;
}

/* What a client would check. */
static const char *judge(struct fetch *f, const struct cert_pair *pair)
{
    f->response = d2i_OCSP_RESPONSE_bio(f->answer, NULL);
    if (f->response == NULL || OCSP_response_status(f->response) != OCSP_RESPONSE_STATUS_SUCCESSFUL) {
        return "it refuses to answer";
    }
    f->basic = OCSP_response_get1_basic(f->response);
    f->store = X509_STORE_new();
    if (f->basic == NULL || f->store == NULL || X509_STORE_add_cert(f->store, f->issuer) != 1 ||
        X509_STORE_set_flags(f->store, X509_V_FLAG_PARTIAL_CHAIN) != 1) {
        return "its answer cannot be read";
    }
    if (OCSP_basic_verify(f->basic, pair->chain, f->store, OCSP_TRUSTOTHER) != 1) {
        return "its answer is not signed by the authority";
    }
    int status;
    int reason;
    ASN1_GENERALIZEDTIME *revoked;
    ASN1_GENERALIZEDTIME *from;
    ASN1_GENERALIZEDTIME *until;
    if (OCSP_resp_find_status(f->basic, f->id, &status, &reason, &revoked, &from, &until) != 1) {
        return "its answer is about another certificate";
    }
    if (status != V_OCSP_CERTSTATUS_GOOD) {
        return status == V_OCSP_CERTSTATUS_REVOKED ? "the certificate was revoked" : "it does not know the certificate";
    }
    if (OCSP_check_validity(from, until, CLOCK_SKEW, -1) != 1) {
        return "its answer is of another time";
    }
    f->from = to_time(from);
    f->until = until != NULL ? to_time(until) : time(NULL) + RETRY_MOST;
    return NULL;
}

static const char *use_answer(struct fetch *f, struct cert_pair *pair)
{
    unsigned char *der = NULL;
    int len = i2d_OCSP_RESPONSE(f->response, &der);
    time_t now = time(NULL);
    time_t half = (f->until - now) / 2;
    half = half > RENEW_MOST ? RENEW_MOST : half < RETRY_FIRST ? RETRY_FIRST : half;
    bool ok = len > 0 && staple_set(pair, der, (size_t)len, f->until, now + half);
    OPENSSL_free(der);
    return ok ? NULL : "out of memory";
}

/* NULL, or why there is nothing new. */
static const char *fetch(struct cert_pair *pair)
{
    struct fetch f = {.issuer = sk_X509_num(pair->chain) > 0 ? sk_X509_value(pair->chain, 0) : NULL};
    STACK_OF(OPENSSL_STRING) *urls = X509_get1_ocsp(pair->leaf);
    const char *url = sk_OPENSSL_STRING_num(urls) > 0 ? sk_OPENSSL_STRING_value(urls, 0) : NULL;
    const char *why = url == NULL        ? "the certificate names no responder"
                      : f.issuer == NULL ? "the certificate of its issuer is not in fullchain.pem"
                                         : NULL;
    if (why == NULL) {
        f.id = OCSP_cert_to_id(NULL, pair->leaf, f.issuer);
        why = f.id == NULL ? "out of memory" : ask(&f, url);
    }
    why = why != NULL ? why : judge(&f, pair);
    why = why != NULL ? why : use_answer(&f, pair);
    X509_email_free(urls);
    end_fetch(&f);
    return why;
}

/* ---- the thread -------------------------------------------------------------------------------------- */

struct watched {
    struct cert_pair *pair; /* a reference */
    time_t due;
    unsigned failures;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t thread;
    struct watched *items;
    size_t count;
    unsigned version; /* of the list */
    bool running;
    bool stopping;
    void (*tell)(const struct cert_pair *pair, const struct staple *staple);
} staples = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

static void after_fetch(struct watched *item, const char *why, time_t now)
{
    const struct staple *staple = atomic_load_explicit(&item->pair->staple, memory_order_acquire);
    if (why == NULL) {
        item->failures = 0;
        item->due = staple->renew;
        staples.tell(item->pair, staple);
        return;
    }
    if (item->failures == 0) {
        log_warning("no OCSP answer to staple for %s: %s%s",
                    item->pair->name_count > 0 ? item->pair->names[0].ptr : "?", why,
                    staple == NULL ? "; clients will refuse the certificate, which asks for one" : "");
    }
    unsigned shift = item->failures < 7 ? item->failures : 7;
    time_t pause = (time_t)RETRY_FIRST << shift;
    item->failures++;
    item->due = now + (pause > RETRY_MOST ? RETRY_MOST : pause);
}

/* Due ones; the lock is let go while one is fetched. The time of the next, 0: none. */
static time_t look_after(void)
{
    time_t next = 0;
    for (size_t i = 0; i < staples.count && !staples.stopping; i++) {
        time_t now = time(NULL);
        if (staples.items[i].due <= now) {
            unsigned version = staples.version;
            struct watched item = {cert_pair_ref(staples.items[i].pair), 0, staples.items[i].failures};
            pthread_mutex_unlock(&staples.lock);
            const char *why = fetch(item.pair);
            after_fetch(&item, why, now);
            cert_pair_unref(item.pair);
            pthread_mutex_lock(&staples.lock);
            if (version != staples.version) {
                return time(NULL); /* another list meanwhile */
            }
            staples.items[i].due = item.due;
            staples.items[i].failures = item.failures;
        }
        next = next == 0 || staples.items[i].due < next ? staples.items[i].due : next;
    }
    return next;
}

static void *run(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&staples.lock);
    while (!staples.stopping) {
        unsigned version = staples.version;
        time_t next = look_after();
        if (staples.stopping || version != staples.version) {
            continue;
        }
        struct timespec until = {.tv_sec = next};
        if (next == 0) {
            pthread_cond_wait(&staples.wake, &staples.lock);
        } else {
            pthread_cond_timedwait(&staples.wake, &staples.lock, &until);
        }
    }
    pthread_mutex_unlock(&staples.lock);
    return NULL;
}

static void drop_list(void)
{
    for (size_t i = 0; i < staples.count; i++) {
        cert_pair_unref(staples.items[i].pair);
    }
    free(staples.items);
    staples.items = NULL;
    staples.count = 0;
    staples.version++;
}

void staples_watch(struct cert_pair *const *pairs, size_t count,
                   void (*tell)(const struct cert_pair *pair, const struct staple *staple))
{
    struct watched *items = calloc(count + 1, sizeof *items);
    CHECK(items != NULL);
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        if (pairs[i]->must_staple) {
            const struct staple *staple = atomic_load_explicit(&pairs[i]->staple, memory_order_acquire);
            items[used++] = (struct watched){cert_pair_ref(pairs[i]), staple != NULL ? staple->renew : 0, 0};
        }
    }
    pthread_mutex_lock(&staples.lock);
    drop_list();
    staples.items = items;
    staples.count = used;
    staples.tell = tell;
    if (used > 0 && !staples.running) {
        staples.running = pthread_create(&staples.thread, NULL, run, NULL) == 0;
        if (!staples.running) {
            log_error("OCSP answers cannot be fetched: no thread can be made");
        }
    }
    pthread_cond_signal(&staples.wake);
    pthread_mutex_unlock(&staples.lock);
}

void staples_end(void)
{
    pthread_mutex_lock(&staples.lock);
    staples.stopping = true;
    pthread_cond_signal(&staples.wake);
    pthread_mutex_unlock(&staples.lock);
    if (staples.running) {
        pthread_join(staples.thread, NULL);
    }
    drop_list();
    staples.running = false;
    staples.stopping = false;
}
