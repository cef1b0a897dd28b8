#include "connection/cert_pair.h"

#include "base/check.h"
#include "connection/hex.h"
#include "connection/staple.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdlib.h>

const char *openssl_error(void)
{
    unsigned long code = ERR_get_error();
    const char *text = ERR_reason_error_string(code);
    ERR_clear_error();
    return text != NULL ? text : "unknown error";
}

const char *cert_kind_name(enum cert_kind kind)
{
    static const char *const names[] = {"RSA", "ECDSA", "EdDSA"};
    return names[kind];
}

/* ---- PEM --------------------------------------------------------------------------------------- */

static BIO *bio_of(struct str pem)
{
    return BIO_new_mem_buf(pem.ptr, (int)pem.len);
}

/* Nobody sits at a terminal: a key with a passphrase is refused instead of waiting for one. */
static int no_passphrase(char *to, int size, int writing, void *asked)
{
    (void)to;
    (void)size;
    (void)writing;
    *(bool *)asked = true;
    return -1;
}

static bool read_chain(struct cert_pair *pair, struct str pem, struct buffer *why)
{
    BIO *bio = bio_of(pem);
    bool asked = false;
    pair->leaf = bio != NULL ? PEM_read_bio_X509_AUX(bio, NULL, no_passphrase, &asked) : NULL;
    if (pair->leaf == NULL) {
        buffer_append_z(why, "there is no certificate in it");
        BIO_free(bio);
        ERR_clear_error();
        return false;
    }
    bool ok = true;
    X509 *next;
    while (ok && (next = PEM_read_bio_X509(bio, NULL, no_passphrase, &asked)) != NULL) {
        if (pair->chain == NULL) {
            pair->chain = sk_X509_new_null();
        }
        ok = pair->chain != NULL && sk_X509_push(pair->chain, next) > 0;
        if (!ok) {
            X509_free(next);
        }
    }
    BIO_free(bio);
    unsigned long end = ERR_peek_last_error();
    if (ok && ERR_GET_REASON(end) != PEM_R_NO_START_LINE) {
        int read = 1 + (pair->chain != NULL ? sk_X509_num(pair->chain) : 0);
        buffer_printf(why, "certificate %d in it cannot be read: %s", read + 1, openssl_error());
        return false;
    }
    ERR_clear_error();
    if (!ok) {
        buffer_append_z(why, "out of memory");
    }
    return ok;
}

static bool read_key(struct cert_pair *pair, struct str pem, struct buffer *why)
{
    BIO *bio = bio_of(pem);
    bool asked = false;
    pair->key = bio != NULL ? PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, &asked) : NULL;
    BIO_free(bio);
    if (pair->key == NULL) {
        buffer_append_z(why, asked ? "the private key has a passphrase, which nobody is there to type; remove it with "
                                     "openssl pkey -in KEY -out KEY.new"
                                   : "there is no private key in the key file");
        ERR_clear_error();
        return false;
    }
    switch (EVP_PKEY_get_base_id(pair->key)) {
    case EVP_PKEY_RSA:
    case EVP_PKEY_RSA_PSS: pair->kind = CERT_RSA; break;
    case EVP_PKEY_EC: pair->kind = CERT_ECDSA; break;
    case EVP_PKEY_ED25519:
    case EVP_PKEY_ED448: pair->kind = CERT_EDDSA; break;
    default: buffer_append_z(why, "its key is neither RSA, ECDSA nor EdDSA"); return false;
    }
    pair->bits = (unsigned)EVP_PKEY_get_bits(pair->key);
    return true;
}

/* What a handshake would say to them, said now. */
static bool try_pair(const struct cert_pair *pair, struct buffer *why)
{
    if (X509_check_private_key(pair->leaf, pair->key) != 1) {
        buffer_append_z(why, "the private key does not belong to the certificate: they are of different pairs");
        ERR_clear_error();
        return false;
    }
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    bool ok = ctx != NULL && SSL_CTX_use_cert_and_key(ctx, pair->leaf, pair->key, pair->chain, 1) == 1;
    if (!ok) {
        buffer_printf(why, "it cannot be used: %s", openssl_error());
    }
    SSL_CTX_free(ctx);
    return ok;
}

/* ---- names --------------------------------------------------------------------------------------- */

bool cert_name_is_valid(struct str name)
{
    if (name.len > 2 && name.ptr[0] == '*' && name.ptr[1] == '.') {
        name = str_from(name, 2);
    }
    if (name.len == 0 || name.len > 253 || name.ptr[0] == '.' || name.ptr[name.len - 1] == '.') {
        return false;
    }
    for (size_t i = 0; i < name.len; i++) {
        char c = ascii_lower(name.ptr[i]);
        bool ok = (c >= 'a' && c <= 'z') || ascii_is_digit(c) || c == '-' || c == '_' || c == '.';
        if (!ok || (c == '.' && name.ptr[i - 1] == '.')) {
            return false;
        }
    }
    return true;
}

static bool add_name(struct cert_pair *pair, struct str name)
{
    char *copy = malloc(name.len + 1);
    struct str *names = copy != NULL ? realloc(pair->names, (pair->name_count + 1) * sizeof *names) : NULL;
    if (names == NULL) {
        free(copy);
        return false;
    }
    for (size_t i = 0; i < name.len; i++) {
        copy[i] = ascii_lower(name.ptr[i]);
    }
    copy[name.len] = '\0';
    pair->names = names;
    names[pair->name_count++] = (struct str){copy, name.len};
    return true;
}

static bool add_dns_name(struct cert_pair *pair, const ASN1_STRING *text)
{
    struct str name = {(const char *)ASN1_STRING_get0_data(text), (size_t)ASN1_STRING_length(text)};
    return !cert_name_is_valid(name) || add_name(pair, name);
}

static bool add_ip_name(struct cert_pair *pair, const ASN1_STRING *bytes)
{
    char text[INET6_ADDRSTRLEN];
    int len = ASN1_STRING_length(bytes);
    int family = len == 4 ? AF_INET : len == 16 ? AF_INET6 : AF_UNSPEC;
    if (family == AF_UNSPEC || inet_ntop(family, ASN1_STRING_get0_data(bytes), text, sizeof text) == NULL) {
        return true;
    }
    return add_name(pair, str_of(text));
}

static bool read_names(struct cert_pair *pair)
{
    bool ok = true;
    GENERAL_NAMES *all = X509_get_ext_d2i(pair->leaf, NID_subject_alt_name, NULL, NULL);
    for (int i = 0; ok && i < sk_GENERAL_NAME_num(all); i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(all, i);
        if (name->type == GEN_DNS) {
            ok = add_dns_name(pair, name->d.dNSName);
        } else if (name->type == GEN_IPADD) {
            ok = add_ip_name(pair, name->d.iPAddress);
        }
    }
    GENERAL_NAMES_free(all);
    if (ok && pair->name_count == 0) {
        /* Only clients of long ago go by the common name, but then it is the only one there is. */
        const X509_NAME *subject = X509_get_subject_name(pair->leaf);
        int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
        if (at >= 0) {
            ok = add_dns_name(pair, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
        }
    }
    return ok;
}

bool cert_pair_is_for(const struct cert_pair *pair, struct str name)
{
    size_t dot = str_find(name, '.');
    for (size_t i = 0; i < pair->name_count; i++) {
        struct str own = pair->names[i];
        bool wildcard = str_starts(own, STR("*.")) && dot != SIZE_MAX && dot > 0;
        if (str_eq(own, name) || (wildcard && str_eq(str_from(own, 1), str_from(name, dot)))) {
            return true;
        }
    }
    return false;
}

/* ---- from a certificate back to its pair ---------------------------------------------------------- */

static pthread_once_t index_once = PTHREAD_ONCE_INIT;
static int pair_index = -1;

static void make_index(void)
{
    pair_index = X509_get_ex_new_index(0, NULL, NULL, NULL, NULL);
}

struct cert_pair *cert_pair_of(const X509 *leaf)
{
    return leaf != NULL && pair_index >= 0 ? X509_get_ex_data(leaf, pair_index) : NULL;
}

/* ---- the rest -------------------------------------------------------------------------------------- */

static time_t to_time(const ASN1_TIME *time)
{
    struct tm tm = {0};
    return ASN1_TIME_to_tm(time, &tm) == 1 ? timegm(&tm) : 0;
}

static bool asks_for_staple(X509 *leaf)
{
    enum { STATUS_REQUEST = 5 };
    TLS_FEATURE *features = X509_get_ext_d2i(leaf, NID_tlsfeature, NULL, NULL);
    bool found = false;
    for (int i = 0; i < sk_ASN1_INTEGER_num(features); i++) {
        found = found || ASN1_INTEGER_get(sk_ASN1_INTEGER_value(features, i)) == STATUS_REQUEST;
    }
    TLS_FEATURE_free(features);
    return found;
}

static bool read_details(struct cert_pair *pair)
{
    pair->not_before = to_time(X509_get0_notBefore(pair->leaf));
    pair->not_after = to_time(X509_get0_notAfter(pair->leaf));
    pair->must_staple = asks_for_staple(pair->leaf);
    pair->self_signed = X509_self_signed(pair->leaf, 0) == 1;
    ERR_clear_error();
    unsigned len = sizeof pair->fingerprint;
    pthread_once(&index_once, make_index);
    return X509_set_ex_data(pair->leaf, pair_index, pair) == 1 && read_names(pair) &&
           X509_digest(pair->leaf, EVP_sha256(), pair->fingerprint, &len) == 1;
}

struct cert_pair *cert_pair_parse(struct str chain_pem, struct str key_pem, struct buffer *why)
{
    ERR_clear_error();
    struct cert_pair *pair = calloc(1, sizeof *pair);
    if (pair == NULL) {
        buffer_append_z(why, "out of memory");
        return NULL;
    }
    atomic_init(&pair->references, 1);
    if (!read_chain(pair, chain_pem, why) || !read_key(pair, key_pem, why) || !try_pair(pair, why)) {
        cert_pair_unref(pair);
        return NULL;
    }
    if (!read_details(pair)) {
        buffer_append_z(why, "out of memory");
        cert_pair_unref(pair);
        return NULL;
    }
    return pair;
}

bool cert_pair_is_valid(const struct cert_pair *pair, time_t now)
{
    return pair->not_before <= now && now < pair->not_after;
}

struct cert_pair *cert_pair_ref(struct cert_pair *pair)
{
    atomic_fetch_add_explicit(&pair->references, 1, memory_order_relaxed);
    return pair;
}

void cert_pair_unref(struct cert_pair *pair)
{
    if (pair == NULL || atomic_fetch_sub_explicit(&pair->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    for (size_t i = 0; i < pair->name_count; i++) {
        free((char *)(uintptr_t)pair->names[i].ptr);
    }
    free(pair->names);
    staple_free(pair);
    if (pair->leaf != NULL) {
        X509_set_ex_data(pair->leaf, pair_index, NULL);
    }
    X509_free(pair->leaf);
    sk_X509_pop_free(pair->chain, X509_free);
    EVP_PKEY_free(pair->key);
    free(pair);
}

void cert_pair_print_fingerprint(const struct cert_pair *pair, char out[65])
{
    hex_print(pair->fingerprint, sizeof pair->fingerprint, out);
}

void cert_pair_print_issuer(const struct cert_pair *pair, struct buffer *out)
{
    static const int wanted[] = {NID_commonName, NID_organizationName};
    const X509_NAME *issuer = X509_get_issuer_name(pair->leaf);
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
        int at = X509_NAME_get_index_by_NID(issuer, wanted[i], -1);
        if (at < 0) {
            continue;
        }
        unsigned char *text = NULL;
        int len = ASN1_STRING_to_UTF8(&text, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(issuer, at)));
        for (int j = 0; j < len; j++) {
            buffer_append_char(out, text[j] < 0x20 || text[j] == 0x7f ? '?' : (char)text[j]);
        }
        OPENSSL_free(text);
        if (len > 0) {
            return;
        }
    }
    buffer_append_z(out, "?");
}
