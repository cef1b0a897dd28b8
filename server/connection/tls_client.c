/* What a client's certificate says of it, written down once a connection. */
#include "connection/hex.h"
#include "connection/tls_private.h"

#include <openssl/err.h>
#include <stdlib.h>

static bool write_down(struct tls *tls, X509 *cert, BIO *bio)
{
    /* RFC 2253, which escapes whatever could be taken for structure, but leaves UTF-8 as it is. */
    if (X509_NAME_print_ex(bio, X509_get_subject_name(cert), 0,
                           XN_FLAG_RFC2253 & ~(unsigned long)ASN1_STRFLGS_ESC_MSB) < 0) {
        return false;
    }
    char *text = NULL;
    size_t len = (size_t)BIO_get_mem_data(bio, &text);
    unsigned char digest[32];
    unsigned digest_len = sizeof digest;
    struct tls_client *client = malloc(sizeof *client + len + 1);
    if (client == NULL || X509_digest(cert, EVP_sha256(), digest, &digest_len) != 1) {
        free(client);
        return false;
    }
    memcpy(client->subject, text, len);
    client->subject[len] = '\0';
    hex_print(digest, sizeof digest, client->fingerprint);
    tls->client = client;
    return true;
}

bool tls_client_read(struct tls *tls, const SSL *ssl)
{
    X509 *cert = SSL_get0_peer_certificate(ssl);
    if (cert == NULL) {
        return true;
    }
    BIO *bio = BIO_new(BIO_s_mem());
    bool ok = bio != NULL && SSL_get_verify_result(ssl) == X509_V_OK && write_down(tls, cert, bio);
    BIO_free(bio);
    ERR_clear_error();
    return ok;
}
