#include "connection/tickets.h"

#include "base/check.h"
#include "base/epoch.h"
#include "connection/hex.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <stdatomic.h>
#include <stdlib.h>

_Static_assert(sizeof(struct ticket_key) == TICKET_KEY_BYTES, "a key is sent as it lies in memory");

/* ---- the supervisor ----------------------------------------------------------------------------- */

bool ticket_keys_rotate(struct ticket_keys *keys)
{
    struct ticket_key fresh;
    if (RAND_priv_bytes((unsigned char *)&fresh, sizeof fresh) != 1) {
        return false;
    }
    memmove(&keys->keys[1], &keys->keys[0], (TICKET_KEYS - 1) * sizeof fresh);
    keys->keys[0] = fresh;
    keys->count += keys->count < TICKET_KEYS;
    OPENSSL_cleanse(&fresh, sizeof fresh);
    return true;
}

void ticket_keys_wipe(struct ticket_keys *keys)
{
    OPENSSL_cleanse(keys, sizeof *keys);
}

void ticket_keys_print(const struct ticket_keys *keys, struct buffer *out)
{
    const unsigned char *bytes = (const unsigned char *)keys->keys;
    size_t len = keys->count * sizeof keys->keys[0];
    char *to = buffer_reserve(out, len * 2 + 1);
    if (to != NULL) {
        hex_print(bytes, len, to);
        out->len += len * 2;
    }
}

bool ticket_keys_parse(struct str text, struct ticket_keys *keys)
{
    *keys = (struct ticket_keys){0};
    if (text.len == 0 || text.len % (TICKET_KEY_BYTES * 2) != 0 || text.len > TICKET_KEYS * TICKET_KEY_BYTES * 2) {
        return false;
    }
    if (!hex_read(text, (unsigned char *)keys->keys)) {
        return false;
    }
    keys->count = (unsigned)(text.len / (TICKET_KEY_BYTES * 2));
    return true;
}

/* ---- the worker ------------------------------------------------------------------------------------ */

static _Atomic(struct ticket_keys *) current;
static EVP_CIPHER *cipher_type;

static void free_keys(void *arg)
{
    ticket_keys_wipe(arg);
    free(arg);
}

static void swap(struct ticket_keys *keys)
{
    struct ticket_keys *before = atomic_exchange_explicit(&current, keys, memory_order_acq_rel);
    if (before != NULL) {
        epoch_retire(free_keys, before);
    }
}

bool tickets_use(const struct ticket_keys *keys)
{
    if (cipher_type == NULL) {
        cipher_type = EVP_CIPHER_fetch(NULL, "AES-256-CBC", NULL);
    }
    struct ticket_keys *copy = malloc(sizeof *copy);
    if (copy == NULL || cipher_type == NULL) {
        free(copy);
        return false;
    }
    *copy = *keys;
    swap(copy);
    return true;
}

void tickets_end(void)
{
    struct ticket_keys *keys = atomic_exchange_explicit(&current, NULL, memory_order_acq_rel);
    if (keys != NULL) {
        free_keys(keys);
    }
    EVP_CIPHER_free(cipher_type);
    cipher_type = NULL;
}

static bool set_mac(EVP_MAC_CTX *mac, const struct ticket_key *key)
{
    static char digest[] = "SHA256";
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_KEY, (void *)(uintptr_t)key->hmac, sizeof key->hmac),
        OSSL_PARAM_construct_end(),
    };
    return EVP_MAC_CTX_set_params(mac, params) == 1;
}

int tickets_callback(SSL *ssl, unsigned char *name, unsigned char *iv, EVP_CIPHER_CTX *cipher, EVP_MAC_CTX *mac,
                     int encrypt)
{
    enum { FAILED = -1, NONE = 0, USED = 1, USED_AND_RENEW = 2 };
    const struct ticket_keys *keys = atomic_load_explicit(&current, memory_order_acquire);
    if (keys == NULL || keys->count == 0) {
        return NONE;
    }
    if (encrypt) {
        const struct ticket_key *key = &keys->keys[0];
        memcpy(name, key->name, sizeof key->name);
        bool ok = RAND_bytes(iv, EVP_CIPHER_get_iv_length(cipher_type)) == 1 &&
                  EVP_EncryptInit_ex(cipher, cipher_type, NULL, key->aes, iv) == 1 && set_mac(mac, key);
        return ok ? USED : FAILED;
    }
    for (unsigned i = 0; i < keys->count; i++) {
        const struct ticket_key *key = &keys->keys[i];
        if (memcmp(name, key->name, sizeof key->name) != 0) {
            continue;
        }
        bool ok = set_mac(mac, key) && EVP_DecryptInit_ex(cipher, cipher_type, NULL, key->aes, iv) == 1;
        /* In TLS 1.3 each ticket is to be used once, so another one goes with every resumption. */
        bool renew = i > 0 || SSL_version(ssl) >= TLS1_3_VERSION;
        return !ok ? FAILED : renew ? USED_AND_RENEW : USED;
    }
    return NONE;
}
