#include "connection/self_signed.h"

#include "base/file.h"

#include <errno.h>
#include <limits.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <unistd.h>

#define OUR_ORGANISATION "Kiln self-signed"

enum { DAYS_VALID = 397, SECONDS_A_DAY = 86400 };

static bool add_extension(X509 *cert, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509V3_set_ctx_nodb(&ctx);
    X509V3_set_ctx(&ctx, cert, cert, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    bool ok = extension != NULL && X509_add_ext(cert, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return ok;
}

static bool add_names(X509 *cert)
{
    char host[256] = "";
    char names[512];
    if (gethostname(host, sizeof host - 1) != 0 || !cert_name_is_valid(str_of(host)) ||
        strcmp(host, "localhost") == 0) {
        host[0] = '\0';
    }
    snprintf(names, sizeof names, "DNS:localhost,IP:127.0.0.1,IP:::1%s%s", host[0] != '\0' ? ",DNS:" : "", host);
    return add_extension(cert, NID_subject_alt_name, names);
}

static bool set_subject(X509 *cert)
{
    X509_NAME *name = X509_get_subject_name(cert);
    return X509_NAME_add_entry_by_txt(name, "O", MBSTRING_ASC, (const unsigned char *)OUR_ORGANISATION, -1, -1, 0) ==
               1 &&
           X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"localhost", -1, -1, 0) == 1 &&
           X509_set_issuer_name(cert, name) == 1;
}

static bool set_serial(X509 *cert)
{
    unsigned char bytes[16];
    if (RAND_bytes(bytes, sizeof bytes) != 1) {
        return false;
    }
    bytes[0] &= 0x7f; /* positive */
    BIGNUM *number = BN_bin2bn(bytes, sizeof bytes, NULL);
    bool ok = number != NULL && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(cert)) != NULL;
    BN_free(number);
    return ok;
}

static X509 *make_certificate(EVP_PKEY *key)
{
    X509 *cert = X509_new();
    /* A day back, for clocks that are behind ours. */
    bool ok = cert != NULL && X509_set_version(cert, X509_VERSION_3) == 1 && set_serial(cert) && set_subject(cert) &&
              X509_gmtime_adj(X509_getm_notBefore(cert), -SECONDS_A_DAY) != NULL &&
              X509_gmtime_adj(X509_getm_notAfter(cert), (long)(DAYS_VALID - 1) * SECONDS_A_DAY) != NULL &&
              X509_set_pubkey(cert, key) == 1 && add_extension(cert, NID_basic_constraints, "critical,CA:FALSE") &&
              add_extension(cert, NID_key_usage, "critical,digitalSignature") &&
              add_extension(cert, NID_ext_key_usage, "serverAuth") &&
              add_extension(cert, NID_subject_key_identifier, "hash") && add_names(cert) &&
              X509_sign(cert, key, EVP_sha256()) > 0;
    if (!ok) {
        X509_free(cert);
        return NULL;
    }
    return cert;
}

/* Of a memory BIO; freed with it. */
static struct str text_of(BIO *bio)
{
    char *data = NULL;
    long len = BIO_get_mem_data(bio, &data);
    return (struct str){data, len > 0 ? (size_t)len : 0};
}

static bool write_file(const char *directory, const char *name, struct str text, mode_t mode, struct buffer *why)
{
    char path[PATH_MAX];
    int len = snprintf(path, sizeof path, "%s/%s", directory, name);
    if (len > 0 && (size_t)len < sizeof path && file_replace(path, text.ptr, text.len, mode)) {
        return true;
    }
    buffer_printf(why, "%s/%s cannot be written: %s", directory, name, strerror(errno));
    return false;
}

static bool write_pair(const char *cert_dir, EVP_PKEY *key, X509 *cert, struct buffer *why)
{
    char directory[PATH_MAX];
    int len = snprintf(directory, sizeof directory, "%s%s" SELF_SIGNED_DIRECTORY, cert_dir,
                       str_ends(str_of(cert_dir), STR("/")) ? "" : "/");
    if (len < 0 || (size_t)len >= sizeof directory || !dir_make(directory, 0700)) {
        buffer_printf(why, "%s cannot be made: %s", directory, strerror(errno));
        return false;
    }
    BIO *key_pem = BIO_new(BIO_s_secmem());
    BIO *cert_pem = BIO_new(BIO_s_mem());
    bool ok = key_pem != NULL && cert_pem != NULL &&
              PEM_write_bio_PrivateKey(key_pem, key, NULL, NULL, 0, NULL, NULL) == 1 &&
              PEM_write_bio_X509(cert_pem, cert) == 1;
    if (!ok) {
        buffer_printf(why, "it cannot be encoded: %s", openssl_error());
    }
    /* The key first: a pair of an old certificate and a new key is refused, not served. */
    ok = ok && write_file(directory, "privkey.pem", text_of(key_pem), 0600, why) &&
         write_file(directory, "fullchain.pem", text_of(cert_pem), 0644, why);
    BIO_free(key_pem);
    BIO_free(cert_pem);
    return ok;
}

bool self_signed_make(const char *cert_dir, struct buffer *why)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = key != NULL ? make_certificate(key) : NULL;
    bool ok = cert != NULL;
    if (!ok) {
        buffer_printf(why, "OpenSSL cannot make it: %s", openssl_error());
    }
    ok = ok && write_pair(cert_dir, key, cert, why);
    X509_free(cert);
    EVP_PKEY_free(key);
    return ok;
}

bool self_signed_is_ours(const struct cert_pair *pair)
{
    char text[64];
    int len = X509_NAME_get_text_by_NID(X509_get_issuer_name(pair->leaf), NID_organizationName, text, sizeof text);
    return pair->self_signed && len > 0 && strcmp(text, OUR_ORGANISATION) == 0;
}
