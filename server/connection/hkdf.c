#include "connection/hkdf.h"

#include "base/check.h"

#include <openssl/crypto.h>
#include <pthread.h>

enum { BLOCK_MAX = 128, PREFIX = 6, HEAD = 4 /* length (2), of label, of context */ };

static const struct hash {
    const char *name;
    size_t len;
} hashes[] = {{"SHA256", 32}, {"SHA384", HKDF_HASH_MAX}};
enum { HASHES = sizeof hashes / sizeof hashes[0] };

/* Fetched once, and alive as long as the process. */
static EVP_MD *digests[HASHES];
static pthread_once_t digests_once = PTHREAD_ONCE_INIT;

static void fetch_digests(void)
{
    for (size_t i = 0; i < HASHES; i++) {
        digests[i] = EVP_MD_fetch(NULL, hashes[i].name, NULL);
        CHECK(digests[i] != NULL);
    }
}

/* As OpenSSL writes them: with and without the 2 of SHA2. */
static bool named(struct str name, const char *hash)
{
    struct str digits = {hash + 3, 3};
    return str_eq_nocase(name, str_of(hash)) ||
           (name.len == 8 && str_eq_nocase((struct str){name.ptr, 5}, STR("SHA2-")) &&
            str_eq((struct str){name.ptr + 5, 3}, digits));
}

bool hkdf_begin(struct hkdf *hkdf, struct str digest)
{
    pthread_once(&digests_once, fetch_digests);
    *hkdf = (struct hkdf){0};
    for (size_t i = 0; i < HASHES; i++) {
        if (named(digest, hashes[i].name)) {
            hkdf->digest = digests[i];
            hkdf->len = hashes[i].len;
            hkdf->ctx = EVP_MD_CTX_new();
        }
    }
    return hkdf->ctx != NULL;
}

void hkdf_end(struct hkdf *hkdf)
{
    EVP_MD_CTX_free(hkdf->ctx);
    hkdf->ctx = NULL;
}

static bool hash_two(struct hkdf *hkdf, const uint8_t *pad, size_t pad_len, struct str data, uint8_t *out)
{
    return EVP_DigestInit_ex2(hkdf->ctx, hkdf->digest, NULL) == 1 && EVP_DigestUpdate(hkdf->ctx, pad, pad_len) == 1 &&
           EVP_DigestUpdate(hkdf->ctx, data.ptr, data.len) == 1 && EVP_DigestFinal_ex(hkdf->ctx, out, NULL) == 1;
}

/* HMAC (RFC 2104). No key here is longer than a hash, and so than a block. */
static bool hmac(struct hkdf *hkdf, struct str key, struct str data, uint8_t *out)
{
    uint8_t pad[BLOCK_MAX] = {0};
    uint8_t inner[HKDF_HASH_MAX];
    size_t block = hkdf->len == HKDF_HASH_MAX ? BLOCK_MAX : BLOCK_MAX / 2; /* of SHA-384, of SHA-256 */
    if (key.len > 0) {
        memcpy(pad, key.ptr, key.len);
    }
    for (size_t i = 0; i < block; i++) {
        pad[i] ^= 0x36;
    }
    bool ok = hash_two(hkdf, pad, block, data, inner);
    for (size_t i = 0; i < block; i++) {
        pad[i] ^= 0x36 ^ 0x5c;
    }
    ok = ok && hash_two(hkdf, pad, block, (struct str){(char *)inner, hkdf->len}, out);
    OPENSSL_cleanse(pad, sizeof pad);
    OPENSSL_cleanse(inner, sizeof inner);
    return ok;
}

bool hkdf_extract(struct hkdf *hkdf, struct str salt, struct str secret, uint8_t *out)
{
    return salt.len <= hkdf->len && hmac(hkdf, salt, secret, out);
}

/* HkdfLabel, and room for the counter behind it. Its length. */
static size_t write_label(uint8_t *to, size_t len, struct str label, struct str context)
{
    to[0] = (uint8_t)(len >> 8);
    to[1] = (uint8_t)len;
    to[2] = (uint8_t)(PREFIX + label.len);
    memcpy(to + 3, "tls13 ", PREFIX);
    memcpy(to + 3 + PREFIX, label.ptr, label.len);
    to[3 + PREFIX + label.len] = (uint8_t)context.len;
    if (context.len > 0) {
        memcpy(to + HEAD + PREFIX + label.len, context.ptr, context.len);
    }
    return HEAD + PREFIX + label.len + context.len;
}

bool hkdf_expand(struct hkdf *hkdf, const uint8_t *secret, struct str label, struct str context, uint8_t *out,
                 size_t len)
{
    /* What was made last, the label, the counter (RFC 5869, 2.3). */
    uint8_t text[HKDF_HASH_MAX + HEAD + PREFIX + HKDF_LABEL_MAX + HKDF_CONTEXT_MAX + 1];
    uint8_t made[HKDF_HASH_MAX];
    if (len > HKDF_MOST * hkdf->len || label.len > HKDF_LABEL_MAX || context.len > HKDF_CONTEXT_MAX) {
        return false;
    }
    struct str key = {(const char *)secret, hkdf->len};
    size_t end = hkdf->len + write_label(text + hkdf->len, len, label, context);
    bool ok = true;
    for (size_t done = 0; ok && done < len; done += hkdf->len) {
        size_t from = done > 0 ? 0 : hkdf->len;
        size_t rest = len - done < hkdf->len ? len - done : hkdf->len;
        text[end] = (uint8_t)(done / hkdf->len + 1);
        ok = hmac(hkdf, key, (struct str){(char *)text + from, end + 1 - from}, made);
        if (ok) {
            memcpy(out + done, made, rest);
            memcpy(text, made, hkdf->len);
        }
    }
    OPENSSL_cleanse(made, sizeof made);
    OPENSSL_cleanse(text, hkdf->len);
    return ok;
}

bool hkdf_derived(struct hkdf *hkdf, const uint8_t *secret, uint8_t *out)
{
    uint8_t empty[HKDF_HASH_MAX] = {0};
    return hash_two(hkdf, empty, 0, STR(""), empty) &&
           hkdf_expand(hkdf, secret, STR("derived"), (struct str){(char *)empty, hkdf->len}, out, hkdf->len);
}
